//! Whom functions may call, of those that they list as callees. Only policies that were translated say that.

use super::authorization::{Condition, Operation};
use super::label::{LabelExpression, LabelSelector, Labels};
use leno_model::FunctionId;

/// What a translated policy says of its functions' own calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CalleeRules {
    /// Calls that no rule allows are refused. Otherwise all callees may be called.
    pub(crate) default_deny: bool,
    /// Who may be called, of those that are listed as callees anyway.
    pub(crate) allow: Vec<CalleeRule>,
    /// Who may not be called.
    pub(crate) deny: CalleeSelector,
}

/// Who may be called, and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CalleeRule {
    /// Name of the rule in its policy.
    pub(crate) name: String,
    /// Whom.
    pub(crate) to: CalleeSelector,
    /// Functions in one of these ways; empty: in any way. External documents in any way that their
    /// own policies allow.
    pub(crate) calls: Vec<(Operation, Vec<Condition>)>,
}

/// Callees: functions by what they are, External documents by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CalleeSelector {
    /// Functions that one of these selects.
    pub(crate) functions: Vec<FunctionSelector>,
    /// These External documents.
    pub(crate) externals: Vec<FunctionId>,
}

/// Functions and jobs by their labels and namespaces.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FunctionSelector {
    /// In one of these; empty: in any.
    pub(crate) namespaces: Vec<String>,
    /// In none of these.
    pub(crate) not_namespaces: Vec<String>,
    /// With all of these labels.
    pub(crate) labels: Labels,
    /// Whose labels meet all of these.
    pub(crate) expressions: Vec<LabelExpression>,
}

impl FunctionSelector {
    /// Whether it selects a function of this namespace with these labels.
    pub(crate) fn holds(&self, namespace: &str, labels: &Labels) -> bool {
        let named = |list: &[String]| list.iter().any(|name| name == namespace);
        (self.namespaces.is_empty() || named(&self.namespaces))
            && !named(&self.not_namespaces)
            && LabelSelector { labels: Some(&self.labels), expressions: &self.expressions }.holds(labels)
    }
}
