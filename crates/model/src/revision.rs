//! Revisions of a function: what makes one, how they are to be taken into use ([`Plan`]), and who gets which requests ([`Split`]).
//!
//! A document has a plan; the control plane numbers revisions and makes a split of the plan and of what it knows; nodes act on splits.

use crate::function_id::FunctionId;
use crate::run::{AppProtocol, Run, Scale};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The header whose value names a tagged revision, in lower case.
pub const TAG_HEADER: &str = "leno-tag";

/// Revisions that are kept where nothing is said.
pub const HISTORY: u32 = 10;

/// What makes a revision: what an instance is, how it is run, and how many there are. Everything else that a function has (policies,
/// callees, its place at the gateway) is the function's, and holds for all of its revisions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Template {
    /// How instances come to be.
    pub run: Run,
    /// Protocol that the instances speak.
    pub protocol: AppProtocol,
    /// Requests that one instance handles at a time; 0: no limit.
    pub concurrency: u32,
    /// How many instances there are, unless somebody else runs them.
    pub scale: Scale,
}

/// A numbered template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revision {
    /// From 1.
    pub number: u32,
    /// What it is.
    pub template: Template,
}

/// What a slice says of revisions. The slice's own `run`, `protocol`, `concurrency` and `scale` are of one of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Revisions {
    /// Number of the slice's own; 0: nobody has numbered it.
    pub number: u32,
    /// How a new one is taken into use. Nodes need to know what counts as slow.
    pub plan: Plan,
    /// `None`: the slice's own gets every request.
    pub split: Option<Box<Split>>,
}

/// How revisions are taken into use, as the document says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// As listed; empty: everything to the latest.
    pub traffic: Vec<Target>,
    /// How the latest comes to be the one that gets everything; `None`: at once.
    pub rollout: Option<Rollout>,
    /// Revisions that are kept, the ones in use included where they are more.
    pub history: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self { traffic: Vec::new(), rollout: None, history: HISTORY }
    }
}

/// An element of `spec.traffic`, or of a [`Split`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Its number; in a plan, 0 is the latest.
    pub revision: u32,
    /// Of the requests that no tag and no header decides about.
    pub percent: u8,
    /// Value of [`TAG_HEADER`].
    pub tag: Option<String>,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
}

/// A gradual rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Rising percentages, 1 to 99.
    pub steps: Vec<u8>,
    /// Shortest duration of a step.
    pub interval: Duration,
    /// Share of failures, 0 to 1, that the new revision may have more than the one before it.
    pub max_error_rate: f64,
    /// How slow it may be.
    pub latency: Option<Latency>,
    /// Requests of the new revision in a step before it is judged.
    pub min_requests: u64,
}

/// A limit on how many requests are slow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// A request that takes longer is slow.
    pub limit: Duration,
    /// Share of requests, 0 to 1, that may be slow: for the 99th percentile 0.01.
    pub slow_share: f64,
}

/// Who of several revisions gets a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// In the order in which they are looked at; the percentages add up to 100. A revision may be in several.
    pub targets: Vec<Target>,
    /// Those of the targets that are not the slice's own, each once.
    pub others: Vec<Revision>,
}

/// What people call a revision: `checkout-00003`.
pub fn name(function: &FunctionId, number: u32) -> String {
    format!("{}-{number:05}", function.name)
}

/// The number in the name of a revision of this function.
pub fn number(function: &FunctionId, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(&function.name)?.strip_prefix('-')?;
    let number = digits.parse().ok().filter(|number| *number > 0)?;
    (self::name(function, number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_five_digits_at_least_and_are_read_back() {
        let checkout = FunctionId::new("shop", "checkout").unwrap();
        for (count, text) in [(1, "checkout-00001"), (99_999, "checkout-99999"), (123_456, "checkout-123456")] {
            assert_eq!(name(&checkout, count), text);
            assert_eq!(number(&checkout, text), Some(count));
        }
        for wrong in ["checkout-00000", "checkout-1", "checkout-000001", "checkout", "cart-00001", "checkout-+0001", ""]
        {
            assert_eq!(number(&checkout, wrong), None, "{wrong}");
        }
    }
}
