//! Runs one permitted request in a separate instance.

use super::body::lend;
use super::outgoing::Caller;
use crate::pipeline::exchange::Exchange;
use crate::state::function::{EVENT, FunctionEntry};
use crate::state::instances::Lease;
use http::uri::Scheme;
use http::{Request, Response, StatusCode, request};
use http_body::Body as _;
use leno_http::body::{Body, InstanceBody};
use leno_http::failure::Failure;
use leno_http::head;
use leno_policy::trace::TraceContext;
use leno_runtime::schedule;
use leno_sandbox::component::{self, Program};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A running instance. If the whole response was read before this is dropped, the instance may go
/// on for a while; otherwise it ends at once.
#[derive(Debug)]
pub(crate) struct Running {
    /// Whether the response's body was read to its end.
    over: Rc<Cell<bool>>,
    left: Option<oneshot::Sender<bool>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(left) = self.left.take() {
            // This fails only if the run has already ended.
            let _ = left.send(self.over.get());
        }
    }
}

/// Starts an instance for a request, and waits for the head of its response.
pub(crate) async fn start(
    exchange: &Exchange,
    entry: &Arc<FunctionEntry>,
    (program, grace): (&Program, Duration),
    lease: Lease,
    trace: Option<TraceContext>,
    (mut head, body): (Box<request::Parts>, Body),
) -> Result<(Response<Body>, Running), Failure> {
    let caller = Caller::new(exchange, entry, trace, &head.headers);
    let scheme = if exchange.scheme == "https" { Scheme::HTTPS } else { Scheme::HTTP };
    head::into_http2(&mut head, &scheme)?;
    let request = Request::from_parts(*head, lend(body));
    let (answer, answered) = oneshot::channel();
    let (left, leaves) = oneshot::channel();
    let over = Rc::new(Cell::new(false));
    let running = Running { over: over.clone(), left: Some(left) };
    let run = serve(entry.clone(), (program.clone(), grace), request, caller, answer, leaves, lease);
    schedule::spawn_for(entry.class, run);
    let response = match answered.await {
        Ok(Ok(response)) => response,
        Ok(Err(component::Failure::Crowded)) => return Err(Failure::Overflow),
        Ok(Err(failure)) => return Err(Failure::Reset { cause: format!("the component {failure}"), refused: false }),
        // A run that gives no answer was dropped, and only the end of this thread drops a run.
        Err(_) => return Err(Failure::Reset { cause: "the node is ending".to_owned(), refused: false }),
    };
    let status = response.status();
    if status.is_informational() {
        return Err(Failure::Reset { cause: format!("the component answered with status {status}"), refused: false });
    }
    let bodiless = exchange.head_only || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let response = if bodiless || response.body().is_end_stream() {
        over.set(true);
        response.map(|_| Body::empty())
    } else {
        response.map(|body| Body::from(InstanceBody::new(body, over)))
    };
    Ok((response, running))
}

/// Runs the instance, and holds the lease until the run ends.
async fn serve(
    entry: Arc<FunctionEntry>,
    (program, grace): (Program, Duration),
    request: Request<component::Body>,
    caller: Caller,
    answer: oneshot::Sender<Result<Response<component::Answer>, component::Failure>>,
    leaves: oneshot::Receiver<bool>,
    lease: Lease,
) {
    let (worker, request_id) = (caller.worker.clone(), caller.request_id());
    let run = program.run(request, Box::new(caller.outgoing()), answer);
    tokio::select! {
        biased;
        ended = run => if let Err(failure) = ended {
            worker.recorder.metrics().component_failure(&entry.name, failure.label());
            if entry.may_log(EVENT) {
                tracing::warn!(function = %entry.name, request_id = ?request_id, "the component {failure}");
            }
        },
        () = left_alone(leaves, grace) => {}
    }
    drop(lease);
}

/// Completes when no exchange waits for the run any more. If the response was whole, also waits for
/// `grace`.
async fn left_alone(leaves: oneshot::Receiver<bool>, grace: Duration) {
    if leaves.await.unwrap_or(false) {
        tokio::time::sleep(grace).await;
    }
}
