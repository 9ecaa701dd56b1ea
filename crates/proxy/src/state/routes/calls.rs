//! Routes of calls: those of [`leno_model::Callee`].

use super::rules::{self, Rule, Rules};
use leno_model::{Callee, FunctionId};
use leno_routing::BadPattern;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The rules of a caller's calls.
#[derive(Debug, Default)]
pub(crate) struct CallRoutes {
    by_callee: HashMap<FunctionId, ByPort>,
    /// The longest time that a call may take by a rule.
    pub longest: Duration,
}

/// The rules of calls to one callee, or why they cannot be used.
type Usable = Result<Rules, BadPattern>;

#[derive(Debug)]
struct ByPort {
    /// For the ports that routes name.
    named: HashMap<u16, Usable>,
    /// For all others; `None`: there are none.
    others: Option<Usable>,
}

impl CallRoutes {
    /// The rules of calls to these callees.
    pub(crate) fn new(callees: &[Callee]) -> Self {
        let mut routes = Self::default();
        for callee in callees.iter().filter(|callee| !callee.routes.is_empty()) {
            let all: Vec<(Option<u16>, Vec<Arc<Rule>>)> =
                callee.routes.iter().map(|call| (call.port, rules::rules(&call.route))).collect();
            let longest = all.iter().flat_map(|(_, rules)| rules).filter_map(|rule| rule.longest()).max();
            routes.longest = routes.longest.max(longest.unwrap_or_default());
            let at = |port: Option<u16>| {
                let all = all.iter().filter(|(only, _)| only.is_none() || *only == port);
                usable(&callee.id.namespace, all.flat_map(|(_, rules)| rules).collect())
            };
            let ports: BTreeSet<u16> = all.iter().filter_map(|(port, _)| *port).collect();
            let named = ports.into_iter().filter_map(|port| Some((port, at(Some(port))?))).collect();
            routes.by_callee.insert(callee.id.clone(), ByPort { named, others: at(None) });
        }
        routes
    }

    /// The rules of calls to this port of a callee; `None`: its calls follow no routes.
    pub(crate) fn of(&self, callee: &FunctionId, port: u16) -> Option<&Usable> {
        let ByPort { named, others } = self.by_callee.get(callee)?;
        named.get(&port).or(others.as_ref())
    }
}

/// The rules that count; `None`: there are none. Rules of another namespace than the callee's, which
/// are for the callers of that namespace, take the place of all others.
fn usable(namespace: &str, all: Vec<&Arc<Rule>>) -> Option<Usable> {
    let is_consumers = |rule: &Rule| rule.namespace() != namespace;
    let consumers = all.iter().any(|rule| is_consumers(rule));
    let used: Vec<_> = all.into_iter().filter(|rule| is_consumers(rule) == consumers).collect();
    (!used.is_empty()).then(|| Rules::new(used))
}
