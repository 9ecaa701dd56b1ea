//! Carries the calls that an instance makes on its link. Each call is a separate exchange with the
//! instance's function as the caller.

use super::body::{copy_in, most};
use super::direct;
use crate::pipeline::exchange::{Arrival, Exchange, Origin};
use crate::pipeline::worker::{PinnedSnapshot, Worker};
use crate::state::credential::Caller;
use crate::state::function::FunctionEntry;
use crate::state::in_flight::InFlight;
use http::uri::{Parts, Scheme};
use http::{Request, Response, StatusCode, Uri, Version, request};
use leno_http::body::{Body, SharedBody};
use leno_http::peer::Peer;
use leno_runtime::schedule::{self, Class};
use leno_shm::head::{RequestHead, ResponseHead};
use leno_shm::{Incoming, IncomingCall, Parent, Reply, SendError};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

/// Carries the calls that come on a link, until the link ends.
pub(crate) async fn serve(worker: Rc<Worker>, caller: Arc<Caller>, mut link: Incoming) {
    let class = Class::of(&caller.function.to_string());
    while let Some(call) = link.next().await {
        schedule::spawn_for(class, carry(worker.clone(), caller.clone(), call));
    }
}

/// Carries one call, and answers it.
async fn carry(worker: Rc<Worker>, caller: Arc<Caller>, call: IncomingCall) {
    // A function that was removed, and that has no request in flight, may make no calls.
    let Some((snapshot, entry)) = worker.snapshot_with(&caller.function) else { return };
    let most = most(entry.config.chain.as_ref());
    let IncomingCall { head, body, parent, mut reply, .. } = call;
    let is_direct = entry.config.chain.as_ref().is_some_and(|chain| chain.direct);
    let host = is_direct.then(|| head.authority.host().to_owned());
    let parent = parent.and_then(in_flight).or_else(|| caller.only_in_flight());
    let exchange = Box::pin(exchange(worker.clone(), (snapshot, entry), caller.clone(), parent, head, body));
    let response = tokio::select! {
        biased;
        () = reply.cancelled() => return,
        response = exchange => response,
    };
    answer(&mut reply, response, most).await;
    if let Some(host) = host {
        direct::consider(&worker, &caller, &host);
    }
}

/// The request that a call was made for.
fn in_flight(parent: Parent) -> Option<Arc<InFlight>> {
    parent.context?.downcast().ok()
}

async fn exchange(
    worker: Rc<Worker>,
    (snapshot, entry): (Rc<PinnedSnapshot>, Arc<FunctionEntry>),
    caller: Arc<Caller>,
    parent: Option<Arc<InFlight>>,
    head: RequestHead,
    body: Option<leno_shm::Body>,
) -> Response<Body> {
    let peer = Peer { identity: Some(entry.identity.clone()), address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) };
    let origin = Origin::Outbound(entry, Some(caller));
    let mut head = Box::new(parts(head));
    let body = body.map_or_else(Body::empty, |body| Body::from(SharedBody::new(body)));
    match Exchange::call(Arrival::new(worker, snapshot, origin, peer, parent), &mut head) {
        (exchange, Ok(())) => {
            let body = body.count_in(exchange.record.meter());
            exchange.run(head, body, None).await
        }
        (exchange, Err(malformed)) => exchange.fail(malformed.into()),
    }
}

/// Answers with the callee's response. The instance must not take a part of a body for the whole.
/// If the proxy cannot get the whole body, it answers with an error status.
async fn answer(reply: &mut Reply, response: Response<Body>, most: u64) {
    let (head, mut body) = response.into_parts();
    let mut head = ResponseHead { status: head.status, headers: head.headers };
    let shared = body.shared().cloned();
    if let Some(shared) = shared {
        match reply.answer(&head, Some(&shared)) {
            Ok(()) => return drop(body.passed_on(&shared)),
            Err(SendError::OtherDomain) => {}
            Err(error) => return failed(reply, error),
        }
    }
    let sent = match copy_in(&mut body, most, |space| reply.writer(space)).await {
        Ok(copied) => {
            head.headers.extend(copied.status);
            reply.answer(&head, copied.body.as_ref())
        }
        Err(error) => return failed(reply, error),
    };
    if let Err(error) = sent {
        failed(reply, error);
    }
}

fn failed(reply: &mut Reply, error: impl std::fmt::Display) {
    tracing::debug!(%error, "an answer cannot be passed on");
    // If this cannot be sent either, dropping the reply reports the failure.
    let _ = reply.answer(&ResponseHead::new(StatusCode::BAD_GATEWAY), None);
}

/// The head as one of HTTP/2, which has the same parts.
fn parts(RequestHead { method, authority, path, headers }: RequestHead) -> request::Parts {
    let mut parts = Parts::default();
    (parts.scheme, parts.authority, parts.path_and_query) = (Some(Scheme::HTTP), Some(authority), Some(path));
    let (mut head, ()) = Request::new(()).into_parts();
    // The URI has all three parts, so it is valid.
    head.uri = Uri::from_parts(parts).unwrap_or_default();
    (head.method, head.version, head.headers) = (method, Version::HTTP_2, headers);
    head
}
