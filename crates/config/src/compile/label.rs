//! Selections of functions by their labels.

use super::{Context, fields};
use crate::document::{LabelExpression, LabelOperator};
use crate::problem::Scope;
use crate::snapshot;
use leno_policy::matching;
use leno_policy::spec::{Labelled, Matches, StringMatch};
use std::collections::BTreeMap;

/// The labels of a function, by key.
pub(crate) type Labels = BTreeMap<String, String>;

/// Holds for labels that have all of `labels` and meet all of `expressions`.
#[derive(Clone, Copy)]
pub(super) struct Selector<'a> {
    pub labels: Option<&'a Labels>,
    pub expressions: &'a [LabelExpression],
}

impl Selector<'_> {
    pub(super) fn holds(&self, labels: &Labels) -> bool {
        self.labels.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
            && self.expressions.iter().all(|expression| meets(expression, labels))
    }

    /// `app=web,tier in (a,b),!canary`
    fn words(&self) -> String {
        let equal = self.labels.into_iter().flatten().map(|(key, value)| format!("{key}={value}"));
        let expressions = self.expressions.iter().map(|LabelExpression { key, operator, values }| match operator {
            LabelOperator::In => format!("{key} in ({})", values.join(",")),
            LabelOperator::NotIn => format!("{key} notin ({})", values.join(",")),
            LabelOperator::Exists => key.clone(),
            LabelOperator::DoesNotExist => format!("!{key}"),
        });
        equal.chain(expressions).collect::<Vec<_>>().join(",")
    }
}

fn meets(expression: &LabelExpression, labels: &Labels) -> bool {
    let value = labels.get(&expression.key);
    let listed = || value.is_some_and(|value| expression.values.contains(value));
    match expression.operator {
        LabelOperator::In => listed(),
        LabelOperator::NotIn => !listed(),
        LabelOperator::Exists => value.is_some(),
        LabelOperator::DoesNotExist => value.is_none(),
    }
}

/// Reports expressions that cannot be meant.
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

/// The functions and jobs that a selector holds for, in the namespaces that match. `own`: where to look if no namespaces are wanted.
pub(super) fn callers(
    context: &Context<'_>,
    scope: &Scope<'_>,
    own: &str,
    namespaces: &Matches<StringMatch>,
    (labels, expressions): (Option<&Labels>, Option<&[LabelExpression]>),
) -> Option<Labelled> {
    if labels.is_none() && expressions.is_none() {
        return None;
    }
    if labels.is_some_and(BTreeMap::is_empty) {
        scope.field("labels").problem("the mapping is empty", "name a label, or use `identities: [\"namespace/*\"]`");
    }
    let selector = Selector { labels, expressions: expressions.unwrap_or_default() };
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
    let found = context.labels.iter().filter(|(id, labels)| looks_in(&id.namespace) && selector.holds(labels));
    let mut identities: Vec<String> = found.map(|(id, _)| snapshot::identity(context.trust_domain, id)).collect();
    identities.sort_unstable();
    Some(Labelled { selector: selector.words(), identities })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator() {
        let labels = |text: &[(&str, &str)]| -> Labels {
            text.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let expression = |operator, values: &[&str]| LabelExpression {
            key: "app".to_owned(),
            operator,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        };
        let (web, other, none) = (labels(&[("app", "web")]), labels(&[("app", "x")]), labels(&[("tier", "a")]));
        for (operator, values, expected, words) in [
            (LabelOperator::In, &["web", "api"][..], [true, false, false], "app in (web,api)"),
            (LabelOperator::NotIn, &["web"], [false, true, true], "app notin (web)"),
            (LabelOperator::Exists, &[], [true, true, false], "app"),
            (LabelOperator::DoesNotExist, &[], [false, false, true], "!app"),
        ] {
            let expressions = [expression(operator, values)];
            let selector = Selector { labels: None, expressions: &expressions };
            assert_eq!([&web, &other, &none].map(|labels| selector.holds(labels)), expected, "{operator:?}");
            assert_eq!(selector.words(), words);
        }
        let both = labels(&[("app", "web"), ("tier", "a")]);
        let selector = Selector { labels: Some(&both), expressions: &[] };
        assert!(selector.holds(&both) && !selector.holds(&web));
        assert_eq!(selector.words(), "app=web,tier=a");
    }
}
