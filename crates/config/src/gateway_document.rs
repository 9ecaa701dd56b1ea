//! Documents of the Gateway API: values of `yaml` for the checks of `leno_gateway_api`, and their
//! faults as problems.

use crate::nearest::did_you_mean;
use crate::problem::Scope;
use crate::yaml::{Node, Value};
use leno_gateway_api::{Content, DocumentValue, Fault, GROUP, KIND_NAMES, Resource, Step};

/// Whether a document is one of the Gateway API, by its group or its kind.
pub(crate) fn is_one(group: &str, kind: &str) -> bool {
    group == GROUP || KIND_NAMES.contains(&kind)
}

/// The typed document; `None`: problems were reported.
pub(crate) fn read(root: &Scope<'_>, group: &str, kind: &str) -> Option<Resource> {
    if group != GROUP {
        let version = root.field("apiVersion");
        let message = match version.node() {
            Some(node) => format!("expected the Gateway API, found {}", node.describe()),
            None => "the field `apiVersion` is missing".to_owned(),
        };
        version.problem(message, format!("write `apiVersion: {GROUP}/v1`, or a kind other than `{kind}`"));
        return None;
    }
    match leno_gateway_api::read(root.node()?) {
        Ok(resource) => Some(resource),
        Err(faults) => {
            faults.iter().for_each(|fault| report(root, &fault.path, fault));
            None
        }
    }
}

/// Reports a fault at the place to which the rest of its path leads from here.
fn report(scope: &Scope<'_>, path: &[Step], fault: &Fault) {
    match path {
        [] => scope.problem(&*fault.message, fix(fault)),
        // A field that does not exist: its name is wrong, not its value.
        [Step::Field(name)] if fault.known.as_ref().is_some_and(|(wrong, _)| wrong == name) => {
            let key = match scope.node().map(|node| &node.value) {
                Some(Value::Map(entries)) => entries.iter().map(|(key, _)| key).find(|key| key.text == *name),
                _ => None,
            };
            let field = scope.field(name);
            match key {
                Some(key) => field.problem_at(key.mark, &*fault.message, fix(fault)),
                None => field.problem(&*fault.message, fix(fault)),
            }
        }
        [Step::Field(name), rest @ ..] => report(&scope.field(name), rest, fault),
        [Step::Element(index), rest @ ..] => report(&scope.element(*index), rest, fault),
    }
}

fn fix(fault: &Fault) -> String {
    match &fault.known {
        Some((wrong, known)) => did_you_mean(wrong, known.iter().copied()),
        None => fault.fix.clone(),
    }
}

impl DocumentValue for Node {
    fn content(&self) -> Content<'_, Self> {
        match &self.value {
            _ if self.is_null() => Content::Null,
            Value::Scalar { text, plain } => Content::Scalar { text, plain: *plain },
            Value::List(nodes) => Content::List(nodes),
            Value::Map(entries) => Content::Map(entries.iter().map(|(key, node)| (&*key.text, node)).collect()),
        }
    }
}
