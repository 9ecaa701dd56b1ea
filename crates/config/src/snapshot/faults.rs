//! Checked faults of policies.

use crate::problem::Problem;
use crate::timestamp::Timestamp;
use leno_model::Fault;
use std::fmt;

/// A checked fault of a policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PolicyFault {
    pub fault: Fault,
    pub until: Timestamp,
    /// It had ended when the document was compiled.
    pub is_over: bool,
    pub targets: Vec<FaultTarget>,
}

/// A route or a rule of a fault.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FaultTarget {
    /// Name of a route, or of a function with `expose`, of the policy's namespace.
    pub route: String,
    /// Name or index of a rule; `None`: all rules.
    pub rule: Option<String>,
    /// The place, for a warning: a problem without text.
    pub place: Problem,
}

impl fmt::Display for FaultTarget {
    /// `ROUTE` or `ROUTE/RULE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.route)?;
        self.rule.as_ref().map_or(Ok(()), |rule| write!(f, "/{rule}"))
    }
}
