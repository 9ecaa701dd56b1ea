//! What extensions see of a request and of its response.

use crate::http::peer::Peer;
use http::{HeaderMap, Version, header, request, response};
use leno_sandbox::extension::{Headers, Request, Response};
use std::sync::Arc;

/// What the runtime knows about a request besides its head.
pub(crate) struct Context<'a> {
    pub peer: &'a Peer,
    pub scheme: &'static str,
    pub port: u16,
    pub target: Arc<str>,
    pub id: Box<str>,
    pub bodiless: bool,
}

/// The request as an extension sees it.
pub(crate) fn request(head: &request::Parts, context: &Context<'_>) -> Request {
    Request {
        method: head.method.as_str().to_owned(),
        scheme: context.scheme,
        authority: crate::http::head::authority(head).to_owned(),
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
