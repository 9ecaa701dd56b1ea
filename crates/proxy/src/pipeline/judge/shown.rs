//! The request and the response as extensions see them.

use http::{HeaderMap, Version, header, request, response};
use leno_http::peer::Peer;
use leno_policy::host::normal_authority;
use leno_sandbox::extension::{Headers, Request, Response};
use std::borrow::Cow;
use std::sync::Arc;

/// The facts that the runtime knows about a request besides its head.
pub(crate) struct Context<'a> {
    pub peer: &'a Peer,
    pub scheme: &'static str,
    pub port: u16,
    pub target: Arc<str>,
    pub id: Box<str>,
    pub bodiless: bool,
}

/// The request as an extension sees it: host and port as rules and routes read them, so that an
/// extension reads the host alike.
pub(crate) fn request(head: &request::Parts, context: &Context<'_>) -> Request {
    let authority = leno_http::head::authority(head);
    Request {
        method: head.method.as_str().to_owned(),
        scheme: context.scheme,
        authority: normal_authority(authority).unwrap_or(Cow::Borrowed(authority)).into_owned(),
        path: head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        protocol: match head.version {
            Version::HTTP_2 => "HTTP/2",
            Version::HTTP_10 => "HTTP/1.0",
            _ => "HTTP/1.1",
        },
        fields: fields(&head.headers),
        bodiless: context.bodiless,
        id: context.id.clone().into(),
        source: context.peer.address,
        port: context.port,
        identity: context.peer.identity.clone(),
        target: context.target.clone(),
    }
}

/// The response as an extension sees it.
pub(crate) fn response(head: &response::Parts) -> Response {
    Response { status: head.status.as_u16(), fields: fields(&head.headers), bodiless: false }
}

/// Header fields without `host`: modules get the authority separately.
fn fields(headers: &HeaderMap) -> Headers {
    let shown = headers.iter().filter(|(name, _)| *name != header::HOST);
    shown.map(|(name, value)| (name.as_str(), value.as_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_the_form_that_rules_compare() {
        let peer = Peer { identity: None, address: ([192, 0, 2, 1], 1).into() };
        for (sent, shown) in [
            ("Shop.Example.:8080", "shop.example:8080"),
            ("shop.example", "shop.example"),
            ("[2001:DB8:0::1]:80", "[2001:db8::1]:80"),
        ] {
            for (version, uri) in [(Version::HTTP_11, "/a".to_owned()), (Version::HTTP_2, format!("http://{sent}/a"))] {
                let built = http::Request::builder().version(version).uri(uri);
                let built = if version == Version::HTTP_2 { built } else { built.header("host", sent) };
                let (head, ()) = built.body(()).unwrap().into_parts();
                let (target, id) = ("shop/shop".into(), "1".into());
                let context = Context { peer: &peer, scheme: "http", port: 80, target, id, bodiless: true };
                assert_eq!(request(&head, &context).authority, shown, "{version:?}");
            }
        }
    }
}
