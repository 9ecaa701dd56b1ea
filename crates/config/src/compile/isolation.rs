//! Isolation of instances. A function or job may be stricter than its namespace, never weaker.

use super::Context;
use crate::problem::Scope;
use leno_model::FunctionId;
use leno_model::Isolation;

/// The isolation of a function or job that says `written`.
pub(super) fn chosen(
    context: &Context<'_>,
    scope: &Scope<'_>,
    id: &FunctionId,
    written: Option<Isolation>,
) -> Isolation {
    let chosen = written.unwrap_or(context.isolation);
    match context.namespaces.of(&id.namespace).bounds.isolation {
        Some(least) if chosen.is_weaker_than(least) => {
            if written.is_some() {
                let namespace = &id.namespace;
                let message = format!(
                    "`{chosen}` is weaker than `{least}`, which is the least that the namespace `{namespace}` may have"
                );
                let fix = "remove it, or write `isolation: strict`; the bound is `isolation` in the namespace's quota, in `namespaces` of the Mesh \
                           document, or else `instances.isolation: strict` there";
                scope.field("isolation").problem(message, fix);
            }
            least
        }
        _ => chosen,
    }
}
