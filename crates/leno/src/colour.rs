//! Colours of output for people: on terminals only, and never if `NO_COLOR` is set
//! (no-color.org).

use std::io::{IsTerminal, stdout};

/// A line that reports a failure.
pub(crate) fn error(line: &str) -> String {
    painted(line, "31")
}

/// A line that deserves attention.
pub(crate) fn warning(line: &str) -> String {
    painted(line, "33")
}

/// The line between two escape sequences (ECMA-48, SGR). It has none, since all texts of others
/// are escaped before.
fn painted(line: &str, code: &str) -> String {
    if is_wanted() { format!("\x1b[{code}m{line}\x1b[0m") } else { line.to_owned() }
}

fn is_wanted() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stdout().is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
