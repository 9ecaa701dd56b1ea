//! The parent of a hot restart.

use super::counting::Asking;
use super::wire::{Frame, Link, Message};
use crate::callers::{Announcement, Callers};
use crate::warm;
use bytes::Bytes;
use leno_agent::Agent;
use leno_proxy::Node;
use leno_proxy::ledger::Elsewhere;
use leno_supervisor::{JobState, Supervisor};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// Longest time from the start of the hand-over until the child accepts connections.
const HAND_OVER: Duration = Duration::from_secs(10);
/// Deducted from the term of the shares of rate limits, for the time that the message takes.
const MARGIN: Duration = Duration::from_millis(500);

/// The parts of a node that a hot restart hands over.
#[derive(Clone)]
pub(crate) struct Outgoing {
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
pub struct Relay {
    outgoing: Outgoing,
    link: Link,
    /// The link on which the child passes on the updates that it puts into force.
    updates: Link,
    announcements: mpsc::UnboundedReceiver<Announcement>,
}

/// Takes the node back if the hot restart fails, or is cancelled.
struct Undo<'a>(Option<&'a Outgoing>);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(outgoing) = self.0 {
            outgoing.agent.yield_stream(false);
            outgoing.node.ledger.resume();
            outgoing.jobs.send_replace(true);
            outgoing.callers.part(&outgoing.node.credentials);
        }
    }
}

impl Outgoing {
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

/// Hands the node over to the process at the other end of the socket, once it is ready. If it is
/// not ready in time, or cannot take over, this process continues as before.
pub(crate) async fn offer(
    outgoing: &Outgoing,
    (socket, updates): (UnixStream, UnixStream),
    counting: Asking,
    until: Instant,
) -> Result<Relay, String> {
    let mut undo = Undo(Some(outgoing));
    let mut relay = Relay {
        outgoing: outgoing.clone(),
        link: Link::new(socket).map_err(|error| error.to_string())?,
        updates: Link::new(updates).map_err(|error| error.to_string())?,
        announcements: outgoing.callers.announce(&outgoing.node.credentials),
    };
    let late = |_| "it was not ready in time".to_owned();
    let mut updates = timeout_at(until, relay.prepare()).await.map_err(late)??;
    outgoing.jobs.send_replace(false);
    if let Some(obstacle) = outgoing.obstacle() {
        return Err(obstacle);
    }
    // From here on, the control plane may end the stream.
    outgoing.agent.yield_stream(true);
    let handed_over = timeout(HAND_OVER, relay.hand_over(&mut updates, counting)).await;
    handed_over.map_err(|_| format!("it did not accept connections within {HAND_OVER:?}"))??;
    undo.0 = None;
    Ok(relay)
}

impl Relay {
    /// Sends everything, and waits until the child is ready.
    async fn prepare(&mut self) -> Result<mpsc::Receiver<Bytes>, String> {
        self.send(Message::Warm(warm::ready(&self.outgoing.supervisor))).await?;
        let (held, mut updates) = self.outgoing.agent.copy();
        for update in held {
            self.link.send(Frame::Update(update)).await.map_err(ended)?;
        }
        loop {
            tokio::select! {
                update = updates.recv() => {
                    let update = update.ok_or("it does not keep up with the changes of the control plane")?;
                    self.link.send(Frame::Update(update)).await.map_err(ended)?;
                }
                Some(announcement) = self.announcements.recv() => self.send(Message::Caller(announcement)).await?,
                message = next(&mut self.link) => match message? {
                    Message::Ready => return Ok(updates),
                    Message::Caller(announcement) => self.outgoing.hear(announcement),
                    _ => return Err("it said something that was not its turn".to_owned()),
                },
            }
        }
    }

    /// Gives the node to the child, and waits until the child accepts connections.
    async fn hand_over(&mut self, updates: &mut mpsc::Receiver<Bytes>, counting: Asking) -> Result<(), String> {
        while let Ok(update) = updates.try_recv() {
            self.link.send(Frame::Update(update)).await.map_err(ended)?;
        }
        let elsewhere: Arc<dyn Elsewhere> = Arc::new(counting);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        for (function, counts) in self.outgoing.node.ledger.hand_over(&elsewhere, now_ms) {
            self.send(Message::Counts(function.to_string(), counts)).await?;
        }
        self.send(Message::HandOver { term_ms: self.outgoing.term_ms() }).await?;
        loop {
            match exchange(&self.outgoing, &mut self.link, &mut self.announcements).await? {
                Some(Message::Serving) => return Ok(()),
                Some(_) => return Err("it said something that was not its turn".to_owned()),
                None => {}
            }
        }
    }

    /// Runs as long as the child does, and withdraws here every permission that the child
    /// withdraws.
    pub(crate) async fn run(self) {
        let Self { outgoing, mut link, updates, mut announcements } = self;
        let relaying = async {
            while let Ok(None) = exchange(&outgoing, &mut link, &mut announcements).await {}
            outgoing.callers.part(&outgoing.node.credentials);
        };
        tokio::join!(relaying, follow(&outgoing.agent, updates));
    }

    async fn send(&mut self, message: Message) -> Result<(), String> {
        self.link.send(Frame::Message(message)).await.map_err(ended)
    }
}

/// Withdraws here every permission that the child withdraws, and all of them when the child's link
/// ends.
async fn follow(agent: &Agent, mut updates: Link) {
    while let Ok(Frame::Update(update)) = updates.next().await {
        agent.follow_child(Some(update));
    }
    tracing::warn!("the new process does not say any more what is permitted; what is open here is closed");
    agent.follow_child(None);
}

/// One step: passes on a pending announcement. Returns any other message of the child.
async fn exchange(
    outgoing: &Outgoing,
    link: &mut Link,
    announcements: &mut mpsc::UnboundedReceiver<Announcement>,
) -> Result<Option<Message>, String> {
    tokio::select! {
        Some(announcement) = announcements.recv() => {
            link.send(Frame::Message(Message::Caller(announcement))).await.map_err(ended)?;
        }
        message = next(link) => match message? {
            Message::Caller(announcement) => outgoing.hear(announcement),
            message => return Ok(Some(message)),
        },
    }
    Ok(None)
}

async fn next(link: &mut Link) -> Result<Message, String> {
    match link.next().await.map_err(ended)? {
        Frame::Message(Message::Failed(reason)) => Err(reason),
        Frame::Message(message) => Ok(message),
        Frame::Update(_) => Err("it said something that was not its turn".to_owned()),
    }
}

fn ended(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            "it has ended; its log says why".to_owned()
        }
        _ => format!("what it says makes no sense: {error}"),
    }
}
