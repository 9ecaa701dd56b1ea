//! Loads that are under way, and updates that wait for theirs.
//!
//! Updates take effect in the order of their arrival. An update that withdraws a permission must
//! not wait for long. So it overtakes a slow load, if it concerns other functions than that load
//! and all updates before it, and depends on none of their resources.

use crate::loader::LoadResult;
use leno_agent::{Change, Update};
use leno_model::{FunctionConfig, FunctionId, ModuleHash};
use leno_proxy::NodeSnapshot;
use leno_wire::{Resource, Subject};
use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::net::Ipv6Addr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A load that takes longer may be overtaken. Most loads take milliseconds.
const LONG: Duration = Duration::from_millis(500);
/// Maximum number of waiting updates: as many as the control plane sends without an answer.
const MAX_WAITING: usize = 64;
/// Maximum number of loads under way.
const MAX_LOADING: usize = 4;

/// A load that is under way, and its purpose.
struct Loading {
    purpose: Purpose,
    task: JoinHandle<LoadResult>,
    concerns: BTreeSet<Subject>,
    started: Instant,
}

pub(crate) enum Purpose {
    Update(Update),
    /// A key set of this function was fetched.
    Keys(FunctionId),
    /// This module was fetched.
    Module(ModuleHash),
    /// Extensions that failed to load are tried again.
    Retry,
}

#[derive(Default)]
pub(crate) struct Loads {
    loading: Vec<Loading>,
    waiting: VecDeque<Update>,
}

impl Loads {
    /// Whether no load is under way and no update waits.
    pub(crate) fn are_over(&self) -> bool {
        self.loading.is_empty() && self.waiting.is_empty()
    }

    /// Whether another update may wait.
    pub(crate) fn have_room(&self) -> bool {
        self.waiting.len() < MAX_WAITING
    }

    pub(crate) fn push(&mut self, update: Update) {
        self.waiting.push_back(update);
    }

    pub(crate) fn begin(&mut self, purpose: Purpose, configs: &[FunctionId], task: JoinHandle<LoadResult>) {
        let concerns = match &purpose {
            Purpose::Update(update) => concerns(update),
            Purpose::Keys(_) | Purpose::Module(_) | Purpose::Retry => {
                configs.iter().cloned().map(Subject::FunctionConfig).collect()
            }
        };
        self.loading.push(Loading { purpose, task, concerns, started: Instant::now() });
    }

    /// Takes the next update whose load may begin.
    pub(crate) fn next(&mut self, present: &NodeSnapshot) -> Option<Update> {
        if self.loading.is_empty() {
            return self.waiting.pop_front();
        }
        let first = self.overtaken_at().filter(|at| *at <= Instant::now() && self.loading.len() < MAX_LOADING);
        first?;
        let mut before: BTreeSet<Subject> =
            self.loading.iter().flat_map(|load| load.concerns.iter().cloned()).collect();
        let index = self.waiting.iter().position(|update| {
            let concerns = concerns(update);
            let overtakes = stands_alone(update, present) && concerns.is_disjoint(&before);
            before.extend(concerns);
            overtakes
        });
        self.waiting.remove(index?)
    }

    /// When an update may overtake the load under way; `None`: there is no such load, or no update.
    pub(crate) fn overtaken_at(&self) -> Option<Instant> {
        let first = self.loading.iter().map(|load| load.started).min()?;
        (!self.waiting.is_empty()).then_some(first + LONG)
    }

    /// Waits for a load. Without one, it waits for ever.
    pub(crate) async fn finished(&mut self) -> (Purpose, LoadResult) {
        poll_fn(|cx| {
            let done =
                self.loading.iter_mut().enumerate().find_map(|(index, load)| match Pin::new(&mut load.task).poll(cx) {
                    // Such a task only ends early when the async runtime shuts down.
                    Poll::Ready(Ok(loaded)) => Some((index, loaded)),
                    Poll::Ready(Err(_)) | Poll::Pending => None,
                });
            match done {
                Some((index, loaded)) => Poll::Ready((self.loading.remove(index).purpose, loaded)),
                None => Poll::Pending,
            }
        })
        .await
    }
}

/// The subjects of an update. A change of any resource of a function counts as one of its
/// configuration.
fn concerns(update: &Update) -> BTreeSet<Subject> {
    let of = |change: &Change| match change.subject() {
        Subject::Scale(id)
        | Subject::Quota(id)
        | Subject::Secrets(id)
        | Subject::Route(id)
        | Subject::Endpoints(id) => Subject::FunctionConfig(id),
        // The endpoints of a Service come before it.
        Subject::ServiceEndpoint(..) | Subject::Destination(_) => Subject::Destination(Ipv6Addr::UNSPECIFIED.into()),
        subject => subject,
    };
    update.changes.iter().map(of).collect()
}

/// Whether an update does not depend on another one: it changes functions that are in force,
/// without further modules, or only removes resources.
fn stands_alone(update: &Update, present: &NodeSnapshot) -> bool {
    let modules = |config: &FunctionConfig| config.modules().map(|(module, _)| module).collect::<BTreeSet<_>>();
    update.changes.iter().all(|change| match change {
        Change::Set(Resource::FunctionConfig(config)) => {
            let before = present.functions.get(&config.id);
            before.is_some_and(|before| modules(config).is_subset(&modules(&before.config)))
        }
        Change::Set(
            Resource::Bundle(_)
            | Resource::Endpoints(..)
            | Resource::Route(_)
            | Resource::Destination(..)
            | Resource::ServiceEndpoint(..),
        )
        | Change::Withdrawn(_) => true,
        Change::Removed(subject) => !matches!(subject, Subject::Module(_)),
        Change::Set(_) => false,
    })
}
