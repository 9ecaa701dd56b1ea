//! Problems of documents, as commands print them.

use crate::screen::shown;
use leno_config::Problem;

/// One line for each problem, on standard error.
pub(crate) fn report(problems: &[Problem]) {
    for problem in problems {
        eprintln!("{}", shown(&problem.to_string()));
    }
    eprintln!("leno: {}", counted(problems.len(), "problem"));
}

/// `1 problem`, `2 problems`
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
