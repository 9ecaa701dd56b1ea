//! Selections of functions by their labels.

use super::{Context, fields};
use crate::document::{LabelExpression, LabelOperator, LabelSelector, Labels};
use crate::problem::Scope;
use leno_policy::matching;
use leno_policy::spec::{LabelMatch, Matches, StringMatch};
use std::collections::BTreeMap;

/// Reports expressions that make no sense.
pub(super) fn check(list: &Scope<'_>, expressions: &[LabelExpression]) {
    for (index, LabelExpression { key, operator, values }) in expressions.iter().enumerate() {
        let scope = list.element(index);
        if key.is_empty() {
            scope.field("key").problem("the key is empty", "expected the key of a label");
        }
        match (operator, values.is_empty()) {
            (LabelOperator::In | LabelOperator::NotIn, true) => {
                scope.field("values").problem("there are no values", "add values, or use `Exists` or `DoesNotExist`");
            }
            (LabelOperator::Exists | LabelOperator::DoesNotExist, false) => {
                scope.field("values").problem("the operator looks at no values", "remove them, or use `In` or `NotIn`");
            }
            _ => {}
        }
    }
}

/// The functions and jobs that a selector matches, in the namespaces that match. `own`: the
/// namespace to search if the selector names none.
pub(super) fn callers(
    context: &Context<'_>,
    scope: &Scope<'_>,
    own: &str,
    namespaces: &Matches<StringMatch>,
    (labels, expressions): (Option<&Labels>, Option<&[LabelExpression]>),
) -> Option<LabelMatch> {
    if labels.is_none() && expressions.is_none() {
        return None;
    }
    if labels.is_some_and(BTreeMap::is_empty) {
        scope.field("labels").problem("the mapping is empty", "name a label, or use `identities: [\"namespace/*\"]`");
    }
    let selector = LabelSelector { labels, expressions: expressions.unwrap_or_default() };
    if let Some(expressions) = expressions {
        let list = scope.field("labelExpressions");
        fields::not_empty(&list, expressions, "any labels");
        check(&list, expressions);
    }
    let meets = |list: &[StringMatch], name: &str| list.iter().any(|matcher| matching::text(matcher, name));
    let looks_in = |namespace: &str| {
        let wanted = if namespaces.any.is_empty() { namespace == own } else { meets(&namespaces.any, namespace) };
        wanted && !meets(&namespaces.none, namespace)
    };
    let found = context.labels().iter().filter(|(id, labels)| looks_in(&id.namespace) && selector.holds(labels));
    let mut identities: Vec<String> = found.map(|(id, _)| context.identity(id).to_string()).collect();
    identities.sort_unstable();
    identities.dedup();
    Some(LabelMatch { selector: selector.words(), identities })
}
