//! Revisions of a function ([`Template`]), their rollout ([`Plan`]), and the split of requests
//! between them ([`Split`]).
//!
//! A document has a plan. The control plane numbers revisions and makes a split of the plan and the
//! rollout's progress. Nodes act on splits.

use crate::function_id::FunctionId;
use crate::run::{AppProtocol, Run, Scale};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The header whose value names a tagged revision, in lower case.
pub const TAG_HEADER: &str = "leno-tag";

/// The number of revisions that the control plane keeps by default.
pub const HISTORY: u32 = 10;

/// The content of a revision: a change of one of these fields makes a new revision. All other
/// fields of a function (policies, callees, hosts at the gateway) hold for all its revisions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Template {
    /// How the node gets instances.
    pub run: Run,
    /// The instances' protocol.
    pub protocol: AppProtocol,
    /// Concurrent requests of one instance; 0: no limit.
    pub concurrency: u32,
    /// The number of instances, if the node runs them.
    pub scale: Scale,
}

/// A numbered template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revision {
    /// From 1.
    pub number: u32,
    /// The content.
    pub template: Template,
}

/// The revisions in a [`FunctionConfig`](crate::FunctionConfig). Its fields `run`, `protocol`,
/// `concurrency` and `scale` are those of the revision `number`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Revisions {
    /// The revision in the configuration's fields; 0: the control plane has not numbered it.
    pub number: u32,
    /// The rollout. Nodes read its latency limit.
    pub plan: Plan,
    /// `None`: the revision `number` gets all requests.
    pub split: Option<Box<Split>>,
    /// Names of revisions that the document declares, with their numbers. Several numbers can have
    /// the same name.
    pub names: Vec<(u32, String)>,
}

impl Revisions {
    /// The name of a declared revision.
    pub fn name(&self, number: u32) -> Option<&str> {
        self.names.iter().find(|(named, _)| *named == number).map(|(_, name)| &**name)
    }
}

/// The rollout and the traffic targets of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// `spec.traffic`; empty: all requests go to the latest revision.
    pub traffic: Vec<Target>,
    /// How traffic moves to the latest revision; `None`: at once.
    pub rollout: Option<Rollout>,
    /// Revisions to keep. Revisions with traffic are always kept.
    pub history: u32,
    /// `spec.revisions`. Nodes do not get them: each revision with requests is in the [`Split`].
    pub declared: Vec<DeclaredRevision>,
}

impl Plan {
    /// Whether the document declares its revisions by name.
    pub fn is_named(&self) -> bool {
        self.traffic.iter().any(|target| target.name.is_some())
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self { traffic: Vec::new(), rollout: None, history: HISTORY, declared: Vec::new() }
    }
}

/// A revision that a document declares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeclaredRevision {
    /// Its name, a DNS label.
    pub name: String,
    /// Its content.
    pub template: Template,
}

/// An element of `spec.traffic`, or of a [`Split`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The revision's number; in a plan, 0 is the latest, or the one with the `name`.
    pub revision: u32,
    /// Share of the requests that match no tag and no header.
    pub percent: u8,
    /// Value of [`TAG_HEADER`].
    pub tag: Option<String>,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// Name of a declared revision; in plans only.
    pub name: Option<String>,
}

/// A gradual rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Rising percentages, 1 to 99.
    pub steps: Vec<u8>,
    /// Shortest duration of a step.
    pub interval: Duration,
    /// How much higher, 0 to 1, the new revision's share of failures may be than the previous
    /// one's.
    pub max_error_rate: f64,
    /// The limit on slow requests.
    pub latency: Option<Latency>,
    /// Requests that the new revision must get in a step before the control plane judges it.
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

/// The choice of the revision that gets a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// The node tries them in this order. The percentages add up to 100. Several may have the same
    /// revision.
    pub targets: Vec<Target>,
    /// The targets' revisions, except the one in the configuration's fields, each once.
    pub others: Vec<Revision>,
}

/// The name of a revision: `checkout-00003`.
pub fn name(function: &FunctionId, number: u32) -> String {
    format!("{}-{number:05}", function.name)
}

/// The name of a revision with its declared name: `checkout-00003 (stable)`.
pub fn label(function: &FunctionId, number: u32, declared: Option<&str>) -> String {
    let name = name(function, number);
    match declared {
        Some(declared) => format!("{name} ({declared})"),
        None => name,
    }
}

/// The number in a revision's name; `None`: it is not a name of this function's revisions.
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
