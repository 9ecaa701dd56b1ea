//! Output of instances, by page, as control plane and node return it.

use leno_model::{FunctionId, Output, OutputLine, OutputMark, OutputQuery, OutputStream};

use leno_wire::messages::millis;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// Most instances with further lines.
const MAX_MARKS: usize = 1000;

/// Which output is asked for.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    /// Only of instances on this node.
    #[serde(default)]
    pub node: Option<String>,
    /// Only of the instance with this number.
    #[serde(default)]
    pub instance: Option<u64>,
    /// Only of the instance that ended last, on each node.
    #[serde(default)]
    pub previous: bool,
    /// Only of this run of a job, from 1; without it, of the last run.
    #[serde(default)]
    pub attempt: Option<u32>,
    /// Of instances that were not read before, only so many of the last lines. Without it: all that nodes keep.
    #[serde(default)]
    pub tail: Option<u32>,
    /// `after` of the page before: what follows is asked for.
    #[serde(default)]
    pub after: String,
}

/// A page of output.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LogPage {
    /// In the order of their times.
    pub lines: Vec<LogLine>,
    /// Where the next page begins.
    pub after: String,
    /// Lines that nodes forgot before they were read.
    pub dropped: u64,
    /// There are more lines already.
    pub more: bool,
    /// Nodes that did not answer, and why; or that no node has the function.
    pub missing: Vec<String>,
}

/// A line of output.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    /// The node; empty: the one that was asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Number of the instance.
    pub instance: u64,
    /// When it was written, in seconds since 1970.
    pub time: f64,
    /// `stdout` or `stderr`.
    pub stream: String,
    /// The line, without its end.
    pub text: String,
}

/// The read position of each node's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks(pub BTreeMap<String, Vec<OutputMark>>);

/// A text is not the position of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMarks {
    /// Another text.
    #[error("`after` is not that of a page")]
    Malformed,
    /// The page would have too many instances.
    #[error("`after` is of more than {MAX_MARKS} instances; ask for one node or one instance")]
    TooMany,
}

impl Marks {
    /// Parses [`Marks::text`].
    pub fn read(text: &str) -> Result<Self, BadMarks> {
        let mut marks = Self::default();
        for (index, mark) in text.split(',').filter(|mark| !mark.is_empty()).enumerate() {
            let mut parts = mark.split(':');
            let node = parts.next().unwrap_or_default();
            let numbers: Option<Vec<u64>> = parts.map(|part| part.parse().ok()).collect();
            let Some([instance, began_ms, next]) =
                numbers.as_deref().and_then(|numbers| <[u64; 3]>::try_from(numbers).ok())
            else {
                return Err(BadMarks::Malformed);
            };
            if index >= MAX_MARKS {
                return Err(BadMarks::TooMany);
            }
            marks.0.entry(node.to_owned()).or_default().push(OutputMark { instance, began_ms, next });
        }
        Ok(marks)
    }

    /// The text in a query.
    pub fn text(&self) -> String {
        let marks = self.0.iter().flat_map(|(node, marks)| marks.iter().map(move |mark| (node, mark)));
        let mark =
            |(node, mark): (&String, &OutputMark)| format!("{node}:{}:{}:{}", mark.instance, mark.began_ms, mark.next);
        marks.map(mark).collect::<Vec<_>>().join(",")
    }
}

impl LogQuery {
    /// The query to a node.
    pub fn of_node(&self, function: &FunctionId, marks: &Marks, node: &str, limit: u32) -> OutputQuery {
        OutputQuery {
            function: function.clone(),
            instance: self.instance,
            previous: self.previous,
            attempt: self.attempt,
            tail: self.tail,
            after: marks.0.get(node).cloned().unwrap_or_default(),
            limit,
        }
    }
}

impl LogPage {
    /// Adds a node's answer.
    pub fn add(&mut self, node: &str, output: Output, marks: &mut Marks) {
        let name = |stream| match stream {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        };
        let line = |OutputLine { instance, at, stream, text }| LogLine {
            node: node.to_owned(),
            instance,
            time: millis(at) as f64 / 1e3,
            stream: name(stream).to_owned(),
            text,
        };
        self.lines.extend(output.lines.into_iter().map(line));
        self.dropped += output.dropped;
        self.more |= output.more;
        marks.0.insert(node.to_owned(), output.marks);
    }

    /// Sorts the lines, and sets the position of the next page.
    pub fn finish(mut self, marks: &Marks) -> Self {
        self.lines.sort_by(|one, other| one.time.total_cmp(&other.time));
        self.after = marks.text();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_were_written() {
        let mark = |instance| OutputMark { instance, began_ms: 1_900_000_000_000, next: 7 };
        let marks =
            Marks([(String::new(), vec![mark(1)]), ("node-1.example".to_owned(), vec![mark(2), mark(3)])].into());
        assert_eq!(Marks::read(&marks.text()), Ok(marks));
        assert_eq!(Marks::read(""), Ok(Marks::default()));
        for bad in ["a", "a:1:2", "a:1:2:3:4", "a:1:2:x", "a:1:2:-3", "a:1:2:99999999999999999999"] {
            assert!(Marks::read(bad).is_err(), "{bad}");
        }
        assert!(Marks::read(&"a:1:2:3,".repeat(2000)).is_err());
    }
}
