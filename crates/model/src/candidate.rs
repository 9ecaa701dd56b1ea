//! What a node is asked to replay recorded requests against.

use crate::function::{Engine, FunctionConfig, JwksFetch};
use crate::function_id::FunctionId;
use leno_policy::spec::ProgramSpec;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The programs of a function as they would be, and what else decides how they run.
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
    /// As in [`FunctionConfig::jwks`]. Nothing is fetched for a candidate: it gets the keys that the node has.
    pub jwks: Vec<JwksFetch>,
    /// Whether it has extensions, which are not replayed.
    pub extensions: bool,
}

impl CandidatePrograms {
    /// The candidate that a function is.
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

    /// Whether this one may decide requests differently than `other`.
    pub fn differs(&self, other: &Self) -> bool {
        (&self.inbound, &self.outbound, &self.jwks) != (&other.inbound, &other.outbound, &other.jwks)
    }
}
