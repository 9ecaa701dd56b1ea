//! One process, from start to end.

use crate::cgroup::{Cgroup, Cgroups};
use crate::error::AcquireError;
use crate::gate::Gate;
use crate::output::{LogLine, Stream, read_lines};
use crate::ports::Port;
use crate::process::{self, ProcessGroup};
use crate::readiness;
use crate::secret::Secrets;
use crate::slot::Slot;
use crate::spec::Settings;
use crate::status::{Board, InstanceId, InstanceState, InstanceStatus};
use crate::supervisor::Host;
use leno_config::id::FunctionId;
use leno_config::slice::{AppProtocol, Command};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, BufReader};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// What the function's task wants of an instance. Only ever rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    Run,
    /// Withdraw, let its requests end however long they take, SIGTERM, and SIGKILL after the grace period: it is merely not needed.
    Retire,
    /// The same, but requests that take too long are not waited for.
    Stop,
    /// SIGKILL, now.
    Kill,
}

/// What an instance reports to its function's task.
#[derive(Debug)]
pub(crate) enum Report {
    /// It may get requests. The function's task publishes it, before it does anything else, and answers: so it never stops a
    /// predecessor too early, nor takes for useless what serves already.
    Ready(Arc<Slot>, oneshot::Sender<()>),
    /// It gets none any more, or never did, though it should. Its end follows.
    Failed(InstanceId, Failure),
    /// No process of it is left. The last report.
    Ended(InstanceId),
}

/// Why an instance does not serve though it should.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It never became ready.
    NeverReady(AcquireError),
    /// It ended without being asked, after it was ready for some time.
    Crashed { status: String, ready_for: Duration },
}

/// All that one instance needs.
pub(crate) struct Instance {
    pub function: FunctionId,
    pub id: InstanceId,
    pub command: Command,
    pub protocol: AppProtocol,
    pub settings: Arc<Settings>,
    pub host: Arc<dyn Host>,
    pub gate: Arc<Gate>,
    pub board: Arc<Board>,
    /// `None`: there are none here.
    pub cgroups: Option<Arc<Cgroups>>,
    pub wish: watch::Receiver<Wish>,
    pub reports: mpsc::UnboundedSender<Report>,
}

impl Instance {
    /// The whole life.
    pub async fn live(mut self) {
        match self.start() {
            Ok(Started { group, address, mut readers, port, cgroup, secrets }) => {
                self.serve(group, address, &mut readers).await;
                if let Some(cgroup) = cgroup {
                    cgroup.end().await;
                }
                readers.finish().await;
                drop((port, secrets));
            }
            Err(error) => self.failed(Failure::NeverReady(AcquireError::Start { reason: error.to_string() })),
        }
        self.board.ended(self.id);
        self.host.ended(&self.function, self.id);
        self.report(Report::Ended(self.id));
    }

    fn failed(&self, failure: Failure) {
        self.report(Report::Failed(self.id, failure));
    }

    /// Nobody listens only when the supervisor is gone.
    fn report(&self, report: Report) {
        let _ = self.reports.send(report);
    }

    fn start(&mut self) -> std::io::Result<Started> {
        let port = if self.command.port.is_none() { Some(Port::take()?) } else { None };
        let number = port.as_ref().map(|port| port.number).or(self.command.port).unwrap_or_default();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
        let secrets = Secrets::hand_over(&self.command.secrets)?;
        let mut given = secrets.environment.clone();
        given.extend(self.host.environment(&self.function, self.id));
        given.push(("PORT".to_owned(), number.to_string()));
        let cgroup = self.confine();
        let members = cgroup.as_ref().map(Cgroup::members);
        let (group, output) = ProcessGroup::start(&self.command, &given, members.as_deref())
            .map_err(|error| self.explain_start(error))?;
        let mut notes = self.board.notes();
        let status = InstanceStatus {
            function: self.function.clone(),
            id: self.id,
            state: InstanceState::Starting,
            pid: Some(group.pid()),
            address,
            restarts: notes.restarts,
            since: SystemTime::now(),
        };
        notes.instances.insert(self.id, status);
        drop(notes);
        let readers = Readers([
            output.out.map(|out| self.read(out, Stream::Stdout)),
            output.err.map(|err| self.read(err, Stream::Stderr)),
        ]);
        Ok(Started { group, address, readers, port, cgroup, secrets })
    }

    /// The group that holds the instance to its limits, if it has any and they can be enforced.
    fn confine(&self) -> Option<Cgroup> {
        let limits = &self.command.resources;
        if !limits.any() {
            return None;
        }
        let cgroups = self.cgroups.as_ref().ok_or_else(|| "there are no control groups (v2) for instances".to_owned());
        let group = cgroups.and_then(|cgroups| cgroups.instance(self.id.number, limits));
        let unenforced = group.as_ref().err().cloned();
        let before = std::mem::replace(&mut self.board.notes().unenforced, unenforced.clone());
        if let Some(reason) = unenforced.filter(|reason| before.as_ref() != Some(reason)) {
            tracing::warn!(function = %self.function, "its limits are not enforced: {reason}");
        }
        group.ok()
    }

    /// "No such file or directory" alone does not say which.
    fn explain_start(&self, error: std::io::Error) -> std::io::Error {
        let program = self.command.argv.first().map_or("", String::as_str);
        let text = format!("`{program}` in {}: {error}", self.command.directory.display());
        std::io::Error::new(error.kind(), text)
    }

    async fn serve(&mut self, group: ProcessGroup, address: SocketAddr, readers: &mut Readers) {
        match self.become_ready(&group, address).await {
            Start::Ready => {}
            Start::Cancelled => return self.finish(group).await,
            Start::Exited => {
                let status = process::describe(group.end().await);
                readers.finish().await;
                return self.failed(Failure::NeverReady(AcquireError::Exited { status }));
            }
            Start::Late(error) => {
                self.failed(Failure::NeverReady(error));
                return self.finish(group).await;
            }
        }
        let slot = Slot::new(&self.function, self.id, address);
        self.board.set_state(self.id, InstanceState::Ready);
        let (reply, published) = oneshot::channel();
        self.report(Report::Ready(Arc::clone(&slot), reply));
        let _ = published.await;
        let since = Instant::now();

        tokio::select! {
            () = group.exited() => {}
            () = at_least(&mut self.wish, Wish::Retire) => {}
        }
        self.gate.withdraw(&slot);
        self.host.withdrawn(&self.function, self.id);
        if *self.wish.borrow() < Wish::Retire {
            let ready_for = since.elapsed();
            let status = process::describe(group.end().await);
            readers.finish().await;
            return self.failed(Failure::Crashed { status, ready_for });
        }
        self.board.set_state(self.id, InstanceState::Draining);
        tokio::select! {
            () = slot.drained() => {}
            () = group.exited() => {}
            () = self.impatience() => {}
        }
        self.finish(group).await;
    }

    /// Resolves when the requests of a withdrawn instance are to be waited for no longer.
    async fn impatience(&mut self) {
        at_least(&mut self.wish, Wish::Stop).await;
        tokio::select! {
            () = tokio::time::sleep(self.settings.drain) => {}
            () = at_least(&mut self.wish, Wish::Kill) => {}
        }
    }

    async fn become_ready(&mut self, group: &ProcessGroup, address: SocketAddr) -> Start {
        let limit = self.command.startup_timeout;
        let mut reason = String::from("it was not asked yet");
        let note = |error: readiness::NotReady| reason = error.to_string();
        let ready = readiness::wait(address, &self.command.readiness, self.protocol, note);
        let late = tokio::select! {
            biased;
            () = group.exited() => return Start::Exited,
            () = at_least(&mut self.wish, Wish::Retire) => return Start::Cancelled,
            ready = tokio::time::timeout(limit, ready) => ready.is_err(),
        };
        if late { Start::Late(AcquireError::NotReady { limit, reason }) } else { Start::Ready }
    }

    /// SIGTERM, grace, SIGKILL.
    async fn finish(&mut self, group: ProcessGroup) {
        self.board.set_state(self.id, InstanceState::Stopping);
        if *self.wish.borrow() < Wish::Kill {
            group.terminate();
            tokio::select! {
                () = group.exited() => {}
                () = tokio::time::sleep(self.command.grace) => {}
                () = at_least(&mut self.wish, Wish::Kill) => {}
            }
        }
        // The exit status of something that was told to end tells nothing.
        let _ = group.end().await;
    }

    fn read(&self, output: impl AsyncRead + Unpin + Send + 'static, stream: Stream) -> tokio::task::JoinHandle<()> {
        let (function, instance) = (self.function.clone(), self.id);
        let (host, board, settings) = (Arc::clone(&self.host), Arc::clone(&self.board), Arc::clone(&self.settings));
        tokio::spawn(async move {
            let each = |text| {
                let line = LogLine { function: function.clone(), instance, stream, text };
                host.log(&line);
                board.keep_line(line, settings.kept_lines);
            };
            read_lines(BufReader::new(output), settings.line_bytes, each).await;
        })
    }
}

/// A process that is to become ready.
struct Started {
    group: ProcessGroup,
    address: SocketAddr,
    readers: Readers,
    /// Its own until it has ended, unless the function has a fixed one.
    port: Option<Port>,
    cgroup: Option<Cgroup>,
    secrets: Secrets,
}

/// How a start went.
enum Start {
    Ready,
    /// It is not wanted any more.
    Cancelled,
    Exited,
    Late(AcquireError),
}

/// Resolves when the wish is at least that strong. A function's task that is gone wishes to kill.
async fn at_least(wish: &mut watch::Receiver<Wish>, least: Wish) {
    let _ = wish.wait_for(|wish| *wish >= least).await;
}

/// The tasks that read an instance's output.
struct Readers([Option<tokio::task::JoinHandle<()>>; 2]);

impl Readers {
    /// Waits for the last lines, so that what an instance said before it failed is there when the failure is told. The group is
    /// gone, so its output ends by itself, unless a process that left the group still holds it.
    async fn finish(&mut self) {
        const LAST_LINES: Duration = Duration::from_millis(200);
        for mut reader in self.0.iter_mut().filter_map(Option::take) {
            if tokio::time::timeout(LAST_LINES, &mut reader).await.is_err() {
                reader.abort();
            }
        }
    }
}
