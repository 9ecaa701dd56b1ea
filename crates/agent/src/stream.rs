//! The stream to the control plane. A task keeps it open as long as there is an [`crate::Agent`].

use crate::agent_state::{AgentState, Outgoing};
use crate::channel;
use crate::draining::{self, ChildUpdate, DrainingProcess};
use crate::node_state::from_node;
use crate::platform_join::PlatformJoin;
use crate::questions::PendingQuestion;
use crate::signing::sign;
use crate::update::{Change, PARENT_STREAM, Update};
use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use leno_identity::{AuthorityKeyId, Membership};
use leno_wire::v1::discovery_client::DiscoveryClient;
use leno_wire::v1::from_node;
use leno_wire::v1::to_node::Message;
use leno_wire::{BadPayload, Content, MAX_MESSAGE, Question, RELEASE, Resource, Subject, TERM, Version, messages, v1};
use prost::Message as _;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

/// Maximum number of messages that wait to be sent to the control plane.
const OUTGOING: usize = 64;
/// Maximum number of updates that the stream reads ahead of the node.
const READ_AHEAD: usize = 4;
/// A stream that lasted this long counts as a success, regardless of the messages on it.
const STABLE_STREAM: Duration = Duration::from_secs(5);

/// Maximum number of renewals without an answer.
const RENEWALS: usize = 8;
/// Interval between renewals of the term of the node's shares of rate limits.
const RENEWAL: Duration = Duration::from_secs(2);

/// The state of the stream to the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// There is no stream. The node keeps its last configuration.
    Away {
        /// Attempts that failed since the last stream.
        attempts: u32,
        /// Why the last attempt failed; `None`: none has failed yet.
        reason: Option<String>,
    },
    /// The stream is open.
    Connected,
}

/// A term of the node's shares of rate limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// When it ends.
    pub until: std::time::Instant,
    /// When the control plane's answer arrived. If an earlier term was over by then, all shares
    /// from before are void.
    pub renewed: std::time::Instant,
}

/// The parent process of a hot restart, from which this process takes over.
#[derive(Debug)]
pub struct ParentProcess {
    /// Its configuration and then each change, from [`crate::Agent::copy`]. When this closes, this
    /// process owns the node's stream.
    pub updates: mpsc::Receiver<Bytes>,
    /// Receives the progress of the takeover.
    pub events: mpsc::UnboundedSender<ParentEvent>,
    /// Closes when the parent has ended.
    pub gone: oneshot::Receiver<Infallible>,
}

/// The progress of a takeover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParentEvent {
    /// This process cannot apply the parent's configuration, for this reason.
    Rejected(String),
    /// The parent has sent all of its configuration, and this process has applied it. The last
    /// event.
    InForce,
}

/// The task of the stream. It reopens the stream whenever that ends.
pub(crate) struct Session {
    pub shared: Arc<AgentState>,
    pub membership: Membership,
    pub control: Vec<String>,
    pub rejoin: Option<PlatformJoin>,
    pub inbound: Option<SocketAddr>,
    pub backoff: ExponentialBuilder,
    pub outgoing: mpsc::UnboundedReceiver<Outgoing>,
    pub updates: mpsc::Sender<Update>,
    pub asked: mpsc::Sender<PendingQuestion>,
    pub state: watch::Sender<Connection>,
    pub term: watch::Sender<Option<Term>>,
    pub ended: mpsc::Receiver<()>,
    pub parent: Option<ParentProcess>,
    /// The child process opens the stream: this process does not reopen its own.
    pub yielding: watch::Receiver<bool>,
    /// Updates from the child process.
    pub passed_on: mpsc::UnboundedReceiver<ChildUpdate>,
    /// Messages of the child process that arrived while this process still had its stream.
    pub early: VecDeque<ChildUpdate>,
}

/// Why a stream ended.
enum End {
    /// The agent or the queue of updates was dropped.
    Unwanted,
    /// The connection or the protocol failed.
    Failed(Status),
    /// The child process has ended.
    ChildGone,
}

impl Session {
    pub(crate) async fn run(mut self) {
        if let Some(parent) = self.parent.take()
            && self.follow(parent).await.is_none()
        {
            return;
        }
        let mut failures = 0;
        let mut pauses = self.backoff.build();
        for number in 1.. {
            if self.wait_while_yielding().await.is_none() {
                return;
            }
            let began = Instant::now();
            let mut lived = false;
            let status = match self.stream(number, &mut lived).await {
                End::Failed(status) => status,
                End::ChildGone => continue,
                End::Unwanted => return,
            };
            // A stream that the control plane welcomed, or that lasted, was a success.
            if lived || began.elapsed() > STABLE_STREAM {
                (failures, pauses) = (0, self.backoff.build());
            }
            failures += 1;
            let refused = matches!(
                status.code(),
                Code::PermissionDenied | Code::Unauthenticated | Code::FailedPrecondition | Code::InvalidArgument
            );
            let reason = channel::reason(&status);
            self.state.send_replace(Connection::Away { attempts: failures, reason: Some(reason.clone()) });
            if *self.yielding.borrow() {
                // The control plane may have ended it because the child has opened its stream.
                continue;
            }
            let wait = pauses.next().unwrap_or(STABLE_STREAM);
            if refused {
                tracing::error!(
                    reason,
                    attempt = failures,
                    ?wait,
                    "the control plane refuses this node, which goes on with what it has"
                );
            } else {
                tracing::warn!(
                    reason,
                    attempt = failures,
                    ?wait,
                    "the control plane is away; this node goes on with what it has"
                );
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => (),
                _ = self.ended.recv() => return,
            }
            self.rejoin(&status).await;
        }
    }

    /// Joins again if the control plane does not know this node any more. The node keeps its
    /// configuration meanwhile.
    async fn rejoin(&self, status: &Status) {
        let Some(join) = &self.rejoin else { return };
        let is_unknown = matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated);
        if !is_unknown && !join.has_other_roots(&self.membership) {
            return;
        }
        let joined = join.again(&self.membership).await;
        let joined = joined.map_err(|failure| failure.to_string()).and_then(|()| {
            // Connections from before show the earlier certificate.
            let channel = channel::of_member(&self.control, &self.membership).map_err(|error| error.to_string())?;
            self.shared.set_channel(channel);
            Ok(())
        });
        match joined {
            Ok(()) => tracing::info!("this node has joined again"),
            Err(reason) => tracing::error!(reason, "this node cannot join again yet"),
        }
    }

    /// Waits until this process may open its stream, and meanwhile applies updates from the child
    /// process. `None`: the agent or the queue of updates was dropped.
    async fn wait_while_yielding(&mut self) -> Option<()> {
        while let Ok(passed_on) = self.passed_on.try_recv() {
            self.early.push_back(passed_on);
        }
        let child_has_ended = self.early.iter().any(|passed_on| matches!(passed_on, ChildUpdate::End));
        if *self.yielding.borrow() && !child_has_ended {
            tracing::info!("the child process of a hot restart has this node's stream");
        }
        let mut draining = DrainingProcess::default();
        loop {
            let passed_on = tokio::select! {
                biased;
                // This fails when the agent has been dropped.
                _ = self.yielding.wait_for(|yielding| !yielding) => return Some(()),
                Some(passed_on) = async { self.early.pop_front() } => passed_on,
                Some(passed_on) = self.passed_on.recv() => passed_on,
                _ = self.ended.recv() => return None,
            };
            let update = match passed_on {
                ChildUpdate::Update(update) => self.restricted(&mut draining, update).unwrap_or_else(|status| {
                    tracing::error!(reason = status.message(), "an update of the child process cannot be used");
                    Some(draining::withdraw_all(&self.shared))
                }),
                ChildUpdate::End => Some(draining::withdraw_all(&self.shared)),
            };
            if let Some(mut update) = update {
                // The child does not wait for an answer.
                update.report_to(mpsc::unbounded_channel().0);
                self.updates.send(update).await.ok()?;
            }
        }
    }

    /// The part of a child's update that concerns the exchanges of this process; `None`: it has
    /// none.
    fn restricted(&self, draining: &mut DrainingProcess, update: Bytes) -> Result<Option<Update>, Status> {
        let message = v1::ToNode::decode(update).map_err(|error| Status::internal(error.to_string()))?;
        let delta = match message.message {
            Some(Message::Delta(delta)) => delta,
            Some(Message::Revoked(sent)) => {
                self.shared.revoked(sent, self.membership.svids());
                return Ok(None);
            }
            _ => return Ok(None),
        };
        let delta = draining.restrict(&self.shared, delta)?;
        let mut update = self.update(PARENT_STREAM, delta, RELEASE)?;
        draining.keep_instances(&self.shared, &mut update);
        Ok(Some(update).filter(|update| !update.changes.is_empty()))
    }

    /// Applies the updates of the parent until it hands over and the node has answered all of them.
    /// `None`: the agent or the queue of updates was dropped.
    async fn follow(&mut self, parent: ParentProcess) -> Option<()> {
        let ParentProcess { mut updates, events, gone } = parent;
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let _ = gone.await;
            shared.role().alone = true;
            shared.want_renewal();
        });
        let (told, mut rejected) = mpsc::unbounded_channel();
        let mut told = Some(told);
        loop {
            let update = tokio::select! {
                update = updates.recv(), if told.is_some() => update,
                reason = rejected.recv() => {
                    let Some(reason) = reason else { break };
                    let _ = events.send(ParentEvent::Rejected(reason));
                    continue;
                }
                _ = self.ended.recv() => return None,
            };
            let Some(update) = update else {
                told = None;
                continue;
            };
            let message = v1::ToNode::decode(update).map_err(|error| Status::internal(error.to_string()));
            let update = message.and_then(|message| match message.message {
                Some(Message::Delta(delta)) => self.update(PARENT_STREAM, delta, RELEASE).map(Some),
                Some(Message::Authority(sent)) => {
                    // Without a spread: this process may own the node in a moment.
                    self.signs(v1::Authority { spread_ms: 0, ..sent });
                    Ok(None)
                }
                Some(Message::Machines(sent)) => {
                    self.shared.located(sent);
                    Ok(None)
                }
                Some(Message::Revoked(sent)) => {
                    self.shared.revoked(sent, self.membership.svids());
                    Ok(None)
                }
                _ => Err(Status::internal("something that is not for another process")),
            });
            let Some(update) = update.transpose() else { continue };
            match update {
                Ok(mut update) => {
                    told.iter().for_each(|told| update.report_to(told.clone()));
                    self.updates.send(update).await.ok()?;
                }
                Err(status) => drop(events.send(ParentEvent::Rejected(status.message().to_owned()))),
            }
        }
        self.shared.role().current = true;
        self.shared.want_renewal();
        let _ = events.send(ParentEvent::InForce);
        Some(())
    }

    async fn stream(&mut self, number: u64, lived: &mut bool) -> End {
        let (to_control, messages) = mpsc::channel(OUTGOING);
        // The hello repeats the messages in the outbox, or they belong to an earlier stream.
        while self.outgoing.try_recv().is_ok() {}
        let hello = {
            let mut state = self.shared.state();
            drop(state.speaks(0));
            state.hello(self.inbound)
        };
        if to_control.try_send(hello).is_err() {
            return End::Failed(Status::internal("no capacity for a hello"));
        }
        let mut client = DiscoveryClient::new(self.shared.channel()).max_decoding_message_size(MAX_MESSAGE);
        let request = Request::new(ReceiverStream::new(messages));
        let from_control = tokio::select! {
            response = client.deltas(request) => match response {
                Ok(response) => response.into_inner(),
                Err(status) => return End::Failed(status),
            },
            _ = self.ended.recv() => return End::Unwanted,
        };
        self.state.send_replace(Connection::Connected);
        self.converse(number, from_control, to_control, lived).await
    }

    async fn converse(
        &mut self,
        number: u64,
        mut from_control: Streaming<v1::ToNode>,
        to_control: mpsc::Sender<v1::FromNode>,
        lived: &mut bool,
    ) -> End {
        let mut read: VecDeque<Update> = VecDeque::new();
        let mut to_send = None;
        let mut welcome: Option<v1::Welcome> = None;
        let mut renewal = tokio::time::interval(RENEWAL);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut renewals: VecDeque<(u64, Instant)> = VecDeque::new();
        let mut term_end: Option<Instant> = None;
        loop {
            tokio::select! {
                _ = renewal.tick(), if welcome.is_some() => {
                    let sequence = renewals.back().map_or(0, |(last, _)| last + 1);
                    renewals.push_back((sequence, Instant::now()));
                    if renewals.len() > RENEWALS {
                        renewals.pop_front();
                    }
                    // If the queue is full, the control plane does not read, and the term ends.
                    let _ = to_control.try_send(from_node(from_node::Message::Renew(v1::Renew { sequence })));
                }
                () = sleep_until(term_end.unwrap_or_else(Instant::now)), if term_end.is_some() => {
                    // The shares are void now. A new stream delivers them again.
                    return End::Failed(Status::deadline_exceeded("the leases of rate limits were not renewed"));
                }
                message = from_control.message(), if read.len() < READ_AHEAD => {
                    match message.map(|message| message.and_then(|message| message.message)) {
                        Ok(Some(Message::Welcome(sent))) if welcome.is_none() && self.shared.state().may_speak(sent.protocol) => {
                            let says = self.shared.state().speaks(sent.protocol);
                            says.for_each(|message| self.shared.send(Some(number), message));
                            *lived = true;
                            welcome = Some(sent);
                        }
                        Ok(Some(Message::Welcome(sent))) => {
                            let reason = format!("the control plane (release {:?}) wants to speak version {} of the protocol", sent.release, sent.protocol);
                            return End::Failed(Status::failed_precondition(reason));
                        }
                        Ok(Some(Message::Renewed(sent))) => {
                            if let Some((_, at)) = renewals.iter().find(|(sequence, _)| *sequence == sent.sequence) {
                                let until = *at + TERM;
                                term_end = Some(until);
                                let term = Term { until: until.into_std(), renewed: Instant::now().into_std() };
                                self.term.send_replace(Some(term));
                            }
                        }
                        Ok(Some(Message::Authority(sent))) => {
                            self.signs(sent);
                        }
                        Ok(Some(Message::Machines(sent))) => self.shared.located(sent),
                        Ok(Some(Message::Unenrolled(sent))) => self.shared.unenrolled(sent),
                        Ok(Some(Message::Revoked(sent))) => self.shared.revoked(sent, self.membership.svids()),
                        Ok(Some(Message::Prove(sent))) => self.prove(number, sent.sequence),
                        Ok(Some(Message::Question(question))) => self.ask(number, question),
                        Ok(Some(Message::Delta(delta))) => {
                            let Some(welcome) = &welcome else {
                                return End::Failed(Status::failed_precondition("a stream begins with a welcome"));
                            };
                            match self.update(number, delta, &welcome.release) {
                                Ok(update) => read.push_back(update),
                                Err(status) => return End::Failed(status),
                            }
                        }
                        Ok(None) => return End::Failed(Status::unavailable("the stream ended")),
                        Err(status) => return End::Failed(status),
                    }
                }
                place = self.updates.reserve(), if !read.is_empty() => {
                    let Ok(place) = place else { return End::Unwanted };
                    if let Some(update) = read.pop_front() {
                        place.send(update);
                    }
                }
                // The child may end before it opens a stream, which would have ended this one.
                Some(passed_on) = self.passed_on.recv() => {
                    let is_gone = matches!(passed_on, ChildUpdate::End);
                    self.early.push_back(passed_on);
                    if is_gone {
                        return End::ChildGone;
                    }
                }
                outgoing = self.outgoing.recv(), if to_send.is_none() => {
                    let Some(outgoing) = outgoing else { return End::Unwanted };
                    to_send = Some(outgoing).filter(|outgoing| outgoing.stream.is_none_or(|stream| stream == number));
                }
                place = to_control.reserve(), if to_send.is_some() => {
                    let Ok(place) = place else { return End::Failed(Status::unavailable("the stream ended")) };
                    if let Some(outgoing) = to_send.take() {
                        place.send(outgoing.message);
                    }
                }
                _ = self.ended.recv() => return End::Unwanted,
            }
        }
    }

    /// Stores the signing authority, and renews certificates of other ones.
    fn signs(&self, sent: v1::Authority) {
        let issuer = AuthorityKeyId::from_bytes(&sent.key);
        self.membership.svids().set_issuer(issuer, Duration::from_millis(sent.spread_ms));
        self.shared.state().signs(sent);
        self.shared.want_renewal();
    }

    /// Tries a certificate of the candidate authority, and reports the outcome on this stream.
    fn prove(&self, stream: u64, sequence: u64) {
        let (shared, membership, channel) = (self.shared.clone(), self.membership.clone(), self.shared.channel());
        let role = *self.shared.role();
        tokio::spawn(async move {
            // The parent may lack the present roots, and no process sends them to it.
            if !role.alone {
                let failure = "the parent process of its hot restart still has open connections".to_owned();
                return shared
                    .send(Some(stream), from_node(from_node::Message::Proof(v1::Proof { sequence, failure })));
            }
            let identity = membership.identity();
            let proof = membership.svids().prove(identity, |csr| sign(channel, identity, csr, true)).await;
            let failure = proof.err().map(|error| error.to_string()).unwrap_or_default();
            shared.send(Some(stream), from_node(from_node::Message::Proof(v1::Proof { sequence, failure })));
        });
    }

    /// Passes a question to the node. Declines it here if it cannot be decoded, or if the queue is
    /// full.
    fn ask(&self, number: u64, sent: v1::Question) {
        let (shared, id) = (self.shared.clone(), sent.id);
        let question = Question::from_wire(sent);
        let asked = PendingQuestion::new(shared, number, id);
        let refused = match question {
            Ok(question) => match self.asked.try_send(asked.about(question)) {
                Ok(()) => return,
                Err(error) => (error.into_inner(), "it has too many questions to answer".to_owned()),
            },
            Err(reason) => (asked, format!("{reason}; this node is of release {RELEASE}")),
        };
        let (asked, reason) = refused;
        asked.decline(reason);
    }

    /// Decodes an update. Rejects resources that cannot be decoded, so that the node never sees
    /// them. `release` is the control plane's.
    fn update(&self, number: u64, delta: v1::Delta, release: &str) -> Result<Update, Status> {
        let (mut changes, mut delivered, mut rejected) = (Vec::new(), Vec::new(), BTreeMap::new());
        for sent in &delta.resources {
            let (subject, version) = (messages::subject(sent.subject.as_ref())?, messages::version(&sent.version)?);
            match read(&subject, version, &sent.payload) {
                Ok(resource) => changes.push(Change::Set(resource)),
                Err(reason) if release == RELEASE => {
                    rejected.insert(subject.clone(), reason.to_string());
                }
                Err(reason) => {
                    let releases = format!("this node is of release {RELEASE} and the control plane of {release}");
                    rejected.insert(subject.clone(), format!("{reason}; {releases}"));
                }
            }
            delivered.push((subject, Some(Content { version, payload: sent.payload.clone() })));
        }
        for subject in messages::subjects(&delta.removed)? {
            changes.push(Change::Removed(subject.clone()));
            delivered.push((subject, None));
        }
        for function in &delta.withdrawn {
            let function = function.parse().map_err(|error| Status::invalid_argument(format!("{error}")))?;
            changes.push(Change::Withdrawn(function));
        }
        Ok(Update::new(self.shared.clone(), number, delta.nonce, changes, delivered, rejected))
    }
}

/// A resource that cannot be used.
#[derive(Debug, thiserror::Error)]
enum BadResource {
    #[error("the payload is not of the version that it says")]
    OtherVersion,
    #[error(transparent)]
    Payload(#[from] BadPayload),
}

fn read(subject: &Subject, version: Version, payload: &[u8]) -> Result<Resource, BadResource> {
    if Version::of(payload) != version {
        return Err(BadResource::OtherVersion);
    }
    Ok(Resource::decode(subject, payload)?)
}
