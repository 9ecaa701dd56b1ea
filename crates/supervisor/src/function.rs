//! A function, or one of its revisions, as requests see it.

use crate::container::ImageState;
use crate::dispatcher::{Dispatcher, Lease};
use crate::error::AcquireError;
use crate::instance_id::InstanceId;
use crate::status::{FunctionLoad, FunctionStatus, InstanceStatus, LossEvent, ScaleEvent, StatusStore};
use leno_model::{FunctionId, InstanceState, OutputLine};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::time::Instant;

/// One function, or one of its revisions, as a request sees it. Cheap to clone. Looking it up takes a lock, so keep it with the route.
#[derive(Clone)]
pub struct Function {
    pub(crate) id: Arc<FunctionId>,
    pub(crate) revision: u32,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) status_store: Arc<StatusStore>,
}

impl Function {
    /// Name of the function.
    pub fn id(&self) -> &FunctionId {
        &self.id
    }

    /// Whether both have the same instances and the same queue.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.dispatcher, &other.dispatcher)
    }

    /// Leases the least loaded ready instance with free capacity. If there is none, starts one or
    /// waits for one, first come, first served, no longer than the start-up timeout. It may be
    /// called on any async runtime with time enabled, and is cancel-safe. An address in `avoid` is
    /// used only if every ready one is in `avoid`.
    pub async fn acquire(&self, avoid: &[SocketAddr]) -> Result<Lease, AcquireError> {
        self.dispatcher.acquire(avoid, None).await.map_err(|error| self.explained(error))
    }

    /// Like [`Function::acquire`], but waits until the deadline at most, and fails at once if no
    /// instance can be ready by then.
    pub async fn acquire_by(&self, avoid: &[SocketAddr], deadline: Instant) -> Result<Lease, AcquireError> {
        self.dispatcher.acquire(avoid, Some(deadline)).await.map_err(|error| self.explained(error))
    }

    /// If a request waited in vain for an image, explains that in its error.
    fn explained(&self, error: AcquireError) -> AcquireError {
        match (&error, self.status_store.image()) {
            (AcquireError::Timeout { .. }, Some(ImageState::Pulling(progress))) => {
                AcquireError::Image { reason: format!("it is on its way ({progress})") }
            }
            (AcquireError::Timeout { .. }, Some(ImageState::Failed(reason))) => AcquireError::Image { reason },
            _ => error,
        }
    }

    /// Like [`Function::acquire`], but never waits and starts nothing.
    pub fn try_acquire(&self, avoid: &[SocketAddr]) -> Option<Lease> {
        self.dispatcher.try_acquire(avoid)
    }

    /// Number of ready instances, without those in `avoid`.
    pub fn ready(&self, avoid: &[SocketAddr]) -> usize {
        self.dispatcher.ready().iter().filter(|slot| !avoid.contains(&slot.address)).count()
    }

    /// The ready instances and their addresses.
    pub fn endpoints(&self) -> Vec<(InstanceId, SocketAddr)> {
        self.dispatcher.ready().iter().map(|slot| (slot.id, slot.address)).collect()
    }

    /// Number of requests that wait for an instance.
    pub fn waiting(&self) -> usize {
        self.dispatcher.waiting()
    }

    /// Whether no ready instance has a request and no request waits.
    pub fn is_idle(&self) -> bool {
        self.dispatcher.waiting() == 0 && self.dispatcher.ready().iter().all(|slot| slot.in_flight() == 0)
    }

    /// The status of the function, or of this revision.
    pub fn status(&self) -> FunctionStatus {
        let record = self.status_store.lock();
        FunctionStatus {
            function: (*self.id).clone(),
            revision: self.revision,
            instances: record.instances.values().cloned().collect(),
            former: record.former(self.revision),
            restarts: record.restarts,
            lost: record.lost,
            last_failure: record.last_failure.clone(),
            failing: record.failing,
            pause: record
                .resume_at
                .map(|at| at.saturating_duration_since(Instant::now()))
                .filter(|pause| !pause.is_zero()),
            waiting: self.dispatcher.waiting(),
            unenforced: record.unenforced.clone(),
            scaling: record.scaling,
        }
    }

    /// The load of the function, or of this revision.
    pub fn load(&self) -> FunctionLoad {
        let reading = self.dispatcher.load();
        let waiting = u32::try_from(self.dispatcher.waiting()).unwrap_or(u32::MAX);
        let ready = u32::try_from(self.dispatcher.ready().len()).unwrap_or(u32::MAX);
        let starting =
            |status: &&InstanceStatus| matches!(status.state, InstanceState::Pulling | InstanceState::Starting);
        FunctionLoad {
            function: (*self.id).clone(),
            revision: self.revision,
            ready,
            starting: self.status_store.lock().instances.values().filter(starting).count() as u32,
            in_flight: u32::try_from(reading.present).unwrap_or(u32::MAX).saturating_sub(waiting),
            waiting,
            request_seconds: reading.area.as_secs_f64(),
            requests: reading.requests,
        }
    }

    /// The last scale decisions, oldest first.
    pub fn scale_events(&self) -> Vec<ScaleEvent> {
        self.status_store.lock().events.iter().cloned().collect()
    }

    /// The last instances that failed or did not serve any more, oldest first.
    pub fn losses(&self) -> Vec<LossEvent> {
        self.status_store.lock().losses.iter().cloned().collect()
    }

    /// The last lines of an instance's output, oldest first. They are kept for running instances and for the one that ended last.
    pub fn output(&self, instance: InstanceId) -> Vec<OutputLine> {
        self.status_store.lock().output.get(&instance).map(|kept| kept.lines().cloned().collect()).unwrap_or_default()
    }
}
