//! The dashboard's page, at the listener of the API.
//!
//! A session has the rights of the token that began it: each of its questions passes the API's own
//! router with that token, and ends with the token.

use super::admission::Peer;
use super::routes;
use super::service::Service;
use super::unread;
use anyhow::Result;
use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use leno_dashboard::source::{Source, SourceKind};
use leno_dashboard::web::{Dashboard, Options, SignIn, SignedIn};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zeroize::Zeroizing;

/// The path of the page.
const BASE: &str = "/dashboard/";
/// Largest answer of the API, in bytes.
const LARGEST: usize = 64 << 20;

/// The page's web server.
pub struct Page(Arc<Dashboard>);

/// The page of a control plane whose API has this address for users.
pub fn page(service: &Arc<Service>, url: &str) -> Result<Page> {
    let api = routes::router(service.clone());
    let certificate = service.api_certificate.clone();
    let url_host = url.parse().ok().and_then(|url: axum::http::Uri| url.host().map(str::to_lowercase));
    let (service, url) = (service.clone(), Arc::<str>::from(url));
    let source_of = move |token: &str| {
        let caller = service.caller(Some(token), "").ok()?;
        let bearer = TokenBearer {
            service: service.clone(),
            api: api.clone(),
            url: url.clone(),
            token: Zeroizing::new(token.to_owned()),
            tenant: caller.tenant(),
            rights: format!("{:?} {:?}", caller.role, caller.namespaces),
        };
        Some(Arc::new(bearer) as Arc<dyn Source>)
    };
    let options = Options {
        base: BASE.parse()?,
        sign_in: SignIn::Token(Box::new(source_of)),
        is_own_host: Box::new(move |host| {
            let host = host.to_lowercase();
            url_host.as_ref() == Some(&host) || certificate.is_for(&host)
        }),
        secure: true,
    };
    Ok(Page(Dashboard::new(options)?))
}

impl Page {
    /// The paths of the page. A client with a session is one with a valid token.
    pub(super) fn router(&self) -> Router {
        self.0.router().layer(from_fn(unread::read_rest)).layer(from_fn(note_session))
    }
}

async fn note_session(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().cloned();
    let response = next.run(request).await;
    if let Some(peer) = peer.filter(|_| response.extensions().get::<SignedIn>().is_some()) {
        peer.known.store(true, Ordering::Relaxed);
    }
    response
}

/// The bearer of a token, within the control plane.
struct TokenBearer {
    service: Arc<Service>,
    api: Router,
    url: Arc<str>,
    token: Zeroizing<String>,
    tenant: String,
    /// Answers of the API differ by these alone.
    rights: String,
}

#[async_trait]
impl Source for TokenBearer {
    fn kind(&self) -> SourceKind {
        SourceKind::ControlPlane
    }

    fn name(&self) -> String {
        self.url.to_string()
    }

    fn tenant(&self) -> String {
        self.tenant.clone()
    }

    fn rights_of_answers(&self) -> Option<String> {
        Some(self.rights.clone())
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), String> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(AUTHORIZATION, format!("Bearer {}", *self.token))
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(|error| error.to_string())?;
        let response = TowerToHyperService::new(self.api.clone()).call(request).await;
        let response = response.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = to_bytes(response.into_body(), LARGEST).await;
        Ok((status, body.map_err(|error| format!("the answer of the API: {error}"))?))
    }

    fn is_valid(&self) -> bool {
        self.service.caller(Some(&self.token), "").is_ok()
    }
}
