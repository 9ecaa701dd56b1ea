//! Access to documents of other projects, which have no types here.

use leno_config::Scope;
use leno_config::{Node, Value};

/// The names of the fields here, in the order written.
pub(super) fn fields<'a>(scope: &Scope<'a>) -> Vec<&'a str> {
    match scope.node().map(|node| &node.value) {
        Some(Value::Map(entries)) => entries.iter().map(|(key, _)| key.text.as_str()).collect(),
        _ => Vec::new(),
    }
}

/// How many elements the list here has.
pub(super) fn length(scope: &Scope<'_>) -> usize {
    match scope.node().map(|node| &node.value) {
        Some(Value::List(nodes)) => nodes.len(),
        _ => 0,
    }
}

/// Whether a list is written here; if something else is, that is a problem.
pub(super) fn is_list(scope: &Scope<'_>) -> bool {
    match scope.node() {
        Some(Node { value: Value::List(_), .. }) => true,
        None => false,
        Some(node) => {
            scope.problem(format!("expected a list, found {}", node.describe()), "");
            false
        }
    }
}

/// The text here; if something else is there, that is a problem.
pub(super) fn text<'a>(scope: &Scope<'a>) -> Option<&'a str> {
    let text = scope.node().and_then(Node::text);
    if text.is_none() {
        let found = scope.node().map_or_else(|| "nothing".to_owned(), Node::describe);
        scope.problem(format!("expected a text, found {found}"), "");
    }
    text
}

/// The texts of the list here.
pub(super) fn texts<'a>(scope: &Scope<'a>) -> Vec<&'a str> {
    if !is_list(scope) {
        return Vec::new();
    }
    match scope.node().map(|node| &node.value) {
        Some(Value::List(nodes)) => nodes.iter().filter_map(Node::text).collect(),
        _ => Vec::new(),
    }
}
