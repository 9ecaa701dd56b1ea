//! Puts a permitted request on the link of an instance.

use super::body::{NoBody, copy_in, most};
use crate::pipeline::exchange::Exchange;
use crate::state::function::FunctionEntry;
use crate::state::in_flight::InFlight;
use http::header::{CONTENT_LENGTH, HOST};
use http::uri::PathAndQuery;
use http::{Response, StatusCode, request};
use leno_http::body::{Body, SharedBody};
use leno_http::failure::Failure;
use leno_http::head;
use leno_shm::head::RequestHead;
use leno_shm::{Answer, CallError, Link, SendError};
use std::sync::Arc;

/// Gives a request to an instance, and waits for its answer. If the instance forwards the request,
/// waits for the answer of the other function.
pub(in crate::pipeline) async fn deliver(
    exchange: &Exchange,
    entry: &FunctionEntry,
    link: &Link,
    in_flight: Arc<InFlight>,
    (head, mut body): (Box<request::Parts>, Body),
) -> Result<Response<Body>, Failure> {
    let head = request_head(*head)?;
    let shared = body.shared().filter(|shared| shared.domain() == link.domain()).cloned();
    let call = match shared {
        Some(shared) => {
            let call = link.call(&head, Some(&shared), Some(in_flight)).map_err(unsent)?;
            drop(body.passed_on(&shared));
            call
        }
        None => {
            let most = most(entry.config.chain.as_ref());
            let copied = copy_in(&mut body, most, |space| link.writer(space)).await.map_err(unread)?;
            link.call(&head, copied.body.as_ref(), Some(in_flight)).map_err(unsent)?
        }
    };
    let Answer { head, body } = call.await.map_err(unanswered)?;
    if head.status.is_informational() {
        let cause = format!("the instance answered with status {}", head.status);
        return Err(Failure::Reset { cause, refused: false });
    }
    let bodiless = exchange.head_only || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let body = body.filter(|_| !bodiless).map_or_else(Body::empty, |body| Body::from(SharedBody::new(body)));
    let mut response = Response::new(body);
    (*response.status_mut(), *response.headers_mut()) = (head.status, head.headers);
    Ok(response)
}

fn request_head(mut head: request::Parts) -> Result<RequestHead, Failure> {
    let authority = head::authority(&head).parse().map_err(|_| head::HeadError::Authority)?;
    // The message itself names its recipient and the length of its body.
    head.headers.remove(CONTENT_LENGTH);
    head.headers.remove(HOST);
    let path = head.uri.into_parts().path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
    Ok(RequestHead { method: head.method, authority, path, headers: head.headers })
}

fn unread(error: NoBody) -> Failure {
    match error {
        NoBody::Broken(_) => Failure::ClientGone,
        NoBody::Full(full) => Failure::NoMemory(full.to_string()),
        NoBody::TooLong(most) => Failure::TooLong(most),
    }
}

fn unsent(error: SendError) -> Failure {
    match error {
        SendError::Full(_) | SendError::HoldsTooMuch | SendError::Busy => Failure::NoMemory(error.to_string()),
        SendError::Ended(_) => Failure::Connect { cause: error.to_string() },
        SendError::OtherDomain | SendError::Head(_) => Failure::Reset { cause: error.to_string(), refused: false },
    }
}

fn unanswered(error: CallError) -> Failure {
    Failure::Reset { cause: error.to_string(), refused: false }
}
