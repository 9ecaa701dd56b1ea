//! Rules which of its listed callees a function may call: only translated policies have them.

use super::authorization;
use crate::document::{CalleeRule, CalleeRules};
use crate::problem::Scope;
use crate::snapshot;
use leno_policy::spec;

pub(super) fn callee_rules(scope: &Scope<'_>, policy: &str, rules: &CalleeRules) -> snapshot::CalleeRules {
    let call = |(operation, conditions): &(_, Vec<_>)| {
        let conditions = conditions.iter().filter_map(|one| authorization::condition(scope, one)).collect();
        (authorization::operation(scope, operation), conditions)
    };
    let allow = rules.allow.iter().map(|CalleeRule { name, to, calls }| snapshot::CalleeRule {
        name: format!("{policy}/egress/{name}"),
        to: to.clone(),
        calls: calls.iter().map(call).collect::<Vec<(spec::Operation, Vec<spec::Condition>)>>(),
    });
    snapshot::CalleeRules { default_deny: rules.default_deny, allow: allow.collect(), deny: rules.deny.clone() }
}
