//! Warnings of policies that the last compilation found.

use super::Mesh;
use crate::compile::TypedDocument;
use crate::compile::cache::{PolicyWarnings, Results, WarnedTarget, repeat};
use crate::document;
use crate::snapshot::Function;
use leno_model::FunctionId;
use std::sync::Arc;

impl<'a> Mesh<'a> {
    /// Adds the warnings of a policy: those of the last compilation, if nothing that they depend on
    /// has changed.
    pub(super) fn kept(&self, index: usize, placed: &Arc<TypedDocument<document::Policy>>, cache: &mut Results) {
        let targets = || self.of_policy[index].iter();
        let policies = |function: &'a Function| function.policies.iter().map(|index| &self.policies[*index]);
        let is_same = |((id, function), target): (&(&FunctionId, &'a Function), &WarnedTarget)| {
            let WarnedTarget { id: before, timeout, policies: applied } = target;
            *id == before
                && function.timeout == *timeout
                && function.policies.len() == applied.len()
                && policies(function).zip(applied).all(|(one, other)| Arc::ptr_eq(one, other))
        };
        let left = self.budget.get();
        if let Some(PolicyWarnings { targets: before, found, cost }) = cache.warnings(placed)
            && before.len() == self.of_policy[index].len()
            && targets().zip(before).all(is_same)
            && *cost < left
        {
            self.budget.set(left - cost);
            return repeat(&self.found, found);
        }
        let before = self.found.borrow().len();
        self.policy(index, placed);
        if self.budget.get() > 0 {
            cache.keep_warnings(placed, || PolicyWarnings {
                targets: targets()
                    .map(|(id, function)| WarnedTarget {
                        id: (*id).clone(),
                        timeout: function.timeout,
                        policies: policies(function).cloned().collect(),
                    })
                    .collect(),
                found: self.found.borrow()[before..].to_vec(),
                cost: left - self.budget.get(),
            });
        }
    }
}
