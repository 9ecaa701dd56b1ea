//! Calls that an instance makes on its link. Each is an exchange of its own with the instance's function as the caller.

use super::body::copy_in;
use crate::corridor::exchange::{Exchange, Origin};
use crate::corridor::worker::{Pinned, Worker};
use crate::http::body::{Body, SharedBody};
use crate::http::peer::Peer;
use crate::runtime::schedule::{self, Class};
use crate::state::credential::{Caller, InFlight};
use crate::state::function::FunctionEntry;
use http::uri::{Parts, Scheme};
use http::{Request, Response, StatusCode, Uri, Version, request};
use leno_chain::{Incoming, Link, RequestHead, ResponseHead};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

/// Carries the calls that come on a link, until the link ends.
pub(crate) async fn serve(worker: Rc<Worker>, caller: Arc<Caller>, link: Arc<Link>) {
    let class = Class::of(&caller.function.to_string());
    while let Some(call) = link.next().await {
        schedule::spawn_for(class, carry(worker.clone(), caller.clone(), link.clone(), call));
    }
}

/// Carries one call, and answers it.
async fn carry(worker: Rc<Worker>, caller: Arc<Caller>, link: Arc<Link>, call: Incoming) {
    // A function that was removed and handles nothing any more calls nobody.
    let Some((snapshot, entry)) = worker.snapshot_with(&caller.function) else { return };
    let Incoming { head, body, parent, mut reply } = call;
    let parent = parent.and_then(|parent| parent.downcast().ok()).or_else(|| caller.only_in_flight());
    let origin = Origin::Outbound(entry.clone(), Some(caller));
    let response = tokio::select! {
        biased;
        () = reply.cancelled() => return,
        response = Box::pin(call_as(worker, snapshot, entry, origin, parent, head, body)) => response,
    };
    let (head, mut body) = response.into_parts();
    let head = ResponseHead { status: head.status, headers: head.headers };
    let (shared, held) = match body.shared().filter(|shared| shared.domain() == link.domain()).cloned() {
        Some(shared) => {
            let held = body.passed_on(&shared);
            (Some(shared), held)
        }
        None => match copy_in(&link, &mut body).await {
            Ok(shared) => (shared, None),
            // The record says which end broke off; the caller must not take a part for the whole.
            Err(_) => return reply.answer(ResponseHead::new(StatusCode::BAD_GATEWAY), None),
        },
    };
    reply.answer(head, shared);
    drop(held);
}

/// Carries a call whose response answers `exchange`: the instance that was given the request has forwarded it.
pub(super) async fn forwarded(
    exchange: &Exchange,
    entry: &Arc<FunctionEntry>,
    parent: &Arc<InFlight>,
    (head, body): (RequestHead, Option<leno_chain::Body>),
) -> Response<Body> {
    let origin = Origin::Outbound(entry.clone(), None);
    let (worker, snapshot) = (exchange.worker.clone(), exchange.snapshot.clone());
    call_as(worker, snapshot, entry.clone(), origin, Some(parent.clone()), head, body).await
}

async fn call_as(
    worker: Rc<Worker>,
    snapshot: Rc<Pinned>,
    entry: Arc<FunctionEntry>,
    origin: Origin,
    parent: Option<Arc<InFlight>>,
    head: RequestHead,
    body: Option<leno_chain::Body>,
) -> Response<Body> {
    let peer = Peer { identity: Some(entry.identity.clone()), address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) };
    let mut head = Box::new(parts(head));
    let body = body.map_or_else(Body::empty, |body| Body::from(SharedBody::new(body)));
    match Exchange::call(worker, snapshot, origin, peer, parent, &mut head) {
        (exchange, Ok(())) => {
            let body = body.count_in(exchange.record.meter());
            exchange.run(head, body).await
        }
        (exchange, Err(malformed)) => exchange.fail(malformed.into()),
    }
}

/// The head as one of HTTP/2, which has the same parts.
fn parts(RequestHead { method, authority, path, headers }: RequestHead) -> request::Parts {
    let mut parts = Parts::default();
    (parts.scheme, parts.authority, parts.path_and_query) = (Some(Scheme::HTTP), Some(authority), Some(path));
    let (mut head, ()) = Request::new(()).into_parts();
    // All three parts are there, which is what makes them an address.
    head.uri = Uri::from_parts(parts).unwrap_or_default();
    (head.method, head.version, head.headers) = (method, Version::HTTP_2, headers);
    head
}
