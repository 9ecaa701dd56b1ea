//! Whom functions may call, of those that they list as callees. Only policies that were translated say that.

use super::authorization::{Condition, Operation};
use super::label::{LabelExpression, LabelSelector, Labels};
use leno_model::FunctionId;

/// What a translated policy says of its functions' own calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CalleeRules {
    /// Calls that no rule allows are refused. Otherwise all callees may be called.
    pub default_deny: bool,
    /// Who may be called, of those that are listed as callees anyway.
    pub allow: Vec<CalleeRule>,
    /// Who may not be called.
    pub deny: CalleeSelector,
}

/// Who may be called, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct CalleeRule {
    /// Name of the rule in its policy.
    pub name: String,
    /// Whom.
    pub to: CalleeSelector,
    /// Functions in one of these ways; empty: in any way. External documents in any way that their
    /// own policies allow.
    pub calls: Vec<(Operation, Vec<Condition>)>,
}

/// Callees: functions by what they are, External documents by name.
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
