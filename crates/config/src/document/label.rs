//! Conditions on labels.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A condition on a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelExpression {
    /// The label.
    pub key: String,
    /// Condition on the label.
    pub operator: LabelOperator,
    /// For `In` and `NotIn`.
    #[serde(default)]
    pub values: Vec<String>,
}

/// What is wanted of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LabelOperator {
    /// It has one of the values.
    In,
    /// It has none of the values, or is not there.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

/// The labels of a function, by key.
pub type Labels = BTreeMap<String, String>;

/// Holds for labels that have all of `labels` and meet all of `expressions`.
#[derive(Clone, Copy)]
pub(crate) struct LabelSelector<'a> {
    pub(crate) labels: Option<&'a Labels>,
    pub(crate) expressions: &'a [LabelExpression],
}

impl LabelSelector<'_> {
    /// Whether it holds for these labels.
    pub(crate) fn holds(&self, labels: &Labels) -> bool {
        self.labels.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
            && self.expressions.iter().all(|expression| meets(expression, labels))
    }

    /// `app=web,tier in (a,b),!canary`
    pub(crate) fn words(&self) -> String {
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
            let selector = LabelSelector { labels: None, expressions: &expressions };
            assert_eq!([&web, &other, &none].map(|labels| selector.holds(labels)), expected, "{operator:?}");
            assert_eq!(selector.words(), words);
        }
        let both = labels(&[("app", "web"), ("tier", "a")]);
        let selector = LabelSelector { labels: Some(&both), expressions: &[] };
        assert!(selector.holds(&both) && !selector.holds(&web));
        assert_eq!(selector.words(), "app=web,tier=a");
    }
}
