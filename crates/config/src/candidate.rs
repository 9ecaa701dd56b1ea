//! What a node is asked to replay recorded requests against.

use crate::id::FunctionId;
use crate::slice::{Engine, JwksFetch, Slice};
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
    /// As in [`Slice::engine`].
    pub engine: Option<Engine>,
    /// As in [`Slice::deadline`].
    pub deadline: Duration,
    /// As in [`Slice::jwks`]. Nothing is fetched for a candidate: it gets the keys that the node has.
    pub jwks: Vec<JwksFetch>,
    /// Whether it has extensions, which are not replayed.
    pub extensions: bool,
}

impl CandidatePrograms {
    /// The candidate that a slice is.
    pub fn of(slice: &Slice) -> Self {
        Self {
            id: slice.id.clone(),
            inbound: slice.inbound.clone(),
            outbound: slice.outbound.clone(),
            engine: slice.engine,
            deadline: slice.deadline,
            jwks: slice.jwks.clone(),
            extensions: !slice.inbound_extensions.is_empty() || !slice.outbound_extensions.is_empty(),
        }
    }

    /// Whether this one may decide requests differently than `other`.
    pub fn differs(&self, other: &Self) -> bool {
        (&self.inbound, &self.outbound, &self.jwks) != (&other.inbound, &other.outbound, &other.jwks)
    }
}
