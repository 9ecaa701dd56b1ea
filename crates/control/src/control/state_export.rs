//! The state that documents do not imply, for a process that takes over from this one: the revisions
//! of functions with their rollouts, and the outcomes of jobs.

use super::Control;
use crate::history::{Histories, History};
use crate::job::Outcome;
use crate::store::{Store, StoreError};
use leno_model::FunctionId;
use leno_wire::encoding::{EncodingError, from_bytes, to_bytes};
use serde::{Deserialize, Serialize};
use std::sync::PoisonError;

/// Why the state of another process cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It cannot be decoded.
    #[error("its state cannot be read: {0}")]
    Encoding(#[from] EncodingError),
    /// The revisions of a function contradict themselves.
    #[error("the revisions of {0} are damaged: {1}")]
    History(FunctionId, String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateExport {
    histories: Vec<(FunctionId, History)>,
    outcomes: Vec<(FunctionId, Outcome)>,
}

impl Control {
    /// The state, encoded.
    pub fn export(&self) -> Result<Vec<u8>, EncodingError> {
        let state = self.state();
        let histories = state.histories().0.iter().map(|(id, history)| (id.clone(), history.clone())).collect();
        to_bytes(&StateExport { histories, outcomes: state.outcomes() })
    }

    /// Continues from the state of another process. Call it before the first publication.
    pub fn import(&self, exported: &[u8]) -> Result<(), ImportError> {
        let StateExport { histories, outcomes } = from_bytes(exported)?;
        for (id, history) in &histories {
            history.check(id).map_err(|error| ImportError::History(id.clone(), error.to_string()))?;
        }
        self.state().import(Histories(histories.into_iter().collect()), outcomes.into_iter().collect());
        Ok(())
    }

    /// Keeps the state in this store from now on. The next publication adds the definitions. Blocks
    /// on the store.
    pub fn attach(&self, store: Store) -> Result<(), StoreError> {
        let mut current = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let (histories, outcomes) = {
            let state = self.state();
            (state.histories().clone(), state.outcomes())
        };
        store.replace(&histories, &outcomes)?;
        self.trust().save(&store)?;
        *current = store;
        Ok(())
    }

    /// Closes the store, so that another process can open it. What changes from now on is not
    /// stored.
    pub fn detach(&self) {
        *self.0.store.lock().unwrap_or_else(PoisonError::into_inner) = Store::memory();
    }
}
