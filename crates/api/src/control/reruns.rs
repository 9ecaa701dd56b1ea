//! Runs of jobs that users ask for.

use super::error::ApiError;
use super::nodes::noted;
use super::service::Service;
use super::tokens::Caller;
use super::types::{Action, RerunAnswer, Role};
use leno_control::{RerunError, Transaction};
use leno_model::FunctionId;

impl Service {
    /// Runs an ended job once more. Blocks on the store.
    pub fn rerun_job(&self, caller: &Caller, id: &FunctionId) -> Result<RerunAnswer, ApiError> {
        caller.needs(Role::Editor)?;
        if !caller.may_know(id) {
            return Err(ApiError::Forbidden(format!("the namespace {} is not for this token", id.namespace)));
        }
        let mut recorded = None;
        let note = |attempt: u32| {
            let (entry, transaction) = noted(caller, format!("attempt {attempt} of job {id}"), Action::Created)?;
            recorded = Some(entry);
            Ok::<Transaction, ApiError>(transaction)
        };
        let attempt = self.leading()?.control.rerun(id, note)?;
        recorded.iter().for_each(|entry| self.log(entry));
        tracing::info!(job = %id, attempt, by = caller.name, "a job is run again");
        Ok(RerunAnswer { attempt })
    }
}

impl From<RerunError> for ApiError {
    fn from(error: RerunError) -> Self {
        match error {
            RerunError::Unknown(id) => Self::NotFound(format!("job {id}")),
            RerunError::Running(_) => Self::Busy(error.to_string()),
            RerunError::Publish(error) => error.into(),
        }
    }
}
