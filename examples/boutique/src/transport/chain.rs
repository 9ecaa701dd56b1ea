//! The memory of a chain: messages are written where others read them, and read where others wrote them.

use crate::calls::{Body, Calls, Failure, Outcome, Payload, Request};
use crate::function::Function;
use bytes::Bytes;
use hyper::header::{COOKIE, HeaderName, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery};
use hyper::{Method, StatusCode};
use leno_sdk::{Answer, Buffer, Call, Chain, ConnectError, OnFull, RequestHead, ResponseHead};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

/// Serves until the node ends the link, with so many threads, each of which handles one call at a time.
pub fn serve(function: &Function, threads: usize) -> Result<(), ConnectError> {
    let chain = Chain::from_environment()?;
    chain.set_on_full(OnFull::Wait);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(call) = chain.next() {
                    // If there is no answer, the caller is told so.
                    let _ = handle(function, &chain, call);
                }
            });
        }
    });
    Ok(())
}

fn handle(function: &Function, chain: &Chain, call: Call) -> Result<(), leno_sdk::Error> {
    let call = Arc::new(call);
    let outcome = {
        let cookie = call.headers().get(COOKIE).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = Bytes::from_owner(OfCall(call.clone()));
        let request = Request { method: call.method().clone(), path: call.path().to_owned(), cookie, body };
        let calls = ForCall { chain, call: &call };
        at_once(function.handle(&calls, request))
    };
    match outcome {
        Outcome::Reply(reply) => {
            let mut head = ResponseHead::new(reply.status);
            for (name, value) in reply.headers {
                if let Ok(value) = HeaderValue::from_str(&value) {
                    head.headers.append(HeaderName::from_static(name), value);
                }
            }
            match written(chain, reply.body)? {
                Some(buffer) => alone(call)?.answer(head, buffer),
                None => alone(call)?.answer_with(head, |body| body.into()),
            }
        }
        Outcome::Forward { callee, path, body } => {
            let head = head(callee, path);
            match written(chain, body)? {
                Some(buffer) => alone(call)?.forward(&head, buffer),
                None => alone(call)?.forward_with(&head, |body| body.into()),
            }
        }
    }
}

/// A call that nothing refers to any more: the outcome may have had a part of its body, and is written by now.
fn alone(call: Arc<Call>) -> Result<Call, leno_sdk::Error> {
    Arc::into_inner(call).ok_or(leno_sdk::Error::Failed)
}

/// A body in the arena; `None`: it is the call's, and stays where it is.
fn written(chain: &Chain, body: Body) -> Result<Option<Buffer>, leno_sdk::Error> {
    match body {
        Body::Same => Ok(None),
        other => write(chain, other.payload(&Bytes::new())).map(Some),
    }
}

fn write(chain: &Chain, payload: Payload<'_>) -> Result<Buffer, leno_sdk::Error> {
    match payload {
        Payload::Bytes(bytes) => chain.copy(bytes),
        Payload::Message(message) => {
            let mut buffer = chain.buffer(message.length())?;
            message.write(&mut buffer);
            Ok(buffer)
        }
    }
}

fn head(callee: &'static str, path: &'static str) -> RequestHead {
    RequestHead::new(Method::POST, Authority::from_static(callee), PathAndQuery::from_static(path))
}

/// The way to others, for the sake of a call.
struct ForCall<'a> {
    chain: &'a Chain,
    call: &'a Call,
}

impl Calls for ForCall<'_> {
    async fn call(&self, callee: &'static str, path: &'static str, payload: Payload<'_>) -> Result<Bytes, Failure> {
        let ask = || {
            let body = write(self.chain, payload)?;
            self.chain.call(Some(self.call), &head(callee, path), body)?.wait()
        };
        let answer = ask().map_err(|error| Failure::unreachable(callee, error))?;
        match answer.status() {
            StatusCode::OK => Ok(Bytes::from_owner(OfAnswer(answer))),
            status => Err(Failure::Status { callee, status }),
        }
    }

    async fn wait(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// Runs what waits by blocking its thread, and so is done when it has begun.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
        thread::yield_now();
    }
}

/// The body of a call, which holds it.
struct OfCall(Arc<Call>);

impl AsRef<[u8]> for OfCall {
    fn as_ref(&self) -> &[u8] {
        self.0.body().bytes()
    }
}

/// The body of an answer, which holds it.
struct OfAnswer(Answer);

impl AsRef<[u8]> for OfAnswer {
    fn as_ref(&self) -> &[u8] {
        self.0.body().bytes()
    }
}
