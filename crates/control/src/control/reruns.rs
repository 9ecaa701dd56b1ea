//! Runs ended jobs again, by hand.

use super::{Control, PublishError};
use crate::store::Transaction;
use leno_model::{FunctionId, Run};
use std::sync::PoisonError;

/// Why a job is not run again.
#[derive(Debug, thiserror::Error)]
pub enum RerunError {
    /// There is no job of this name.
    #[error("there is no job {0}")]
    Unknown(FunctionId),
    /// Its last run has not ended.
    #[error("the job {0} has not ended; wait for its end, or change its document to end this run and begin another")]
    Running(FunctionId),
    /// The run cannot be stored or published.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

impl Control {
    /// Runs an ended job once more. Returns the number of the run. `note` gets this number, and its
    /// transaction is stored atomically with the run. From then on the run survives a change of the
    /// leader. Blocks on the store.
    pub fn rerun<E: From<RerunError>>(
        &self,
        id: &FunctionId,
        note: impl FnOnce(u32) -> Result<Transaction, E>,
    ) -> Result<u32, E> {
        let failed = |error: PublishError| RerunError::Publish(error);
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state();
        let (history, config) = (state.histories().0.get(id).cloned(), state.config(id));
        let job = state.job_history(id);
        drop(state);
        let unknown = || RerunError::Unknown(id.clone());
        let (state, events) = job.ok_or_else(unknown)?;
        let (mut history, config) = history.zip(config).ok_or_else(unknown)?;
        if !state.has_ended() {
            return Err(RerunError::Running(id.clone()).into());
        }
        history.reruns = Some(history.reruns.unwrap_or_default().saturating_add(1));
        let config = history.config_for_delivery(&config).map_err(|error| failed(error.into()))?;
        let Run::Job(job) = &config.run else { return Err(unknown().into()) };
        let prepared = self.state().prepare_put(&config, &self.0.trust_domain);
        let prepared = prepared.map_err(|error| failed(error.into()))?;
        let noted = note(job.attempt())?;
        store.rerun(id, &history, noted).map_err(|error| failed(error.into()))?;
        self.state().rerun(prepared, history, events);
        Ok(job.attempt())
    }
}
