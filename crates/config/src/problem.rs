//! Errors in documents: place, error and fix.

use crate::yaml::{Mark, Node, Value};
use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};

/// Most problems in a report. Further ones are left out: a reader corrects the first ones first.
pub(crate) const MAX_PROBLEMS: usize = 10_000;
/// Bytes of each text of a problem.
const MAX_TEXT: usize = 4096;

/// One error in a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file, as it was named or found.
    pub file: PathBuf,
    /// Line, from 1; 0: the file as a whole.
    pub line: u32,
    /// Column in characters, from 1; 0: the file as a whole.
    pub column: u32,
    /// The field: `spec.retry.attempts`, `spec.callees[2]`; empty: the document as a whole.
    pub field: String,
    /// The error.
    pub message: String,
    /// The fix; empty: it is obvious.
    pub fix: String,
}

impl Problem {
    /// An error of a file as a whole.
    /// The fix of a relative path in a document of a request.
    pub(crate) const IN_NO_FOLDER: &str =
        "expected an absolute path: a document that comes in a request is in no folder";
    /// The message about a file that the compiler would have to read for a document of a request.
    pub(crate) const READS_NO_FILES: &str = "the control plane reads no files for documents that come in a request";

    /// Whether it is about a path that has a meaning in documents that are files, and none in those
    /// of requests.
    pub(crate) fn is_of_a_request_path(&self) -> bool {
        self.fix.starts_with(Self::IN_NO_FOLDER) || self.message == Self::READS_NO_FILES
    }

    pub(crate) fn of_file(file: &Path, message: impl Into<String>, fix: impl Into<String>) -> Self {
        let field = String::new();
        Self { file: file.to_owned(), line: 0, column: 0, field, message: message.into(), fix: fix.into() }
    }
}

impl fmt::Display for Problem {
    /// `orders.yaml:12:5 spec.port: 70000 is too large; expected 1 to 65535`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.field.is_empty() {
            write!(f, " {}", self.field)?;
        }
        write!(f, ": {}", self.message)?;
        if !self.fix.is_empty() {
            write!(f, "; {}", self.fix)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

/// The origin of a document, which decides how its paths are resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A file. Relative paths start from its folder, and files that the compiler needs are read
    /// when the document is compiled.
    #[default]
    File,
    /// A request. Paths are absolute paths of the nodes; no file is read when the document is
    /// compiled.
    Request,
}

/// A place in a document, for reporting problems there: follows fields and elements, and stays at the last place that
/// exists.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    file: &'a Path,
    node: Option<&'a Node>,
    mark: Mark,
    path: PathTo<'a>,
    origin: Origin,
    problems: &'a RefCell<Vec<Problem>>,
}

#[derive(Clone, Copy)]
enum PathTo<'a> {
    Root,
    Field(&'a Scope<'a>, &'a str),
    Element(&'a Scope<'a>, usize),
}

impl<'a> Scope<'a> {
    /// The whole document.
    pub fn root(file: &'a Path, node: &'a Node, problems: &'a RefCell<Vec<Problem>>) -> Self {
        Self { file, node: Some(node), mark: node.mark, path: PathTo::Root, origin: Origin::File, problems }
    }

    /// The same place in a document of this origin.
    pub fn of(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// A field of the mapping here.
    pub fn field<'s>(&'s self, name: &'s str) -> Scope<'s> {
        let entry = match self.node.map(|node| &node.value) {
            Some(Value::Map(entries)) => entries.iter().find(|(key, _)| key.text == name),
            _ => None,
        };
        let (node, mark) = match entry {
            // A block collection starts on the line after its key; a reader looks for the key.
            Some((key, node)) if !node.is_scalar() => (Some(node), key.mark),
            Some((_, node)) => (Some(node), node.mark),
            None => (None, self.mark),
        };
        Scope {
            file: self.file,
            node,
            mark,
            path: PathTo::Field(self, name),
            origin: self.origin,
            problems: self.problems,
        }
    }

    /// An element of the list here.
    pub fn element(&self, index: usize) -> Scope<'_> {
        let node = match self.node.map(|node| &node.value) {
            Some(Value::List(nodes)) => nodes.get(index),
            _ => None,
        };
        let mark = node.map_or(self.mark, |node| node.mark);
        Scope {
            file: self.file,
            node,
            mark,
            path: PathTo::Element(self, index),
            origin: self.origin,
            problems: self.problems,
        }
    }

    /// The same place with the fields of another node.
    pub(crate) fn over<'s>(&'s self, node: &'s Node) -> Scope<'s> {
        Scope { node: Some(node), ..*self }
    }

    /// The same place, whose problems are reported elsewhere.
    pub(crate) fn reporting<'s>(&'s self, problems: &'s RefCell<Vec<Problem>>) -> Scope<'s> {
        Scope { problems, ..*self }
    }

    /// Changes the problems after the first `count`.
    pub(crate) fn amend(&self, count: usize, change: impl FnMut(&mut Problem)) {
        self.problems.borrow_mut().iter_mut().skip(count).for_each(change);
    }

    /// The node here, if it exists in the document.
    pub fn node(&self) -> Option<&'a Node> {
        self.node
    }

    /// The name of the field here; `None`: this is an element of a list, or the document.
    pub(crate) fn name(&self) -> Option<&'a str> {
        match self.path {
            PathTo::Field(_, name) => Some(name),
            PathTo::Root | PathTo::Element(..) => None,
        }
    }

    /// Whether a field is written in the mapping here.
    pub fn has(&self, name: &str) -> bool {
        self.field(name).node.is_some()
    }

    /// `orders.yaml:12`, for messages about another place.
    pub fn line(&self) -> String {
        format!("{}:{}", self.file.display(), self.mark.line)
    }

    /// A problem here without its text, for checks that come later.
    pub fn here(&self) -> Problem {
        Problem {
            file: self.file.to_owned(),
            line: self.mark.line,
            column: self.mark.column,
            field: self.path.to_string(),
            message: String::new(),
            fix: String::new(),
        }
    }

    /// The folder that relative paths of the document start from.
    pub(crate) fn folder(&self) -> &'a Path {
        self.file.parent().unwrap_or(Path::new(""))
    }

    /// Reports a problem here that does not refuse the document.
    pub(crate) fn doubt(&self, doubts: &RefCell<Vec<Problem>>, message: impl Into<String>, fix: impl Into<String>) {
        add(doubts, Problem { message: message.into(), fix: fix.into(), ..self.here() });
    }

    /// The number of problems reported so far, here and in other places.
    pub fn problem_count(&self) -> usize {
        self.problems.borrow().len()
    }

    /// Reports a problem at this place.
    pub fn problem(&self, message: impl Into<String>, fix: impl Into<String>) {
        self.problem_at(self.mark, message, fix);
    }

    /// Reports a problem of this field at another position.
    pub(crate) fn problem_at(&self, mark: Mark, message: impl Into<String>, fix: impl Into<String>) {
        let Mark { line, column } = mark;
        let (message, fix) = (message.into(), fix.into());
        add(self.problems, Problem { line, column, message, fix, ..self.here() });
    }
}

/// Adds a problem, unless there are very many: each may take only a few bytes of a document.
fn add(problems: &RefCell<Vec<Problem>>, mut problem: Problem) {
    let mut problems = problems.borrow_mut();
    if problems.len() < MAX_PROBLEMS {
        for text in [&mut problem.field, &mut problem.message, &mut problem.fix] {
            if text.len() > MAX_TEXT {
                text.truncate(text.floor_char_boundary(MAX_TEXT));
                text.push('…');
            }
        }
        problems.push(problem);
    }
}

impl fmt::Display for PathTo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathTo::Root => Ok(()),
            PathTo::Field(parent, name) => {
                if !matches!(parent.path, PathTo::Root) {
                    write!(f, "{}.", parent.path)?;
                }
                write!(f, "{name}")
            }
            PathTo::Element(parent, index) => write!(f, "{}[{index}]", parent.path),
        }
    }
}
