//! Parts of regular expressions that match no text of a request.

use super::Mesh;
use crate::compile::forms::{Form, dead_alternatives};
use crate::document::{Condition, Operation, PolicySpec, TextMatch};
use crate::problem::Scope;

/// The cost of following one byte of an expression, in compared values of the budget.
const PER_BYTE: u64 = 100;

impl Mesh<'_> {
    /// Reports alternatives that can never match: the rule does not deny, or allow, the intended
    /// requests.
    pub(super) fn alternatives(&self, spec: &Scope<'_>, document: &PolicySpec) {
        let rules = spec.field("authorization");
        let rules = rules.field("rules");
        for (number, rule) in document.authorization.iter().flat_map(|section| &section.rules).enumerate() {
            let scope = rules.element(number);
            let (to, when) = (scope.field("to"), scope.field("when"));
            for (index, operation) in rule.to.iter().flatten().enumerate() {
                self.operation(&to.element(index), operation);
            }
            for (index, condition) in rule.when.iter().flatten().enumerate() {
                self.condition(&when.element(index), condition);
            }
        }
        let limits = spec.field("rateLimits");
        for (number, limit) in document.rate_limits.iter().enumerate() {
            if let Some(operation) = &limit.r#match {
                self.operation(&limits.element(number).field("match"), operation);
            }
        }
    }

    fn operation(&self, scope: &Scope<'_>, operation: &Operation) {
        let Operation { methods, not_methods, hosts, not_hosts, paths, not_paths, .. } = operation;
        for (form, field, any, not_field, none) in [
            (Form::Method, "methods", methods, "notMethods", not_methods),
            (Form::Host, "hosts", hosts, "notHosts", not_hosts),
            (Form::Path, "paths", paths, "notPaths", not_paths),
        ] {
            self.list(&scope.field(field), form, any.iter().flatten());
            self.list(&scope.field(not_field), form, none.iter());
        }
    }

    fn condition(&self, scope: &Scope<'_>, condition: &Condition) {
        let form = if condition.header.is_some() { Form::HeaderValue } else { Form::Any };
        self.list(&scope.field("values"), form, condition.values.iter().flatten());
        self.list(&scope.field("notValues"), form, condition.not_values.iter());
    }

    fn list<'t>(&self, list: &Scope<'_>, form: Form, texts: impl Iterator<Item = &'t TextMatch>) {
        for (index, text) in texts.enumerate() {
            let TextMatch::Regex { regex, with_query } = text else { continue };
            let cost = PER_BYTE * regex.len() as u64;
            self.budget.set(self.budget.get().saturating_sub(cost));
            if !regex.contains('|') || self.budget.get() == 0 {
                continue;
            }
            let form = if *with_query && form == Form::Path { Form::PathWithQuery } else { form };
            for dead in dead_alternatives(regex, form) {
                let message =
                    format!("in `{}`, the alternative `{}` can never match", regex.escape_debug(), dead.escape_debug());
                list.element(index).field("regex").problem(message, form.words());
            }
        }
    }
}
