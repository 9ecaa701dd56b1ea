//! Properties that all started programs share: a command and an environment.

use crate::problem::{Problem, Scope};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Environment variables that the node sets itself.
const RESERVED: [&str; 6] = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"];

/// The kind of a started program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An instance of a function, which gets the port to listen on in `PORT`.
    Instance,
    /// A function that is a component and does not listen.
    Component,
    /// A process of a job.
    Job,
}

impl Kind {
    /// Whether the node sets this variable.
    pub(super) fn sets(self, name: &str) -> bool {
        RESERVED.contains(&name) || (self != Self::Job && name == "PORT")
    }
}

pub(super) fn argv(scope: &Scope<'_>, argv: &[String]) {
    if argv.first().is_none_or(String::is_empty) {
        scope.problem("there is no program", "expected a list: [program, argument, …]");
    }
    if argv.iter().any(|argument| argument.contains('\0')) {
        scope.problem("an argument contains a NUL character", "remove it");
    }
    one_word(scope, argv);
}

/// Refuses a whole command line as the name of a program that is looked for in `PATH`.
pub(super) fn one_word(scope: &Scope<'_>, argv: &[String]) {
    if let Some(fix) = words(argv).filter(|_| !argv[0].contains('/')) {
        let message = format!("there is no program `{}`: each argument is an element", argv[0].escape_debug());
        scope.problem(message, fix);
    }
}

/// How to write a command whose first element is a whole command line.
pub(crate) fn words(argv: &[String]) -> Option<String> {
    let line = argv.first().filter(|program| program.contains(char::is_whitespace))?;
    let quoted = |words: &mut dyn Iterator<Item = &str>| {
        words.map(|word| format!("\"{}\"", word.escape_debug())).collect::<Vec<_>>().join(", ")
    };
    let shell = line.contains(['"', '\'', '$', '&', '|', ';', '<', '>', '*', '`']);
    let words = match shell {
        true => quoted(&mut ["sh", "-c", line].into_iter()),
        false => quoted(&mut line.split_whitespace().chain(argv[1..].iter().map(String::as_str))),
    };
    Some(format!("write [{words}]"))
}

/// Reports operators of a shell among the arguments of another program.
pub(super) fn operators(scope: &Scope<'_>, argv: &[String], doubts: &RefCell<Vec<Problem>>) {
    const OPERATORS: [&str; 9] = ["&&", "||", "|", "&", ">", ">>", "<", "2>&1", "2>"];
    let Some(operator) = argv.iter().skip(1).find(|argument| OPERATORS.contains(&argument.as_str())) else { return };
    let message = format!("no shell is involved: `{}` gets `{operator}` as an argument", argv[0].escape_debug());
    let line = format!("\"{}\"", argv.join(" ").escape_debug());
    scope.doubt(doubts, message, format!("write [\"sh\", \"-c\", {line}]"));
}

pub(super) fn environment(kind: Kind, scope: &Scope<'_>, env: &BTreeMap<String, String>) {
    for (name, value) in env {
        let field = scope.field(name);
        if name.is_empty() || name.contains(['=', '\0']) || name.contains(char::is_whitespace) || value.contains('\0') {
            field.problem(
                "this cannot be an environment variable",
                "expected a name without `=` and blanks, and no NUL characters",
            );
        }
        if kind.sets(name) {
            let fix = match (name.as_str(), kind) {
                ("PORT", Kind::Component) => "remove it: a component listens nowhere",
                ("PORT", _) => "use `port`",
                _ => "remove it: calls go through the sidecar",
            };
            field.problem(format!("`{name}` is set by the node"), fix);
        }
    }
}
