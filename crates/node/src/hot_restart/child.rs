//! The child of a hot restart.

use super::counting;
use super::protocol::{self, Frame, Link, Message, Start};
use crate::callers::Callers;
use crate::warm::Warm;
use crate::workloads::Workloads;
use bytes::Bytes;
use leno_agent::{Agent, ParentEvent as Event, ParentProcess};
use leno_identity::SvidStore;
use leno_proxy::Node;
use leno_supervisor::Supervisor;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// Longest time for the parent to send the state that it transfers.
const BEGIN: Duration = Duration::from_secs(10);
/// This process gives up so long before the parent does, in time to report why.
const MARGIN: Duration = Duration::from_secs(1);
/// Longest time from the start of the transfer until all updates passed to this process are in
/// force. The parent waits longer.
const IN_FORCE: Duration = Duration::from_secs(8);
/// Longest wait until the parent has received the reason why this process gives up.
const HEARD: Duration = Duration::from_secs(5);
/// Interval between checks whether the instances are ready.
const LOOK: Duration = Duration::from_millis(10);
/// Updates of the parent that may wait to be put into force.
const UPDATES: usize = 4;

/// The state that the parent transfers.
#[derive(Debug)]
pub struct Parent {
    socket: UnixStream,
    start: Start,
    until: Instant,
    listeners: Vec<TcpListener>,
    others: Vec<(String, OwnedFd)>,
}

/// Why this process cannot take over.
#[derive(Debug, thiserror::Error)]
#[error("this process cannot take over from another one: {0}")]
pub struct ParentError(#[from] io::Error);

/// Why this process does not take over. Each text continues a sentence about this process.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// The parent has ended, and its state is lost.
    #[error("the parent process from which it was to take over has ended")]
    ParentEnded,
    /// It cannot apply a part of the parent's configuration.
    #[error("it cannot use what it was handed over: {0}")]
    Rejected(String),
    /// The parent's messages came in another order than this release expects.
    #[error("it was not handed over in order")]
    OutOfTurn,
    /// It was not ready within the timeout.
    #[error("it was not ready in time: {0}")]
    Late(String),
    /// The last updates took too long.
    #[error("the last changes were not in force within {IN_FORCE:?}")]
    NotInForce,
    /// Another authority has begun to sign meanwhile.
    #[error("it has certificates of an authority that does not sign any more")]
    OtherAuthority,
}

impl Parent {
    /// Reads the parent's first message from the socket.
    pub fn at(socket: OwnedFd) -> Result<Self, ParentError> {
        let socket = UnixStream::from(socket);
        socket.set_read_timeout(Some(BEGIN))?;
        let (start, mut descriptors) = protocol::begun(&socket)?;
        if descriptors.len().checked_sub(start.listeners) != Some(start.others.len()) {
            return Err(io::Error::other(format!("{} descriptors came", descriptors.len())).into());
        }
        let others = start.others.iter().cloned().zip(descriptors.split_off(start.listeners)).collect();
        let listeners = descriptors.into_iter().map(TcpListener::from).collect();
        let until = Instant::now() + Duration::from_millis(start.patience_ms).saturating_sub(MARGIN);
        Ok(Self { socket, start, until, listeners, others })
    }

    /// Takes another descriptor that the parent passes.
    pub fn take(&mut self, name: &str) -> Option<OwnedFd> {
        let index = self.others.iter().position(|(other, _)| other == name)?;
        Some(self.others.swap_remove(index).1)
    }

    /// Number of the first instance.
    pub fn first_instance(&self) -> u64 {
        self.start.first_instance
    }

    /// The half of the IDs that the jails of this process have.
    pub fn half(&self) -> leno_jail::Half {
        if self.start.second_half { leno_jail::Half::Second } else { leno_jail::Half::First }
    }

    /// Soft limit on descriptors with which the first process of the node was started.
    pub fn descriptors(&self) -> Option<u64> {
        self.start.descriptors
    }

    /// Takes over within the node that is being started. Returns the listeners, and the state that
    /// the control plane's client needs.
    pub(crate) fn join(mut self, incoming: ChildNode) -> io::Result<(HotRestart, Vec<TcpListener>, ParentProcess)> {
        let counting = self.take(counting::SOCKET).map(UnixStream::from);
        let passing_on = self.take(protocol::UPDATES).map(UnixStream::from).map(Link::new).transpose()?;
        let link = Link::new(self.socket)?;
        let (updates, passed_on) = mpsc::channel(UPDATES);
        let (events, in_force) = mpsc::unbounded_channel();
        let (state, states) = watch::channel(ParentState::Serving);
        let (outbox, messages) = mpsc::unbounded_channel();
        let (alive, gone) = oneshot::channel::<Infallible>();
        let (svids, agent) = (incoming.node.svids.clone(), incoming.agent.clone());
        let warm = incoming.warm.clone();
        let hot_restart =
            HotRestart { states, outbox, events: in_force, warm, svids, agent, until: self.until, own_control: None };
        tokio::spawn(async move {
            follow(incoming, (link, counting, passing_on), updates, messages, state).await;
            drop(alive);
        });
        Ok((hot_restart, self.listeners, ParentProcess { updates: passed_on, events, gone }))
    }
}

/// The node that receives the parent's state.
pub(crate) struct ChildNode {
    pub node: Arc<Node>,
    pub callers: Arc<Callers>,
    pub any_caller: bool,
    pub warm: Warm,
    /// The client of the control plane, as soon as there is one.
    pub agent: Arc<OnceLock<Agent>>,
}

/// The state of the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParentState {
    /// It owns the node.
    Serving,
    /// This process owns the node.
    Draining,
    Ended,
}

/// A hot restart that is under way.
pub(crate) struct HotRestart {
    states: watch::Receiver<ParentState>,
    outbox: mpsc::UnboundedSender<Message>,
    events: mpsc::UnboundedReceiver<Event>,
    warm: Warm,
    svids: Arc<SvidStore>,
    agent: Arc<OnceLock<Agent>>,
    until: Instant,
    /// The sender of `events`, if this process takes no configuration from the parent; else the
    /// client of the control plane has it.
    own_control: Option<mpsc::UnboundedSender<Event>>,
}

impl HotRestart {
    /// Ignores the configuration of the parent: this process has its own control plane.
    pub(crate) fn ignore_updates(&mut self, parent: ParentProcess) {
        let ParentProcess { events, .. } = parent;
        self.own_control = Some(events);
    }

    /// Waits until this process is ready, and reports that. Returns when this process owns the
    /// node, and all resources of the parent are in force.
    pub(crate) async fn take_over(
        &mut self,
        mut ready: watch::Receiver<bool>,
        supervisor: &Supervisor,
    ) -> Result<(), TakeoverError> {
        let (warm, svids, until) = (self.warm.clone(), self.svids.clone(), self.until);
        let prepared = async {
            // It fails when the node has ended. Then the parent sends no more.
            if ready.wait_for(|ready| *ready).await.is_err() {
                pending::<()>().await;
            }
            while warm.missing(supervisor).is_some() || !svids.is_renewed() {
                tokio::time::sleep(LOOK).await;
            }
        };
        let late = || match warm.missing(supervisor) {
            Some(missing) => missing,
            None if svids.is_renewed() => "its configuration is not in force".to_owned(),
            None => TakeoverError::OtherAuthority.to_string(),
        };
        tokio::select! {
            () = prepared => {}
            event = self.events.recv() => return Err(rejected(event)),
            _ = self.states.wait_for(|state| *state == ParentState::Ended) => return Err(TakeoverError::ParentEnded),
            () = sleep_until(until) => return Err(TakeoverError::Late(late())),
        }
        self.report_instances(supervisor);
        self.say(Message::Ready);
        if *self
            .states
            .wait_for(|state| *state != ParentState::Serving)
            .await
            .map_err(|_| TakeoverError::ParentEnded)?
            == ParentState::Ended
        {
            return Err(TakeoverError::ParentEnded);
        }
        let until = Instant::now() + IN_FORCE;
        if self.own_control.is_none() {
            match timeout_at(until, self.events.recv()).await {
                Ok(Some(Event::InForce)) => {}
                Ok(event) => return Err(rejected(event)),
                Err(_) => return Err(TakeoverError::NotInForce),
            }
        }
        // Another authority may have begun to sign just now. Other nodes may refuse certificates of
        // the first one as soon as the parent has none.
        while !self.svids.is_renewed() {
            if Instant::now() >= until {
                return Err(TakeoverError::OtherAuthority);
            }
            tokio::time::sleep(LOOK).await;
        }
        self.warm.enough();
        Ok(())
    }

    /// Adds the ready instances to the hello of this process. The reconciler reports them only a
    /// moment later, and until then the control plane would know of none.
    fn report_instances(&self, supervisor: &Supervisor) {
        let Some(agent) = self.agent.get() else { return };
        for function in supervisor.functions() {
            agent.report(&function, Workloads::instances(supervisor, &function));
        }
    }

    /// Reports that this process accepts connections. Returns a future that resolves when the
    /// parent has ended.
    pub(crate) fn serving(self) -> impl Future<Output = ()> + Send + 'static {
        self.say(Message::Serving);
        let Self { mut states, outbox, .. } = self;
        async move {
            let _outbox = outbox;
            let _ = states.wait_for(|state| *state == ParentState::Ended).await;
        }
    }

    /// Reports why this process gives up, and waits until the parent has received it.
    pub(crate) async fn fail(mut self, reason: &TakeoverError) {
        self.say(Message::Failed(reason.to_string()));
        let _ = timeout(HEARD, self.states.wait_for(|state| *state == ParentState::Ended)).await;
    }

    fn say(&self, message: Message) {
        // If no task sends the message, the parent has ended.
        let _ = self.outbox.send(message);
    }
}

fn rejected(event: Option<Event>) -> TakeoverError {
    match event {
        Some(Event::Rejected(reason)) => TakeoverError::Rejected(reason),
        Some(Event::InForce) | None => TakeoverError::OutOfTurn,
    }
}

/// Sends the parent the updates that this process puts into force, until either ends. A parent that
/// does not keep up gets no more updates, and closes its open exchanges.
async fn pass_on(mut updates: mpsc::Receiver<Bytes>, mut link: Link) {
    while let Some(update) = updates.recv().await {
        if link.send(Frame::Update(update)).await.is_err() {
            return;
        }
    }
}

/// Handles the parent's messages, as long as it lives.
async fn follow(
    incoming: ChildNode,
    (mut link, mut counting, mut passing_on): (Link, Option<UnixStream>, Option<Link>),
    updates: mpsc::Sender<Bytes>,
    mut messages: mpsc::UnboundedReceiver<Message>,
    state: watch::Sender<ParentState>,
) {
    let ChildNode { node, callers, any_caller, warm, agent } = incoming;
    let mut announcements = callers.announce(&node.credentials);
    let mut updates = Some(updates);
    loop {
        let sent = tokio::select! {
            Some(message) = messages.recv() => link.send(Frame::Message(message)).await,
            Some(announcement) = announcements.recv() => link.send(Frame::Message(Message::Caller(announcement))).await,
            frame = link.next() => match frame {
                Ok(Frame::Update(update)) => {
                    if let Some(updates) = &updates {
                        // It fails when the node has ended.
                        let _ = updates.send(update).await;
                    }
                    Ok(())
                }
                Ok(Frame::Message(Message::Warm(ready))) => {
                    warm.want(ready);
                    Ok(())
                }
                Ok(Frame::Message(Message::Caller(announcement))) => {
                    callers.hear(&node.credentials, announcement, any_caller);
                    Ok(())
                }
                Ok(Frame::Message(Message::Counts(function, counts))) => {
                    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                    let now_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
                    if let Ok(function) = function.parse() {
                        node.policy_state.limits.function(&function).adopt(counts, now_ms);
                    }
                    Ok(())
                }
                Ok(Frame::Message(Message::Transfer { term_ms })) => {
                    if let Some(socket) = counting.take() {
                        let (node, runtime) = (Arc::downgrade(&node), Handle::current());
                        // Without the thread, the parent refuses requests that are under a rate
                        // limit.
                        let thread = thread::Builder::new().name("leno-counting".to_owned());
                        drop(thread.spawn(move || counting::answer(socket, &node, &runtime)));
                    }
                    if let Some(term) = term_ms.map(Duration::from_millis) {
                        let now = std::time::Instant::now();
                        node.policy_state.limits.lease_term.renew(now + term, now);
                    }
                    if let (Some(agent), Some(link)) = (agent.get(), passing_on.take()) {
                        // Before any update of this process's stream.
                        tokio::spawn(pass_on(agent.copy().1, link));
                    }
                    updates = None;
                    state.send_replace(ParentState::Draining);
                    Ok(())
                }
                Ok(Frame::Message(_)) => Err(io::ErrorKind::InvalidData.into()),
                Err(error) => Err(error),
            },
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "the parent process has ended");
            break;
        }
    }
    callers.part(&node.credentials);
    state.send_replace(ParentState::Ended);
}
