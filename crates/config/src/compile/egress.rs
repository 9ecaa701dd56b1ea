//! Whom functions may call, of those that they list as callees: only translated policies say that.

use super::authorization;
use crate::document::{Egress, EgressRule};
use crate::problem::Scope;
use crate::snapshot;
use leno_policy::spec;

pub(super) fn egress(scope: &Scope<'_>, policy: &str, egress: &Egress) -> snapshot::Egress {
    let call = |(operation, conditions): &(_, Vec<_>)| {
        let conditions = conditions.iter().filter_map(|one| authorization::condition(scope, one)).collect();
        (authorization::operation(scope, operation), conditions)
    };
    let allow = egress.allow.iter().map(|EgressRule { name, to, calls }| snapshot::EgressRule {
        name: format!("{policy}/egress/{name}"),
        to: to.clone(),
        calls: calls.iter().map(call).collect::<Vec<(spec::Operation, Vec<spec::Condition>)>>(),
    });
    snapshot::Egress { default_deny: egress.default_deny, allow: allow.collect(), deny: egress.deny.clone() }
}
