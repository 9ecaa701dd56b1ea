//! One request in one instance.

use super::failure::Failure;
use super::host::Host;
use super::outbound::{Body, Outbound, StreamError};
use super::program::Program;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::oneshot;
use wasmtime::{Store, UpdateDeadline};
use wasmtime_wasi_http::p2::bindings::http::types::Scheme;
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;
use wasmtime_wasi_http::{Error, WasiHttpView};

/// The limit of bytes that an instance passes to the host in one call.
const MOST_HANDED_OVER: usize = 2 * 1024 * 1024;
/// The limit of handles of an instance.
const MOST_HANDLES: usize = 4096;

/// The sender of the answer. The first result, an answer or a failure, takes and uses it.
type Outlet = Arc<Mutex<Option<oneshot::Sender<Result<Response<Answer>, Failure>>>>>;

/// Why a run failed, for a body that the run did not finish.
type RunFailure = Arc<OnceLock<Failure>>;

impl Program {
    /// Runs a fresh instance for a request, to its end. Sends its answer as soon as the head is
    /// there, or the reason why there is none. The result is that of the whole run, which may end
    /// long after. Dropping the future ends the instance.
    ///
    /// Must be polled inside of a single-threaded tokio runtime, on which `outbound` is called too.
    pub async fn run(
        &self,
        request: Request<Body>,
        outbound: Box<dyn Outbound>,
        answer: oneshot::Sender<Result<Response<Answer>, Failure>>,
    ) -> Result<(), Failure> {
        let (outlet, ended): (Outlet, RunFailure) = (Arc::new(Mutex::new(Some(answer))), RunFailure::default());
        let mut store = self.store(outbound);
        let result = {
            let clock = &self.component.0.engine.clock;
            let mut serving = pin!(self.serve(&mut store, request, outlet.clone(), ended.clone()));
            poll_fn(|cx| {
                let _counting = clock.count();
                serving.as_mut().poll(cx)
            })
            .await
        };
        let result = result.map_err(|wrong| match wrong {
            Wrong::Engine(error) => Failure::of(&error, store.data()),
            Wrong::Failure(failure) => failure,
        });
        // The failure is set before the store is dropped, and with it the write ends of the body:
        // else a truncated body would seem to be complete.
        if let Err(failure) = &result {
            let _ = ended.set(failure.clone());
        }
        if let Some(answer) = outlet.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let failure = result.clone().err().unwrap_or(Failure::Silent);
            let _ = answer.send(Err(failure.clone()));
            return Err(failure);
        }
        result
    }

    fn store(&self, outbound: Box<dyn Outbound>) -> Store<Host> {
        let engine = self.component.0.engine.clone();
        let mut store = Store::new(&engine.engine, Host::new(&self.settings, outbound));
        store.limiter(|host| host);
        store.set_hostcall_fuel(MOST_HANDED_OVER);
        store.set_max_component_handles(MOST_HANDLES);
        // A computation that is longer than a tick takes turns with the other tasks of the thread,
        // which are short.
        store.set_epoch_deadline(2);
        store.epoch_deadline_callback(move |_| {
            engine.clock.hurry();
            Ok(UpdateDeadline::Yield(1))
        });
        store
    }

    async fn serve(
        &self,
        store: &mut Store<Host>,
        request: Request<Body>,
        outlet: Outlet,
        ended: RunFailure,
    ) -> Result<(), Wrong> {
        let scheme = if request.uri().scheme_str() == Some("https") { Scheme::Https } else { Scheme::Http };
        let request = request.map(|body| body.map_err(|_: StreamError| Error::ConnectionTerminated));
        let shown = store.data_mut().http().new_incoming_request(scheme, request);
        let shown = shown.map_err(|error| Wrong::Failure(Failure::Request(format!("{error:#}"))))?;
        let given = store.data_mut().http().new_response_outparam_from_callback(move |response| {
            let Some(outlet) = outlet.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
            let answer = response
                .map(|response| response.map(|body| Answer { body, ended }))
                .map_err(|code| Failure::Error(format!("{code:?}")));
            // A receiver that does not wait any more has dropped the run, or is about to.
            let _ = outlet.send(answer);
        })?;
        let instance = self.component.0.ready.instantiate_async(&mut *store).await?;
        instance.wasi_http_incoming_handler().call_handle(&mut *store, shown, given).await?;
        Ok(())
    }
}

/// The error of a run, before the store has been searched for its cause.
enum Wrong {
    Engine(wasmtime::Error),
    Failure(Failure),
}

impl From<wasmtime::Error> for Wrong {
    fn from(error: wasmtime::Error) -> Self {
        Self::Engine(error)
    }
}

/// The body of an answer, which the instance writes while it runs.
pub struct Answer {
    body: HyperOutgoingBody,
    ended: RunFailure,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(match (frame, self.ended.get()) {
            (Some(frame), _) => Some(frame.map_err(|error| StreamError(error.to_string()))),
            (None, Some(failure)) => Some(Err(StreamError(format!("the component {failure}")))),
            (None, None) => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Answer")
    }
}
