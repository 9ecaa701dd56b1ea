//! The rules for calls to a function.

use super::{Function, Snapshot};
use leno_model::{FunctionId, PodMode, Run};
use leno_policy::spec;

impl Snapshot {
    /// The rules of all policies. Permissive pods without an allow rule that is in force have one
    /// that allows every request.
    pub(super) fn authorization(&self, id: &FunctionId, function: &Function) -> Vec<spec::AuthorizationRule> {
        let rules = self.applied(function).flat_map(|policy| &policy.authorization);
        let allow = self.is_permissive(function).then(|| spec::AuthorizationRule {
            name: id.permissive_rule(),
            action: spec::Action::Allow,
            from: Vec::new(),
            to: Vec::new(),
            when: Vec::new(),
            audit: false,
        });
        rules.cloned().chain(allow).collect()
    }

    /// Whether the function's pods are permissive, and no rule or audit decides what they allow.
    fn is_permissive(&self, function: &Function) -> bool {
        let mut rules = self.applied(function).flat_map(|policy| &policy.authorization);
        let allows = |rule: &spec::AuthorizationRule| rule.action == spec::Action::Allow && !rule.audit;
        function.has_permissive_pods() && !self.audits_default(function) && !rules.any(allows)
    }

    /// Whether requests that no rule allows enter: all policies that authorize are audited, and
    /// there is at least one.
    pub(super) fn audits_default(&self, function: &Function) -> bool {
        let mut authorizing = self.applied(function).filter(|policy| policy.authorizes).peekable();
        authorizing.peek().is_some() && authorizing.all(|policy| policy.audit)
    }
}

impl Function {
    /// Whether its pods allow requests if no policy says otherwise.
    pub(crate) fn has_permissive_pods(&self) -> bool {
        matches!(&self.run, Run::Pods(pods) if pods.mode == PodMode::Permissive)
    }
}
