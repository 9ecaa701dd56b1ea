//! Rules for the calls of a function to its callees. Only translated policies have them.

use super::authorization::{Condition, Operation};
use super::label::{LabelExpression, LabelSelector, Labels};
use leno_model::FunctionId;

/// Rules of a translated policy for the calls of its functions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CalleeRules {
    /// Calls that no rule allows are refused. Otherwise all callees may be called.
    pub default_deny: bool,
    /// Permitted callees, of those that the function lists.
    pub allow: Vec<CalleeRule>,
    /// Refused callees.
    pub deny: CalleeSelector,
}

/// Permitted callees, and the permitted calls.
#[derive(Clone, Debug, PartialEq)]
pub struct CalleeRule {
    /// Name of the rule in its policy.
    pub name: String,
    /// The callees.
    pub to: CalleeSelector,
    /// Functions in one of these ways; empty: in any way. External documents in any way that their
    /// own policies allow.
    pub calls: Vec<(Operation, Vec<Condition>)>,
}

/// Callees: functions by namespace and labels, External documents by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CalleeSelector {
    /// Functions that one of these selects.
    pub functions: Vec<FunctionSelector>,
    /// These External documents.
    pub externals: Vec<FunctionId>,
}

/// Functions and jobs by their labels and namespaces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FunctionSelector {
    /// In one of these; empty: in any.
    pub namespaces: Vec<String>,
    /// In none of these.
    pub not_namespaces: Vec<String>,
    /// With all of these labels.
    pub labels: Labels,
    /// Whose labels meet all of these.
    pub expressions: Vec<LabelExpression>,
}

impl FunctionSelector {
    /// Whether it selects a function of this namespace with these labels.
    pub fn holds(&self, namespace: &str, labels: &Labels) -> bool {
        let named = |list: &[String]| list.iter().any(|name| name == namespace);
        (self.namespaces.is_empty() || named(&self.namespaces))
            && !named(&self.not_namespaces)
            && LabelSelector { labels: Some(&self.labels), expressions: &self.expressions }.holds(labels)
    }
}
