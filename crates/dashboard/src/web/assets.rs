//! The files of the page, compressed in the program.

use super::error::WebError;
use super::{Dashboard, SignIn};
use axum::extract::{Path, Query, State};
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION, SET_COOKIE, VARY,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use flate2::read::GzDecoder;
use serde::Deserialize;
use std::io::Read;
use std::sync::Arc;

/// A file of the page.
struct Asset {
    name: &'static str,
    media_type: &'static str,
    /// A hash of its content.
    tag: &'static str,
    gzip: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

const PAGE: &str = "index.html";
const WITHOUT_PAGE: &str = "<!doctype html><html lang=en><title>Leno</title><p>This program was built without the page. \
                            Run <code>make ui</code>, and build it again.";

/// Whether the program has the page. Without `make ui` before the build, it has not.
pub fn has_page() -> bool {
    find(PAGE).is_some()
}

fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

#[derive(Deserialize)]
pub(super) struct PageQuery {
    token: Option<String>,
}

/// The page. With a one-time token, a session begins, and the address loses the token.
pub(super) async fn page(
    State(dashboard): State<Arc<Dashboard>>,
    Query(query): Query<PageQuery>,
    headers: HeaderMap,
) -> Result<Response, WebError> {
    let Some(token) = query.token else {
        return Ok(find(PAGE).map_or_else(|| Html(WITHOUT_PAGE).into_response(), |asset| asset.response(&headers)));
    };
    let mut response = (StatusCode::SEE_OTHER, [(LOCATION, dashboard.options.base.to_string())]).into_response();
    if let SignIn::Command(one_time, source) = &dashboard.options.sign_in
        && one_time.spend(&token)
    {
        let cookie = dashboard.sessions.begin("", source.clone())?;
        response.headers_mut().extend(cookie.parse().ok().map(|cookie| (SET_COOKIE, cookie)));
    }
    Ok(response)
}

/// Another file of the page.
pub(super) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, WebError> {
    let asset = find(&name).filter(|_| name != PAGE);
    asset.map(|asset| asset.response(&headers)).ok_or_else(|| WebError::NotFound("there is no such file".to_owned()))
}

/// Relative addresses of the page need the slash.
pub(super) async fn add_slash(State(dashboard): State<Arc<Dashboard>>) -> Response {
    (StatusCode::PERMANENT_REDIRECT, [(LOCATION, dashboard.options.base.to_string())]).into_response()
}

impl Asset {
    fn response(&self, headers: &HeaderMap) -> Response {
        let has = |name, wanted: &str| {
            let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
            values
                .flat_map(|value| value.split(','))
                .any(|value| value.split(';').next().map(str::trim) == Some(wanted))
        };
        let common = [(ETAG, self.tag), (CACHE_CONTROL, "no-cache"), (VARY, "accept-encoding")];
        if has(IF_NONE_MATCH, self.tag) {
            return (StatusCode::NOT_MODIFIED, common).into_response();
        }
        let media_type = [(CONTENT_TYPE, self.media_type)];
        if has(ACCEPT_ENCODING, "gzip") {
            return (common, media_type, [(CONTENT_ENCODING, "gzip")], self.gzip).into_response();
        }
        let mut content = Vec::new();
        match GzDecoder::new(self.gzip).read_to_end(&mut content) {
            Ok(_) => (common, media_type, content).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;
    use flate2::Compression;
    use flate2::read::GzEncoder;

    #[tokio::test]
    async fn an_asset_is_sent_compressed_or_not_or_not_again() {
        let mut gzip = Vec::new();
        GzEncoder::new(&b"let a = 1;"[..], Compression::best()).read_to_end(&mut gzip).unwrap();
        let gzip = gzip.leak();
        let asset = Asset { name: "app.js", media_type: "text/javascript", tag: "\"1f\"", gzip };
        let response = async |fields: &[(&'static str, &'static str)]| {
            let headers = fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            let response = asset.response(&headers.collect());
            let encoding = response.headers().get(CONTENT_ENCODING).map(|value| value.to_str().unwrap().to_owned());
            assert_eq!(response.headers()[ETAG], "\"1f\"");
            (response.status().as_u16(), encoding, to_bytes(response.into_body(), 1000).await.unwrap().to_vec())
        };
        let plain = (200, None, b"let a = 1;".to_vec());
        assert_eq!(response(&[]).await, plain);
        assert_eq!(response(&[("accept-encoding", "br, gzip-not")]).await, plain);
        let compressed = (200, Some("gzip".to_owned()), gzip.to_vec());
        assert_eq!(response(&[("accept-encoding", "br, gzip;q=0.5")]).await, compressed);
        assert_eq!(response(&[("if-none-match", "\"2f\"")]).await, plain);
        assert_eq!(response(&[("if-none-match", "\"2f\", \"1f\"")]).await, (304, None, Vec::new()));
    }
}
