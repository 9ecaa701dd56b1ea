//! One run of a job, from its first process to its end.

use super::{JobContext, JobSpec, JobState, RunStatus};
use crate::child::Owner;
use crate::container::ContainerSpec;
use crate::diagnosis::{self, View};
use crate::error::AcquireError;
use crate::instance::sleep_until;
use crate::instance::{TargetState, at_least};
use crate::instance_id::InstanceId;
use crate::process::Program;
use crate::spec::LONGEST_PAUSE;
use crate::tree::ProcessTree;
use backon::{BackoffBuilder, ExponentialBackoff};
use leno_model::{Job, Process};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub(super) struct Run {
    shared: JobContext,
    spec: JobSpec,
    process: Arc<Process>,
    run_status: Arc<RunStatus>,
    target: watch::Receiver<TargetState>,
    /// The target that the processes of the run follow.
    process_target: watch::Sender<TargetState>,
    processes: JoinSet<Outcome>,
    succeeded: u32,
    failed: u32,
    pauses: ExponentialBackoff,
    /// When processes may be started again after a failure.
    resume_at: Option<Instant>,
}

/// How a process ended.
enum Outcome {
    Exited {
        /// `None`: a signal ended it.
        code: Option<i32>,
        /// Why it failed; `None`: it succeeded.
        failure: Option<String>,
    },
    NotStarted(std::io::Error),
    /// The supervisor stopped the process.
    Stopped,
}

/// How the whole run ended.
enum End {
    Succeeded,
    Failed(String),
    /// The job was removed or changed, so the outcome of this run does not matter.
    Cancelled,
}

impl Run {
    pub(super) fn new(
        shared: JobContext,
        spec: JobSpec,
        run_status: Arc<RunStatus>,
        target: watch::Receiver<TargetState>,
    ) -> Self {
        Self {
            process: Arc::new(spec.job.process.clone()),
            pauses: shared.settings.backoff.build(),
            shared,
            spec,
            run_status,
            target,
            process_target: watch::Sender::new(TargetState::Run),
            processes: JoinSet::new(),
            succeeded: 0,
            failed: 0,
            resume_at: None,
        }
    }

    pub(super) async fn live(mut self) {
        if *self.target.borrow() >= TargetState::Stop {
            return;
        }
        self.run_status.change(|status| status.started = SystemTime::now());
        self.run_status.status_store.set_container(self.spec.container.as_ref());
        tracing::info!(job = %self.spec.id, "the job begins");
        let end = self.until_the_end().await;
        self.stop_all().await;
        let (state, reason) = match end {
            End::Succeeded => (JobState::Succeeded, None),
            End::Failed(reason) => (JobState::Failed, Some(reason)),
            End::Cancelled => return,
        };
        tracing::info!(job = %self.spec.id, ?state, reason, "the job has ended");
        self.run_status.change(|status| {
            status.state = state;
            status.active = 0;
            status.ended = Some(SystemTime::now());
            // The reason of an earlier failure is none of a success.
            status.reason = reason;
        });
    }

    async fn until_the_end(&mut self) -> End {
        let Job { parallelism, completions, active_deadline, .. } = self.spec.job;
        // A deadline that overflows the clock is no deadline.
        let deadline = active_deadline.and_then(|limit| Instant::now().checked_add(limit));
        while self.succeeded < completions {
            let missing = usize::try_from(parallelism.min(completions - self.succeeded)).unwrap_or(usize::MAX);
            while self.resume_at.is_none() && self.processes.len() < missing {
                self.start();
            }
            let failure = tokio::select! {
                // A process that has ended by itself counts, even if the run is stopped at the same
                // moment.
                biased;
                Some(outcome) = self.processes.join_next() => {
                    let outcome = outcome.unwrap_or_else(|error| Outcome::NotStarted(std::io::Error::other(error)));
                    self.note(outcome)
                }
                () = at_least(&mut self.target, TargetState::Stop) => return End::Cancelled,
                () = sleep_until(deadline) => {
                    let limit = active_deadline.unwrap_or_default();
                    return End::Failed(format!("DeadlineExceeded: it took longer than {limit:?}"));
                }
                () = sleep_until(self.resume_at) => {
                    self.resume_at = None;
                    None
                }
            };
            if let Some(reason) = failure
                && let Some(end) = self.failed(reason)
            {
                return end;
            }
        }
        End::Succeeded
    }

    fn start(&mut self) {
        let number = self.shared.next_instance.fetch_add(1, Ordering::Relaxed);
        // Jobs have no revisions.
        let id = InstanceId { number, revision: 0 };
        let owner = Owner {
            function: self.spec.id.clone(),
            id,
            host: Arc::clone(&self.shared.host),
            settings: Arc::clone(&self.shared.settings),
            cgroups: self.shared.cgroups.clone(),
            starts: Arc::clone(&self.shared.starts),
            status_store: Arc::clone(&self.run_status.status_store),
            files: self.spec.files.clone(),
            host_access: self.spec.host_access.clone(),
        };
        let container = self.spec.container.clone();
        let process = Arc::clone(&self.process);
        self.processes.spawn(run_to_end(owner, process, container, self.process_target.subscribe()));
        self.run_status.change(|status| status.active += 1);
    }

    /// Counts a process that has ended. Returns the reason if it failed.
    fn note(&mut self, outcome: Outcome) -> Option<String> {
        let (code, reason) = match outcome {
            Outcome::Exited { code, failure } => (code, failure),
            Outcome::NotStarted(error) => (None, Some(format!("it could not be started: {error}"))),
            Outcome::Stopped => (None, Some("it was told to end".to_owned())),
        };
        match reason {
            None => self.succeeded = self.succeeded.saturating_add(1),
            Some(_) => self.failed = self.failed.saturating_add(1),
        }
        let (succeeded, failed, last_failure) = (self.succeeded, self.failed, reason.clone());
        self.run_status.change(|status| {
            (status.succeeded, status.failed, status.exit_code) = (succeeded, failed, code);
            status.active = status.active.saturating_sub(1);
            status.reason = last_failure.or(status.reason.take());
        });
        reason
    }

    /// Sets the pause after a failure, or ends the run after one failure too many.
    fn failed(&mut self, reason: String) -> Option<End> {
        let limit = self.spec.job.backoff_limit;
        if self.failed > limit {
            return Some(End::Failed(format!("BackoffLimitExceeded: {reason}")));
        }
        let pause = self.pauses.next().unwrap_or(LONGEST_PAUSE);
        tracing::warn!(job = %self.spec.id, failed = self.failed, limit, ?pause, "a process of the job failed: {reason}");
        self.resume_at = Some(Instant::now() + pause);
        None
    }

    /// Ends the processes that still run: SIGTERM, then SIGKILL after the grace period or when the target is [`TargetState::Kill`].
    async fn stop_all(&mut self) {
        self.process_target.send_replace(TargetState::Stop);
        loop {
            tokio::select! {
                ended = self.processes.join_next() => if ended.is_none() { return },
                () = at_least(&mut self.target, TargetState::Kill),
                    if *self.process_target.borrow() < TargetState::Kill =>
                {
                    self.process_target.send_replace(TargetState::Kill);
                }
            }
        }
    }
}

/// Runs one process group of a job. The group ends with its leader: the supervisor kills the
/// processes that the leader leaves behind, without waiting for them.
async fn run_to_end(
    owner: Owner,
    process: Arc<Process>,
    container: Option<Arc<ContainerSpec>>,
    mut target: watch::Receiver<TargetState>,
) -> Outcome {
    let outcome = run_in(&owner, &process, container.as_ref(), &mut target).await;
    owner.status_store.ended(owner.id);
    owner.host.ended(&owner.function, owner.id);
    outcome
}

async fn run_in(
    owner: &Owner,
    process: &Process,
    container: Option<&Arc<ContainerSpec>>,
    target: &mut watch::Receiver<TargetState>,
) -> Outcome {
    let _place = tokio::select! {
        biased;
        place = owner.place() => place,
        () = at_least(target, TargetState::Stop) => return Outcome::Stopped,
    };
    let contained = match container {
        Some(container) => {
            let ready = tokio::select! {
                biased;
                ready = container.ready() => ready,
                () = at_least(target, TargetState::Stop) => return Outcome::Stopped,
            };
            match ready {
                Ok(contained) => Some(contained),
                Err(error) => {
                    let reason = error.to_string();
                    return Outcome::NotStarted(std::io::Error::other(AcquireError::Image { reason }));
                }
            }
        }
        None => None,
    };
    let program = Program::from(process).contained(contained.as_ref());
    match owner.start(&program, Vec::new()).await {
        Ok(mut child) => {
            let in_jail = matches!(child.tree, ProcessTree::Jail(_));
            let exited = tokio::select! {
                biased;
                () = child.tree.exited() => true,
                () = at_least(target, TargetState::Stop) => false,
            };
            let outcome = if exited {
                let status = child.tree.end().await;
                let code = status.as_ref().ok().and_then(ExitStatus::code);
                let ended = child.resources.describe(status);
                child.resources.last_lines().await;
                let view = View::of(in_jail, container.is_some(), &process.directory, &process.read_only_paths);
                let failure =
                    || ended + &owner.diagnose(diagnosis::End::Other, child.resources.lacks(), (view, &process.argv));
                Outcome::Exited { code, failure: (code != Some(0)).then(failure) }
            } else {
                child.tree.finish(process.grace, at_least(target, TargetState::Kill)).await;
                Outcome::Stopped
            };
            child.resources.end().await;
            outcome
        }
        Err(error) => Outcome::NotStarted(error),
    }
}
