//! Programs against which a node replays recorded requests.

use crate::function::{Engine, FunctionConfig, JwksFetch};
use crate::function_id::FunctionId;
use leno_policy::spec::ProgramSpec;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The programs that a function would get from changed documents, and their run settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidatePrograms {
    /// The function.
    pub id: FunctionId,
    /// Inbound program.
    pub inbound: ProgramSpec,
    /// Outbound program.
    pub outbound: ProgramSpec,
    /// As in [`FunctionConfig::engine`].
    pub engine: Option<Engine>,
    /// As in [`FunctionConfig::deadline`].
    pub deadline: Duration,
    /// As in [`FunctionConfig::jwks`]. The node fetches nothing for a candidate, and uses the keys
    /// that it has.
    pub jwks: Vec<JwksFetch>,
    /// The function has extensions, which a replay leaves out.
    pub extensions: bool,
}

impl CandidatePrograms {
    /// The programs of a configuration.
    pub fn of(function: &FunctionConfig) -> Self {
        Self {
            id: function.id.clone(),
            inbound: function.inbound.clone(),
            outbound: function.outbound.clone(),
            engine: function.engine,
            deadline: function.deadline,
            jwks: function.jwks.clone(),
            extensions: !function.inbound_extensions.is_empty() || !function.outbound_extensions.is_empty(),
        }
    }

    /// Whether a request may get another decision than from `other`.
    pub fn differs(&self, other: &Self) -> bool {
        (&self.inbound, &self.outbound, &self.jwks) != (&other.inbound, &other.outbound, &other.jwks)
    }
}
