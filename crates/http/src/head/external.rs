//! Heads of requests to external services.

use super::TRACE_CONTEXT;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request;
use http::uri::{PathAndQuery, Uri};
use leno_policy::reserved::{ReservedField, is_same, reserved};

/// Sets a field whose value the function must not choose. Removes all fields that a server could
/// take for it.
pub fn set_alone(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    let twin = |other: &&HeaderName| is_same(other.as_str().as_bytes(), name.as_str().as_bytes());
    let twins: Vec<HeaderName> = headers.keys().filter(twin).cloned().collect();
    for twin in twins {
        headers.remove(twin);
    }
    headers.insert(name, value);
}

/// Prepares the head of a request that leaves the mesh: it is for `authority`, and reveals nothing
/// of the mesh. `traced`: it keeps trace context and request ID.
pub fn leave_mesh(head: &mut request::Parts, authority: &str, traced: bool) {
    let of_the_mesh = |name: &HeaderName| match reserved(name.as_str().as_bytes()) {
        Some(ReservedField::RequestId) => !traced,
        Some(ReservedField::Mesh | ReservedField::Client | ReservedField::Proxy) => true,
        // The function wrote it: the gateway has removed the client's own.
        Some(ReservedField::OtherProxy) => false,
        None => !traced && TRACE_CONTEXT.contains(name),
    };
    let removed: Vec<HeaderName> = head.headers.keys().filter(|name| of_the_mesh(name)).cloned().collect();
    for name in removed {
        head.headers.remove(name);
    }
    // The scheme and authority of a request inside the mesh mean nothing outside.
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    head.uri = Uri::from(path);
    if let Ok(host) = HeaderValue::from_str(authority) {
        head.headers.insert(header::HOST, host);
    }
}
