//! Errors in documents, by the path of the field.

/// Most faults of one document: a reader corrects the first ones first.
const MAX_FAULTS: usize = 1000;

/// An error in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The path of the field from the document's root.
    pub path: Vec<Step>,
    /// The error.
    pub message: String,
    /// The fix; empty: it is obvious, or a name of `known`.
    pub fix: String,
    /// For a wrong name: the name, and the names that are possible.
    pub known: Option<(String, Vec<&'static str>)>,
}

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// To a field.
    Field(String),
    /// To an element of a list.
    Element(usize),
}

/// The path of a value, while it is checked.
#[derive(Clone, Copy)]
pub(crate) struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    step: PathStep<'p>,
}

#[derive(Clone, Copy)]
enum PathStep<'p> {
    Field(&'p str),
    Element(usize),
}

impl<'p> Path<'p> {
    /// The path of a field of the document.
    pub(crate) fn of(name: &'p str) -> Self {
        Self { parent: None, step: PathStep::Field(name) }
    }

    pub(crate) fn field(&'p self, name: &'p str) -> Self {
        Self { parent: Some(self), step: PathStep::Field(name) }
    }

    pub(crate) fn element(&'p self, index: usize) -> Self {
        Self { parent: Some(self), step: PathStep::Element(index) }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = self.parent.map(Path::steps).unwrap_or_default();
        steps.push(match self.step {
            PathStep::Field(name) => Step::Field(name.to_owned()),
            PathStep::Element(index) => Step::Element(index),
        });
        steps
    }
}

/// The errors that were found so far.
#[derive(Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    /// Reports an error of a field.
    pub(crate) fn add(&mut self, path: &Path<'_>, message: impl Into<String>, fix: impl Into<String>) {
        self.push(Fault { path: path.steps(), message: message.into(), fix: fix.into(), known: None });
    }

    /// Reports a name that is none of the known ones.
    pub(crate) fn wrong_name(
        &mut self,
        path: &Path<'_>,
        message: impl Into<String>,
        name: &str,
        known: impl IntoIterator<Item = &'static str>,
    ) {
        let known = Some((name.to_owned(), known.into_iter().collect()));
        self.push(Fault { path: path.steps(), message: message.into(), fix: String::new(), known });
    }

    fn push(&mut self, fault: Fault) {
        if self.0.len() < MAX_FAULTS {
            self.0.push(fault);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn into_inner(self) -> Vec<Fault> {
        self.0
    }
}
