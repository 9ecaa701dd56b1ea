//! Puts a permitted request on the link of an instance.

use super::body::{NoBody, copy_in};
use super::outgoing;
use crate::corridor::exchange::Exchange;
use crate::http::body::{Body, SharedBody};
use crate::http::failure::Failure;
use crate::http::head;
use crate::state::credential::InFlight;
use crate::state::function::FunctionEntry;
use http::uri::PathAndQuery;
use http::{HeaderMap, Response, StatusCode, request};
use leno_chain::{CallError, Link, Outcome, RequestHead};
use std::sync::Arc;

/// Gives a request to an instance, and waits for its answer, or for that of the function to which it has forwarded the request.
pub(in crate::corridor) async fn deliver(
    exchange: &Exchange,
    entry: &Arc<FunctionEntry>,
    link: &Arc<Link>,
    in_flight: &Arc<InFlight>,
    (head, mut body): (Box<request::Parts>, Body),
) -> Result<Response<Body>, Failure> {
    let (shared, held) = match body.shared().filter(|shared| shared.domain() == link.domain()).cloned() {
        Some(shared) => {
            let held = body.passed_on(&shared);
            (Some(shared), held)
        }
        None => (copy_in(link, &mut body).await.map_err(unread)?, None),
    };
    let outcome = link.call(request_head(*head)?, shared, in_flight.clone()).await.map_err(failed);
    drop(held);
    let answer = match outcome? {
        Outcome::Answered(answer) => answer,
        Outcome::Forwarded(call) => return Ok(Box::pin(outgoing::forwarded(exchange, entry, call)).await),
    };
    let status = answer.head.status;
    if status.is_informational() {
        let cause = format!("the instance answered with status {status}");
        return Err(Failure::Reset { cause, refused: false });
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    *response.headers_mut() = answer.head.headers;
    let bodiless = exchange.head_only || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if let Some(shared) = answer.body.filter(|_| !bodiless) {
        *response.body_mut() = Body::from(SharedBody::new(shared));
    }
    Ok(response)
}

fn request_head(mut head: request::Parts) -> Result<RequestHead, Failure> {
    let authority = head::authority(&head).parse().map_err(|_| head::Malformed::Authority)?;
    // The message says itself how long its body is.
    head.headers.remove(http::header::CONTENT_LENGTH);
    head.headers.remove(http::header::HOST);
    let path = head.uri.into_parts().path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
    Ok(RequestHead { method: head.method, authority, path, headers: head.headers })
}

fn unread(error: NoBody) -> Failure {
    match error {
        NoBody::Broken(_) => Failure::ClientGone,
        NoBody::Full(full) => Failure::NoMemory(full.to_string()),
    }
}

fn failed(error: CallError) -> Failure {
    match error {
        CallError::Full(full) => Failure::NoMemory(full.to_string()),
        error => Failure::Reset { cause: error.to_string(), refused: false },
    }
}
