//! The node's end of the socket of one instance.
//!
//! Any thread may begin calls to the instance ([`Link::call`]). One task reads the packets of the
//! instance ([`Incoming::next`]) and must go on doing so, because answers to calls arrive there.

mod call;
mod inbound;
mod open;
mod outbound;
mod reply;
mod state;

pub use call::{Answer, Call};
pub use inbound::{Incoming, IncomingCall, Parent};
pub use open::OpenError;
pub use reply::Reply;

use crate::domain::Domain;
use crate::handshake::End as ChannelEnd;
#[cfg(doc)]
use crate::handshake::Offer;
use crate::head::{self, RequestHead};
use crate::region::{Body, Writer};
use crate::slab::Full;
use crate::statistics::Violations;
use state::Inner;
use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Data that the node attaches to a call, such as the exchange. The link returns it with each call
/// that the instance makes while it handles that call.
pub type Context = Arc<dyn Any + Send + Sync>;

/// The limits of a link.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of the arena that the instance writes to.
    pub instance_arena: u64,
    /// Bytes of the arena that the node writes for it.
    pub node_arena: u64,
    /// Asks for large pages.
    pub large_pages: bool,
    /// Most bytes of a head, in both directions.
    pub head: u32,
    /// Most open calls, in each direction. A cancelled call counts until the instance has answered
    /// it.
    pub open_calls: usize,
    /// Most bytes of bodies that the instance may hold at once: bodies of calls that it has not
    /// answered, and of answers that it has not released.
    pub held_bytes: u64,
    /// Most descriptors that are queued for an instance that does not read. With more the link
    /// ends.
    pub queue: usize,
    /// Most violations. With more the link ends.
    pub violations: u64,
    /// How long the instance may take to say that it is ready.
    pub within: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            instance_arena: 16 << 20,
            node_arena: 16 << 20,
            large_pages: false,
            head: head::MOST_BYTES,
            open_calls: 1024,
            held_bytes: 64 << 20,
            queue: 4096,
            violations: 1000,
            within: Duration::from_secs(5),
        }
    }
}

/// Why a link has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// The instance has ended, or closed its socket.
    #[error("the instance has closed its link")]
    Closed,
    /// The instance does not read its socket.
    #[error("the instance reads nothing of what it is sent")]
    Stuck,
    /// There were too many violations.
    #[error("the instance has broken the rules too often")]
    Violations,
    /// The socket failed.
    #[error("the socket of the instance failed: {0}")]
    Socket(io::ErrorKind),
    /// The node has ended it.
    #[error("the node has ended the link")]
    Stopped,
}

/// Why a call or an answer was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The body belongs to another chain. A caller that may cross chains can copy it
    /// ([`Link::writer`]).
    #[error("the body is in memory of another chain")]
    OtherDomain,
    /// The node's arena for this instance has no free block of that length.
    #[error(transparent)]
    Full(#[from] Full),
    /// There are as many open calls as there may be.
    #[error("too many calls to the instance are open")]
    Busy,
    /// The instance holds as many bytes as it may.
    #[error("the instance holds too many bytes of bodies")]
    HoldsTooMuch,
    /// The head is longer than the limit.
    #[error("the head is longer than {0} bytes")]
    Head(
        /// The limit.
        u32,
    ),
    /// The link has ended.
    #[error(transparent)]
    Ended(#[from] End),
}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The instance reports that it has failed to answer.
    #[error("the instance has failed to answer")]
    Failed,
    /// The instance sent an invalid answer.
    #[error("the answer of the instance breaks the rules")]
    Invalid,
    /// The link has ended.
    #[error(transparent)]
    Ended(#[from] End),
}

/// A link to an instance. Clones refer to the same link.
#[derive(Clone)]
pub struct Link(Arc<Inner>);

impl Link {
    /// Sends the handshake to an instance whose socket is connected (`SOCK_SEQPACKET`), and waits
    /// until it is ready. The log calls the instance by this name.
    ///
    /// Nothing is read from the link but by [`Incoming::next`].
    ///
    /// # Errors
    /// If the arenas cannot be made, or the instance does not say in time that it is ready.
    pub async fn open(
        socket: OwnedFd,
        domain: &Domain,
        name: impl Into<String>,
        settings: &Settings,
    ) -> Result<(Self, Incoming), OpenError> {
        let inner = open::open(socket, domain, name.into(), settings).await?;
        Ok((Self(inner.clone()), Incoming::new(inner)))
    }

    /// Calls the instance. Each call that the instance makes while it handles this one carries the
    /// context.
    ///
    /// # Errors
    /// If nothing was sent.
    pub fn call(&self, head: &RequestHead, body: Option<&Body>, context: Option<Context>) -> Result<Call, SendError> {
        self.0.call(head, body, context)
    }

    /// Space for a body of at most so many bytes, in the node's arena for this instance.
    ///
    /// # Errors
    /// If there is none of that length.
    pub fn writer(&self, most: u64) -> Result<Writer, Full> {
        self.0.writer(most)
    }

    /// Whether the instance can use a channel.
    #[must_use]
    pub fn takes_channels(&self) -> bool {
        self.0.takes_channels
    }

    /// Gives the instance one end of a channel to the instance of another link, with the fields of
    /// an [`Offer`]. Returns the channel's number on this link.
    ///
    /// # Errors
    /// If the two are of different chains, or nothing was sent.
    pub fn offer(
        &self,
        peer: &Self,
        end: ChannelEnd,
        timeout: Option<Duration>,
        text: String,
        socket: OwnedFd,
    ) -> Result<u32, SendError> {
        // A longer timeout counts as none.
        let timeout_ms = timeout.and_then(|timeout| u32::try_from(timeout.as_millis().max(1)).ok()).unwrap_or(0);
        self.0.offer(&peer.0, end, (timeout_ms, text), socket)
    }

    /// Tells the instance that no call may begin on a channel any more.
    pub fn withdraw(&self, channel: u32) {
        self.0.withdraw(channel);
    }

    /// Bytes of the arena that the instance writes to.
    #[must_use]
    pub fn instance_arena(&self) -> u64 {
        self.0.instance.mapping().length()
    }

    /// Most bytes of a head.
    #[must_use]
    pub fn most_head(&self) -> u32 {
        self.0.settings.head
    }

    /// The chain that the instance belongs to.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        self.0.domain()
    }

    /// Its name in the log.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Calls to the instance that it has not answered, including cancelled ones.
    #[must_use]
    pub fn open_calls(&self) -> usize {
        self.0.open_calls()
    }

    /// Violations of this instance.
    #[must_use]
    pub fn violations(&self) -> &Violations {
        self.0.violations()
    }

    /// Ends the link: its open calls fail, and the socket is closed. Does nothing if the link has
    /// already ended.
    pub fn end(&self) {
        self.0.end(End::Stopped);
    }

    /// Waits until the link has ended.
    pub async fn ended(&self) -> End {
        self.0.ended().await
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("name", &self.name()).finish_non_exhaustive()
    }
}
