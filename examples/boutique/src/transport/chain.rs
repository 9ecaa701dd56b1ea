//! The shared memory of a chain: functions write messages where the receivers read them.

use crate::calls::{Body, Calls, Failure, Outcome, Payload, Request};
use crate::function::Function;
use bytes::Bytes;
use hyper::header::{COOKIE, HeaderName, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery};
use hyper::{Method, StatusCode};
use leno_sdk::{Answer, Buffer, Call, Chain, ConnectError, OnFull, RequestHead, ResponseHead};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// Concurrent calls: as many as the functions' documents allow.
const MOST: usize = 32;

/// Serves on this thread until the node ends the link.
pub fn serve(function: &Function) -> Result<(), ConnectError> {
    let chain = Chain::from_environment()?;
    chain.set_on_full(OnFull::Wait);
    // If the function does not answer, the library reports an error to the caller.
    chain.serve(MOST, async |call| drop(handle(function, &chain, call).await))?;
    Ok(())
}

async fn handle(function: &Function, chain: &Chain, call: Call) -> Result<(), leno_sdk::Error> {
    let call = Arc::new(call);
    let outcome = {
        let cookie = call.headers().get(COOKIE).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = Bytes::from_owner(OfCall(call.clone()));
        let request = Request { method: call.method().clone(), path: call.path().to_owned(), cookie, body };
        let calls = ForCall { chain, call: &call };
        function.handle(&calls, request).await
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

/// The call, after all references to it are gone: the outcome may have held a part of its body, but
/// is already written.
fn alone(call: Arc<Call>) -> Result<Call, leno_sdk::Error> {
    Arc::into_inner(call).ok_or(leno_sdk::Error::Failed)
}

/// A body in the arena; `None`: it is the call's body, which stays in its place.
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

/// Sends the calls that belong to a received call.
struct ForCall<'a> {
    chain: &'a Chain,
    call: &'a Call,
}

impl Calls for ForCall<'_> {
    async fn call(&self, callee: &'static str, path: &'static str, payload: Payload<'_>) -> Result<Bytes, Failure> {
        let ask = || self.chain.call(Some(self.call), &head(callee, path), write(self.chain, payload)?);
        let unreachable = |error| Failure::unreachable(callee, error);
        let answer = ask().map_err(unreachable)?.await.map_err(unreachable)?;
        match answer.status() {
            StatusCode::OK => Ok(Bytes::from_owner(OfAnswer(answer))),
            status => Err(Failure::Status { callee, status }),
        }
    }

    async fn wait(&self, time: Duration) {
        // The thread of the chain has no timers.
        let (done, wait) = oneshot::channel();
        thread::spawn(move || {
            thread::sleep(time);
            done.send(())
        });
        // The other end exists until it has sent.
        let _ = wait.await;
    }
}

/// A part of the body of a call. Keeps the call.
struct OfCall(Arc<Call>);

impl AsRef<[u8]> for OfCall {
    fn as_ref(&self) -> &[u8] {
        self.0.body().bytes()
    }
}

/// A part of the body of a response. Keeps the response.
struct OfAnswer(Answer);

impl AsRef<[u8]> for OfAnswer {
    fn as_ref(&self) -> &[u8] {
        self.0.body().bytes()
    }
}
