//! The parent of a hot restart.

use super::counting::ChildCounters;
use super::protocol::{Frame, Link, Message};
use crate::callers::{Announcement, Callers};
use crate::warm;
use bytes::Bytes;
use leno_agent::Agent;
use leno_proxy::Node;
use leno_proxy::limits::RemoteLimits;
use leno_supervisor::{JobState, Supervisor};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// Whether the state that the child has got in a descriptor is still current.
pub type StateCheck = Box<dyn Fn() -> bool + Send + Sync>;

/// Longest time from the start of the transfer until the child accepts connections.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(10);
/// Deducted from the term of the shares of rate limits, for the time that the message takes.
const MARGIN: Duration = Duration::from_millis(500);

/// The parts of a node that a hot restart transfers.
#[derive(Clone)]
pub(crate) struct ParentNode {
    pub agent: Agent,
    pub node: Arc<Node>,
    pub supervisor: Supervisor,
    pub callers: Arc<Callers>,
    pub any_caller: bool,
    /// Whether jobs may start.
    pub jobs: watch::Sender<bool>,
}

/// A child that owns the node. While the parent drains, each process announces its instances to the
/// other.
pub struct ChildLink {
    parent: ParentNode,
    link: Link,
    /// The link on which the child passes on the updates that it puts into force.
    updates: Link,
    announcements: mpsc::UnboundedReceiver<Announcement>,
}

/// Why the child cannot have the node. Each text continues a sentence about the child.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// The sockets between the two processes cannot be used.
    #[error("it takes nothing: {0}")]
    Socket(io::Error),
    /// It was not ready within the timeout.
    #[error("it was not ready in time")]
    Late,
    /// The node cannot be transferred any more.
    #[error("{0}")]
    Obstacle(String),
    /// It was ready, but did not accept connections.
    #[error("it did not accept connections within {TRANSFER_TIMEOUT:?}")]
    NotServing,
    /// It reads updates more slowly than they come.
    #[error("it does not keep up with the changes of the control plane")]
    Slow,
    /// Its message is not one that the parent expects now.
    #[error("it said something that was not its turn")]
    OutOfTurn,
    /// Its reason to give up.
    #[error("{0}")]
    Failed(String),
    /// It has closed its socket.
    #[error("it has ended; its log says why")]
    Ended,
    /// Its message cannot be decoded.
    #[error("what it says makes no sense: {0}")]
    Nonsense(io::Error),
}

impl From<io::Error> for OfferError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Ended,
            _ => Self::Nonsense(error),
        }
    }
}

/// Takes the node back if the hot restart fails, or is cancelled.
struct Rollback<'a>(Option<&'a ParentNode>);

impl Drop for Rollback<'_> {
    fn drop(&mut self) {
        if let Some(parent) = self.0 {
            parent.agent.yield_stream(false);
            parent.node.policy_state.limits.resume();
            parent.jobs.send_replace(true);
            parent.callers.part(&parent.node.credentials);
        }
    }
}

impl ParentNode {
    /// Why this node cannot begin a hot restart now.
    pub(crate) fn obstacle(&self) -> Option<String> {
        let running = self.supervisor.jobs().into_iter().find(|job| job.state == JobState::Running)?;
        Some(format!(
            "the job {} is running, and would be ended and begin anew; wait for its end, or remove it",
            running.job
        ))
    }

    fn hear(&self, announcement: Announcement) {
        self.callers.hear(&self.node.credentials, announcement, self.any_caller);
    }

    /// How long the shares of rate limits still count.
    fn term_ms(&self) -> Option<u64> {
        let term = (*self.agent.term().borrow())?;
        let left = term.until.saturating_duration_since(std::time::Instant::now()).checked_sub(MARGIN)?;
        u64::try_from(left.as_millis()).ok()
    }
}

/// Transfers the node to the child at the other end of the socket, once it is ready. If it is not
/// ready in time, or cannot take over, this process continues as before.
pub(crate) async fn offer(
    parent: &ParentNode,
    (socket, updates): (UnixStream, UnixStream),
    counting: ChildCounters,
    (until, unchanged): (Instant, Option<StateCheck>),
) -> Result<ChildLink, OfferError> {
    let mut rollback = Rollback(Some(parent));
    let mut child = ChildLink {
        parent: parent.clone(),
        link: Link::new(socket).map_err(OfferError::Socket)?,
        updates: Link::new(updates).map_err(OfferError::Socket)?,
        announcements: parent.callers.announce(&parent.node.credentials),
    };
    let mut updates = timeout_at(until, child.prepare()).await.map_err(|_| OfferError::Late)??;
    parent.jobs.send_replace(false);
    if let Some(obstacle) = parent.obstacle() {
        return Err(OfferError::Obstacle(obstacle));
    }
    if unchanged.is_some_and(|unchanged| !unchanged()) {
        return Err(OfferError::Obstacle("the state that it has was changed meanwhile; try again".to_owned()));
    }
    // From here on, the control plane may end the stream.
    parent.agent.yield_stream(true);
    let transferred = timeout(TRANSFER_TIMEOUT, child.transfer(&mut updates, counting)).await;
    transferred.map_err(|_| OfferError::NotServing)??;
    rollback.0 = None;
    Ok(child)
}

impl ChildLink {
    /// Sends everything, and waits until the child is ready.
    async fn prepare(&mut self) -> Result<mpsc::Receiver<Bytes>, OfferError> {
        self.send(Message::Warm(warm::ready(&self.parent.supervisor))).await?;
        let (held, mut updates) = self.parent.agent.copy();
        for update in held {
            self.link.send(Frame::Update(update)).await?;
        }
        loop {
            tokio::select! {
                update = updates.recv() => {
                    let update = update.ok_or(OfferError::Slow)?;
                    self.link.send(Frame::Update(update)).await?;
                }
                Some(announcement) = self.announcements.recv() => self.send(Message::Caller(announcement)).await?,
                message = next(&mut self.link) => match message? {
                    Message::Ready => return Ok(updates),
                    Message::Caller(announcement) => self.parent.hear(announcement),
                    _ => return Err(OfferError::OutOfTurn),
                },
            }
        }
    }

    /// Transfers the node to the child, and waits until the child accepts connections.
    async fn transfer(
        &mut self,
        updates: &mut mpsc::Receiver<Bytes>,
        counting: ChildCounters,
    ) -> Result<(), OfferError> {
        while let Ok(update) = updates.try_recv() {
            self.link.send(Frame::Update(update)).await?;
        }
        let remote: Arc<dyn RemoteLimits> = Arc::new(counting);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        for (function, counts) in self.parent.node.policy_state.limits.transfer(&remote, now_ms) {
            self.send(Message::Counts(function.to_string(), counts)).await?;
        }
        self.send(Message::Transfer { term_ms: self.parent.term_ms() }).await?;
        loop {
            match exchange(&self.parent, &mut self.link, &mut self.announcements).await? {
                Some(Message::Serving) => return Ok(()),
                Some(_) => return Err(OfferError::OutOfTurn),
                None => {}
            }
        }
    }

    /// Runs as long as the child does, and withdraws here every permission that the child
    /// withdraws.
    pub(crate) async fn run(self) {
        let Self { parent, mut link, updates, mut announcements } = self;
        let announcing = async {
            while let Ok(None) = exchange(&parent, &mut link, &mut announcements).await {}
            parent.callers.part(&parent.node.credentials);
        };
        tokio::join!(announcing, follow(&parent.agent, updates));
    }

    async fn send(&mut self, message: Message) -> Result<(), OfferError> {
        Ok(self.link.send(Frame::Message(message)).await?)
    }
}

/// Withdraws here every permission that the child withdraws, and all of them when the child's link
/// ends.
async fn follow(agent: &Agent, mut updates: Link) {
    while let Ok(Frame::Update(update)) = updates.next().await {
        agent.follow_child(Some(update));
    }
    tracing::warn!("the child process forwards no more configuration; open exchanges of this process are closed");
    agent.follow_child(None);
}

/// One step: passes on a pending announcement. Returns any other message of the child.
async fn exchange(
    parent: &ParentNode,
    link: &mut Link,
    announcements: &mut mpsc::UnboundedReceiver<Announcement>,
) -> Result<Option<Message>, OfferError> {
    tokio::select! {
        Some(announcement) = announcements.recv() => {
            link.send(Frame::Message(Message::Caller(announcement))).await?;
        }
        message = next(link) => match message? {
            Message::Caller(announcement) => parent.hear(announcement),
            message => return Ok(Some(message)),
        },
    }
    Ok(None)
}

async fn next(link: &mut Link) -> Result<Message, OfferError> {
    match link.next().await? {
        Frame::Message(Message::Failed(reason)) => Err(OfferError::Failed(reason)),
        Frame::Message(message) => Ok(message),
        Frame::Update(_) => Err(OfferError::OutOfTurn),
    }
}
