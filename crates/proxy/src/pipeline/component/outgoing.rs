//! Carries the calls that an instance makes. Each call is a separate exchange with the instance's
//! function as the caller, on the same thread, without a socket or a credential. The instance
//! handles exactly one request, so every call belongs to that request.

use super::body::lend;
use crate::pipeline::exchange::{Arrival, Exchange, Origin};
use crate::pipeline::worker::{PinnedSnapshot, Worker};
use crate::state::function::FunctionEntry;
use crate::state::in_flight::InFlight;
use http::{HeaderMap, HeaderValue, Request, Response};
use leno_http::body::{Body, InstanceBody};
use leno_http::peer::Peer;
use leno_policy::trace::TraceContext;
use leno_runtime::schedule;
use leno_sandbox::component::{self, Outbound, Sending, StreamError};
use send_wrapper::SendWrapper;
use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The function that an instance calls as, and the request that it calls for.
#[derive(Clone)]
pub(super) struct Caller {
    pub worker: Rc<Worker>,
    /// The snapshot of the request. It also applies to the calls made for that request.
    snapshot: Rc<PinnedSnapshot>,
    entry: Arc<FunctionEntry>,
    in_flight: Arc<InFlight>,
}

impl Caller {
    /// The caller for the request of `exchange`. `trace` and `headers` are those that the instance
    /// is given.
    pub(super) fn new(
        exchange: &Exchange,
        entry: &Arc<FunctionEntry>,
        trace: Option<TraceContext>,
        headers: &HeaderMap,
    ) -> Self {
        Self {
            worker: exchange.worker.clone(),
            snapshot: exchange.snapshot.clone(),
            entry: entry.clone(),
            in_flight: Arc::new(InFlight::new(&exchange.request_id, trace, headers).retried(exchange.is_retry)),
        }
    }

    pub(super) fn request_id(&self) -> HeaderValue {
        self.in_flight.request_id.clone()
    }

    pub(super) fn outgoing(self) -> impl Outbound {
        OutgoingCalls(SendWrapper::new(self))
    }

    /// Makes one call, up to the head of its response.
    async fn call(self, request: Request<component::Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let mut head = Box::new(head);
        let body = Body::from(InstanceBody::new(body, Rc::new(Cell::new(false))));
        let peer =
            Peer { identity: Some(self.entry.identity.clone()), address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) };
        let origin = Origin::Outbound(self.entry, None);
        let arrival = Arrival::new(self.worker, self.snapshot, origin, peer, Some(self.in_flight));
        match Exchange::call(arrival, &mut head) {
            (exchange, Ok(())) => {
                let body = body.count_in(exchange.record.meter());
                exchange.run(head, body, None).await
            }
            (exchange, Err(malformed)) => exchange.fail(malformed.into()),
        }
    }
}

/// The engine requires `Send`. This value never leaves its thread; if it did, the wrapper would
/// panic.
struct OutgoingCalls(SendWrapper<Caller>);

impl Outbound for OutgoingCalls {
    fn send(&mut self, request: Request<component::Body>) -> Sending {
        let caller = Caller::clone(&self.0);
        let (mut answer, answered) = oneshot::channel();
        // The call runs as a task of the worker, because the scheduler does not know the engine's
        // tasks.
        schedule::spawn(async move {
            let response = tokio::select! {
                biased;
                () = answer.closed() => return,
                response = Box::pin(caller.call(request)) => response,
            };
            let _ = answer.send(SendWrapper::new(response));
        });
        Box::pin(async move {
            let response = answered.await.map_err(|_| StreamError("the node is ending".to_owned()))?;
            Ok(response.take().map(lend))
        })
    }
}
