//! The link of this program to its node.

use crate::arena::OnFull;
use crate::body::{Buffer, Payload};
use crate::call::Call;
use crate::connect::{self, ConnectError};
use crate::error::Error;
use crate::link::Link;
use crate::pending::Pending;
use crate::serve;
use crate::state::State;
use crate::wait::Interest;
use leno_shm::head::RequestHead;
use std::env;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The link to the node. Clones are the same one.
#[derive(Clone)]
pub struct Chain(Arc<Link>);

impl Chain {
    /// Listens at the address that the node expects, by the variable `PORT`, and waits until the
    /// node connects. A peer is accepted as the node if its account is root, this program's own, or
    /// outside of this program's user namespace.
    ///
    /// # Errors
    /// If there is no `PORT`, it is taken, or the peer does not speak as a node.
    pub fn from_environment() -> Result<Self, ConnectError> {
        let port = env::var("PORT").ok().and_then(|port| port.parse().ok()).ok_or(ConnectError::NoPort)?;
        Self::over(connect::accept(port)?)
    }

    /// Starts a link over a connected socket (`SOCK_SEQPACKET`).
    ///
    /// # Errors
    /// If a node is not at its other end.
    pub fn over(socket: OwnedFd) -> Result<Self, ConnectError> {
        Ok(Self(Link::new(connect::begin(socket)?)?))
    }

    /// Chooses what happens when the arena is full.
    pub fn set_on_full(&self, on_full: OnFull) {
        self.0.set_on_full(on_full);
    }

    /// Waits for the next call; `None`: the link has ended.
    #[must_use]
    pub fn next(&self) -> Option<Call> {
        loop {
            let (number, arrived) = self.0.wait(&Interest::Call, State::take_call).ok()?;
            if let Some(call) = self.0.accept(number, arrived) {
                return Some(call);
            }
        }
    }

    /// Handles calls on this thread, up to `most` at a time, each by a separate future; calls
    /// beyond that wait. Returns when the link has ended: futures that wait for an answer get an
    /// error, and those that wait for anything else are dropped.
    ///
    /// In such a future, a [`Pending`] is awaited, so that other calls are handled meanwhile. Code
    /// that blocks the thread delays all of them. This executor has no timers and no input or
    /// output but the chain's: a future may wait for those of a runtime on other threads.
    ///
    /// ```no_run
    /// # let chain = leno_sdk::Chain::from_environment()?;
    /// # use leno_sdk::{Method, RequestHead};
    /// let head = RequestHead::new(Method::POST, "cart".parse()?, "/items".parse()?);
    /// chain.serve(64, async |call| {
    ///     let Ok(pending) = chain.call(Some(&call), &head, call.body()) else { return };
    ///     // Other calls are handled meanwhile. A call that is dropped has failed.
    ///     if let Ok(answer) = pending.await {
    ///         let _ = call.answer(answer.status(), answer.body());
    ///     }
    /// })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If another thread already serves this chain, or the kernel has no file descriptors left.
    pub fn serve<H: Future<Output = ()>>(&self, most: usize, handle: impl FnMut(Call) -> H) -> std::io::Result<()> {
        serve::serve(&self.0, most, handle)
    }

    /// Memory for a body of `length` bytes, which others can read once it is sent. It holds the
    /// bytes of its earlier use.
    ///
    /// # Errors
    /// If the arena is full, unless it is to [wait](OnFull).
    pub fn buffer(&self, length: usize) -> Result<Buffer, Error> {
        Ok(Buffer::new(self.0.allocate(length as u64)?, length))
    }

    /// Memory for a body, with a copy of these bytes.
    ///
    /// # Errors
    /// As above.
    pub fn copy(&self, bytes: &[u8]) -> Result<Buffer, Error> {
        let mut buffer = self.buffer(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// Calls a function, by its name in the head. `parent` is the incoming call that causes this
    /// one. Several calls may be open at once.
    ///
    /// # Errors
    /// If the call was not sent.
    pub fn call<'a>(
        &self,
        parent: Option<&Call>,
        head: &RequestHead,
        body: impl Into<Payload<'a>>,
    ) -> Result<Pending, Error> {
        let payload = body.into();
        head.check(payload.place().length)?;
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        // A sidecar has to judge any other call.
        let may_be_direct = head.is_plain() && head.authority.port_u16().is_none_or(|port| port == 80);
        let name = may_be_direct.then(|| head.authority.host());
        let number = self.0.call(parent.map(Call::number), name, &bytes, &payload)?;
        Ok(Pending::new(self.0.clone(), number))
    }

    /// Ends the link: waiting threads and tasks get an error. Has no effect if the link has ended.
    pub fn end(&self) {
        self.0.end();
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Chain")
    }
}
