//! Properties that all started programs share: a command and an environment.

use crate::problem::Scope;
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
}

pub(super) fn environment(kind: Kind, scope: &Scope<'_>, env: &BTreeMap<String, String>) {
    for (name, value) in env {
        let field = scope.field(name);
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            field.problem(
                "this cannot be an environment variable",
                "expected a name without `=`, and no NUL characters",
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
