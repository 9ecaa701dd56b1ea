//! Variables in compose files: `${NAME:-default}`, and files of variables.

use crate::workload::Notes;
use leno_config::{Mark, Node, Value};

/// The files and the environment that a compose file refers to.
pub trait Surroundings {
    /// A variable of the environment or of the file `.env`.
    fn variable(&self, name: &str) -> Option<String>;
    /// The content of a file that is named in the compose file.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    fn read(&self, path: &str) -> Result<String, String>;
}

/// Replaces variables in all values below `node`.
pub(super) fn interpolate(node: &mut Node, path: &str, around: &dyn Surroundings, notes: &mut Notes<'_>) {
    match &mut node.value {
        Value::Scalar { text, .. } if text.contains('$') => {
            *text = replaced(text, (node.mark, path), around, notes);
        }
        Value::Scalar { .. } => {}
        Value::List(nodes) => {
            for (index, node) in nodes.iter_mut().enumerate() {
                interpolate(node, &format!("{path}[{index}]"), around, notes);
            }
        }
        Value::Map(entries) => {
            for (key, node) in entries {
                let path = if path.is_empty() { key.text.clone() } else { format!("{path}.{}", key.text) };
                interpolate(node, &path, around, notes);
            }
        }
    }
}

fn replaced(text: &str, (mark, path): (Mark, &str), around: &dyn Surroundings, notes: &mut Notes<'_>) -> String {
    let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        rest = after;
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((inner, after)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            rest = after;
            let end = inner.find(|character| !is_name(character)).unwrap_or(inner.len());
            let (name, operator) = inner.split_at(end);
            let value = around.variable(name);
            let is_set = |value: &String| !operator.starts_with(':') || !value.is_empty();
            let word = operator.trim_start_matches(':');
            match (value.filter(is_set), word.chars().next()) {
                (Some(_), Some('+')) => out.push_str(&word[1..]),
                (Some(value), _) => out.push_str(&value),
                (None, Some('-')) => out.push_str(&word[1..]),
                (None, Some('+')) => {}
                (None, Some('?')) => notes.problem(
                    mark,
                    path,
                    format!("{name} is not set: {}", &word[1..]),
                    "set it, or write it into .env",
                ),
                (None, _) => notes.manual_step(mark, path, format!("{name} is not set, and counts as empty")),
            }
        } else {
            let end = rest.find(|character| !is_name(character)).unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            rest = after;
            match around.variable(name) {
                _ if name.is_empty() => out.push('$'),
                Some(value) => out.push_str(&value),
                None => notes.manual_step(mark, path, format!("{name} is not set, and counts as empty")),
            }
        }
    }
    out + rest
}

/// The variables of a file such as `.env`: `NAME=value` on each line.
pub fn variables(content: &str) -> impl Iterator<Item = (String, String)> {
    content.lines().filter_map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
        let value = value.trim();
        let quoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
        let value = quoted.unwrap_or_else(|| value.split_once(" #").map_or(value, |(value, _)| value.trim_end()));
        Some((name.trim().to_owned(), value.to_owned()))
    })
}
