//! Variables in `command` and `args` of functions and jobs: doubts about references that the node does
//! not replace.

use super::Context;
use super::process::Kind;
use crate::document::Secret;
use crate::nearest::did_you_mean;
use crate::problem::Scope;
use leno_model::variables::{Part, parts};
use std::collections::BTreeMap;
use std::path::Path;

/// Programs that read a script from the argument after `-c`.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish"];
/// Options of other interpreters that a script follows.
const SCRIPT_OPTIONS: [&str; 5] = ["-c", "-e", "-r", "-E", "--eval"];

/// A program's arguments, as a document writes them.
pub(super) struct Arguments<'a> {
    pub kind: Kind,
    pub command: Option<&'a [String]>,
    pub args: Option<&'a [String]>,
    pub env: &'a BTreeMap<String, String>,
    pub secrets: &'a [Secret],
}

impl Arguments<'_> {
    /// Reports references that the node does not replace, although the document expects a value.
    /// `scope` is the `spec`.
    pub(super) fn doubts(&self, context: &Context<'_>, scope: &Scope<'_>) {
        let known = self.known();
        for (field, list) in [("command", self.command), ("args", self.args)] {
            let place = scope.field(field);
            let list = list.unwrap_or_default();
            for (index, argument) in list.iter().enumerate() {
                let doubt = match is_script(list, index) {
                    true => None,
                    false => self.doubt(argument, &known).or_else(|| unexpanded(argument)),
                };
                if let Some((message, fix)) = doubt {
                    place.element(index).doubt(context.doubts, message, fix);
                }
            }
        }
        let place = scope.field("env");
        for (name, value) in self.env {
            let reference = parts(value).into_iter().find_map(|part| match part {
                Part::Variable(name) if known.contains(&name) || is_constant(name) => Some(name),
                _ => None,
            });
            if let Some(reference) = reference {
                let message = format!("`$({reference})` stays as it is: only `command` and `args` have values put in");
                place.field(name).doubt(context.doubts, message, "write the value, or have the program put it in");
            } else if let Some((message, fix)) = unexpanded(value) {
                place.field(name).doubt(context.doubts, message, fix);
            }
        }
    }

    /// The variables to which arguments may refer.
    fn known(&self) -> Vec<&str> {
        let files = self.secrets.iter().any(|secret| secret.r#as == crate::document::SecretAs::File);
        let own = ["LENO_FUNCTION", "LENO_INSTANCE"].into_iter().chain(files.then_some("LENO_SECRETS"));
        let port = (self.kind == Kind::Instance).then_some("PORT");
        port.into_iter().chain(self.env.keys().map(String::as_str)).chain(own).collect()
    }

    fn doubt(&self, argument: &str, known: &[&str]) -> Option<(String, String)> {
        let unknown = parts(argument).into_iter().find_map(|part| match part {
            Part::Variable(name) if !known.contains(&name) => Some(name),
            _ => None,
        });
        if let Some(name) = unknown {
            let is_secret = |secret: &Secret| secret.name == name && secret.r#as == crate::document::SecretAs::Env;
            if self.secrets.iter().any(is_secret) {
                let message = format!("`$({name})` stays as it is: other processes can read command lines");
                return Some((message, "have the program read the variable, or a file with the secret".to_owned()));
            }
            if name == "PORT" {
                return Some(("`$(PORT)` stays as it is: a job listens nowhere".to_owned(), "remove it".to_owned()));
            }
            let fix = format!(
                "add it to `env`, or write `$$({name})` for the text; {}",
                did_you_mean(name, known.iter().copied())
            );
            return Some((format!("`$({name})` stays as it is: there is no such variable"), fix));
        }
        let name = shell_reference(argument, known)?;
        let fix = format!("write `$({name})`, which the node replaces");
        Some((format!("`{name}` stays unread in `{}`: no shell is involved", argument.escape_debug()), fix))
    }
}

/// Doubts about a text in which a shell, Compose or Helm would put something.
fn unexpanded(text: &str) -> Option<(String, String)> {
    /// Variables of the user who writes the document.
    const OWN: [&str; 7] = ["HOME", "HOSTNAME", "PATH", "PORT", "PWD", "USER", "TMPDIR"];
    let quoted = text.escape_debug();
    if text.contains("{{") && text.contains("}}") {
        return Some((format!("`{quoted}` stays as it is: nothing fills in templates"), "write the value".to_owned()));
    }
    if text.starts_with("~/") {
        return Some((format!("`{quoted}` stays as it is: no shell is involved"), "write the whole path".to_owned()));
    }
    let has_default = text.split("${").skip(1).any(|rest| {
        let name = rest.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
        name.len() < rest.len() && [":-", ":?", ":+"].iter().any(|operator| name.starts_with(operator))
    });
    let named = shell_reference(text, &OWN).is_some();
    (has_default || named)
        .then(|| (format!("`{quoted}` stays as it is: no shell is involved"), "write the value".to_owned()))
}

/// Whether a name is one of a variable, by its letters, and not the command of a shell.
fn is_constant(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Whether an argument is a script, in which references are the interpreter's.
fn is_script(list: &[String], index: usize) -> bool {
    let Some(option) = index.checked_sub(1).and_then(|before| list.get(before)) else { return false };
    if SCRIPT_OPTIONS.contains(&option.as_str()) {
        return true;
    }
    // `bash -o pipefail -ec SCRIPT`
    let is_shell =
        |word: &String| Path::new(word).file_name().is_some_and(|name| SHELLS.iter().any(|shell| name == *shell));
    let is_cluster = option.starts_with('-') && !option.starts_with("--") && option.ends_with('c');
    is_cluster && list[..index].iter().any(is_shell)
}

/// The first of the known variables that an argument names as shells do: `$NAME`, `${NAME}`.
fn shell_reference<'a>(argument: &'a str, known: &[&str]) -> Option<&'a str> {
    argument.split('$').skip(1).find_map(|rest| {
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(rest.len());
        Some(&rest[..end]).filter(|name| known.contains(name))
    })
}
