//! A node for the tests: a link to each function, and a router without policies.

use leno_sdk::{Method, RequestHead, ResponseHead, StatusCode};
use leno_shm::{Answer, Body, CallError, Domain, Incoming, IncomingCall, Link, SendError, Settings};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) struct Node {
    pub(crate) domain: Domain,
    /// The number of calls that came from functions.
    pub(crate) routed: AtomicUsize,
    links: Mutex<HashMap<String, Link>>,
}

/// A function, which is killed at the end of the test.
pub(crate) struct Function(pub(crate) Child);

impl Drop for Function {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

pub(crate) fn to(name: &str, path: &str) -> RequestHead {
    RequestHead::new(Method::POST, name.parse().unwrap(), path.parse().unwrap())
}

pub(crate) fn text(body: Option<&Body>) -> String {
    let Some(body) = body else { return String::new() };
    let mut bytes = vec![0; usize::try_from(body.len()).unwrap()];
    body.copy_to(0, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

impl Node {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { domain: Domain::new("test"), routed: AtomicUsize::new(0), links: Mutex::default() })
    }

    /// Starts a function and routes to it by its name.
    pub(crate) async fn start(self: &Arc<Self>, name: &str, mode: &str, settings: &Settings) -> (Function, Link) {
        let (ours, theirs) = pair();
        let program = env!("CARGO_BIN_EXE_leno-chain-function");
        let child = Command::new(program).arg(mode).stdin(Stdio::from(theirs)).spawn().unwrap();
        (Function(child), self.welcome(name, ours, settings).await)
    }

    pub(crate) async fn welcome(self: &Arc<Self>, name: &str, socket: OwnedFd, settings: &Settings) -> Link {
        let (link, incoming) = Link::open(socket, &self.domain, name, settings).await.unwrap();
        self.links.lock().unwrap().insert(name.to_owned(), link.clone());
        tokio::spawn(self.clone().serve(incoming));
        link
    }

    async fn serve(self: Arc<Self>, mut incoming: Incoming) {
        while let Some(call) = incoming.next().await {
            tokio::spawn(self.clone().route(call));
        }
    }

    async fn route(self: Arc<Self>, call: IncomingCall) {
        self.routed.fetch_add(1, Ordering::Relaxed);
        let IncomingCall { head, body, mut reply, .. } = call;
        let link = self.links.lock().unwrap().get(head.authority.as_str()).cloned();
        let Some(link) = link else {
            let _ = reply.answer(&ResponseHead::new(StatusCode::NOT_FOUND), None);
            return;
        };
        let Ok(asked) = link.call(&head, body.as_ref(), None) else { return };
        drop(body);
        tokio::select! {
            answer = asked => if let Ok(Answer { head, body }) = answer {
                let _ = reply.answer(&head, body.as_ref());
            },
            () = reply.cancelled() => {}
        }
    }
}

/// A call from outside the chain, with a body that is copied in once.
pub(crate) async fn call(link: &Link, path: &str, body: &[u8]) -> Result<Answer, CallError> {
    ask(link, path, body).unwrap().await
}

pub(crate) fn ask(link: &Link, path: &str, body: &[u8]) -> Result<leno_shm::Call, SendError> {
    let mut writer = link.writer(body.len() as u64)?;
    writer.write(body)?;
    link.call(&to(link.name(), path), writer.commit().as_ref(), None)
}
