//! Conditions on labels.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A condition on a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelExpression {
    /// The label.
    pub key: String,
    /// What is wanted of it.
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
