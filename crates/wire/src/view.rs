//! Views: rows of what a node knows, in JSON.

use crate::question_error::{BadAnswer, BadQuestion};
use crate::v1;
use std::collections::BTreeSet;

/// Maximum size of the rows in one answer, in bytes.
const MAX_ROWS: u32 = 1 << 20;
/// Maximum length of an argument and of a filter, in bytes: positions in the records of some hundred workers.
const MAX_ARGUMENT: usize = 4 << 10;
/// Maximum number of namespaces in one question.
const MAX_NAMESPACES: usize = 1000;

/// A view of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Instances of functions.
    Instances,
    /// The progress of each revision of each function.
    Functions,
    /// Decisions of the autoscaler, and failures of instances.
    Events,
    /// Recent requests and connections.
    Flows,
    /// The stages of one recent request.
    Explanation,
    /// Counts of exchanges by caller and callee.
    Edges,
    /// Counts of decisions by rule.
    Rules,
    /// Refused destinations of functions.
    Destinations,
    /// The use of limits.
    Limits,
    /// Conditions that need attention.
    Alerts,
}

impl View {
    const ALL: [(Self, &str); 10] = [
        (Self::Instances, "instances"),
        (Self::Functions, "functions"),
        (Self::Events, "events"),
        (Self::Flows, "flows"),
        (Self::Explanation, "explanation"),
        (Self::Edges, "edges"),
        (Self::Rules, "rules"),
        (Self::Destinations, "destinations"),
        (Self::Limits, "limits"),
        (Self::Alerts, "alerts"),
    ];

    /// A query for its rows of all namespaces. The limit is still 0.
    pub fn query(self, argument: impl Into<String>) -> ViewQuery {
        let (argument, filter, namespaces) = (argument.into(), String::new(), BTreeSet::new());
        ViewQuery { view: self, argument, namespaces, limit: 0, filter, last: None }
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(view, _)| *view == self).map_or("", |(_, name)| name)
    }
}

/// A query for the rows of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewQuery {
    /// The view.
    pub view: View,
    /// Of flows: [`ViewRows::next`] of the answer before. Of an explanation: the ID of the request.
    /// Of rules and limits: the function, `namespace/name`; empty: all. Earlier releases answer about
    /// rules with all.
    pub argument: String,
    /// Only rows of these namespaces; empty: of all.
    pub namespaces: BTreeSet<String>,
    /// Bytes of rows that the answer may have.
    pub limit: u32,
    /// Of flows: which ones, as a JSON object; empty: all. Nodes of earlier releases answer with all.
    pub filter: String,
    /// At most so many rows, the last ones. Nodes of earlier releases answer with all that fit.
    pub last: Option<u32>,
}

/// The rows of a view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewRows {
    /// A JSON object for each row. Rows with a time are in the order of their times.
    pub rows: Vec<String>,
    /// Rows that the node has forgotten, or that the answer could not have.
    pub missed: u64,
    /// Of flows: where the next answer begins.
    pub next: String,
}

impl ViewQuery {
    pub(crate) fn from_wire(sent: v1::ReadView) -> Result<Self, BadQuestion> {
        let v1::ReadView { view, argument, namespaces, limit, filter, last } = sent;
        let (view, _) = *View::ALL.iter().find(|(_, name)| *name == view).ok_or(BadQuestion::Unknown)?;
        let (namespaces, limit) = (namespaces.into_iter().collect(), limit.min(MAX_ROWS));
        Self { view, argument, namespaces, limit, filter, last }.checked()
    }

    pub(crate) fn to_wire(&self) -> Result<v1::ReadView, BadQuestion> {
        let Self { view, argument, namespaces, limit, filter, last } = self.clone().checked()?;
        Ok(v1::ReadView {
            view: view.name().to_owned(),
            argument,
            namespaces: namespaces.into_iter().collect(),
            limit: limit.min(MAX_ROWS),
            filter,
            last,
        })
    }

    fn checked(self) -> Result<Self, BadQuestion> {
        let is_small = self.argument.len() <= MAX_ARGUMENT && self.filter.len() <= MAX_ARGUMENT;
        let fits = is_small && self.namespaces.len() <= MAX_NAMESPACES;
        fits.then_some(self).ok_or(BadQuestion::ViewTooLarge)
    }

    pub(crate) fn check(&self, answer: &ViewRows) -> Result<(), BadAnswer> {
        let bytes: usize = answer.rows.iter().map(String::len).sum();
        let fits = bytes <= self.limit.min(MAX_ROWS) as usize && answer.next.len() <= MAX_ARGUMENT;
        if fits { Ok(()) } else { Err(BadAnswer::TooLong) }
    }
}

impl From<v1::View> for ViewRows {
    fn from(v1::View { rows, missed, next }: v1::View) -> Self {
        Self { rows, missed, next }
    }
}

impl From<&ViewRows> for v1::View {
    fn from(ViewRows { rows, missed, next }: &ViewRows) -> Self {
        Self { rows: rows.clone(), missed: *missed, next: next.clone() }
    }
}
