//! Colours of output for people: on terminals only, and never if `NO_COLOR` is set
//! (no-color.org).

use serde_json::Value;
use std::io::{IsTerminal, stdout};

/// A text that reports a success.
pub(crate) fn good(text: String) -> String {
    painted(text, "32")
}

/// A text that deserves attention.
pub(crate) fn warning(text: String) -> String {
    painted(text, "33")
}

/// A text that reports a failure.
pub(crate) fn error(text: String) -> String {
    painted(text, "31")
}

/// The line of a listing, by the state in its row.
pub(crate) fn by_state(line: String, row: &Value) -> String {
    match row["state"].as_str().unwrap_or_default() {
        "failed" | "failing" => error(line),
        "unplaced" | "starting" | "rejected" => warning(line),
        _ => line,
    }
}

/// The text between two escape sequences (ECMA-48, SGR). It has none, since all texts of others
/// are escaped before.
fn painted(text: String, code: &str) -> String {
    if are_wanted(&stdout()) { format!("\x1b[{code}m{text}\x1b[0m") } else { text }
}

/// Whether output to this stream is in colour.
pub(crate) fn are_wanted(stream: &impl IsTerminal) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
