//! Policies with key sets in files -> the same policies with the key sets in them, for readers that
//! have no files.

use crate::compile::read_key_set;
use crate::jwks;
use crate::problem::{Problem, Scope};
use crate::traffic::offset;
use crate::yaml::{self, Mark, Node, Value};
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// A file that a document named, and whose content took the place of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinedFile {
    /// The place of the name: `rules.yaml:7:20 spec.authentication.issuers[0].jwks.file`.
    pub place: Problem,
    /// The file.
    pub path: PathBuf,
}

/// Replaces `file: PATH` by `inline: {…}` in each key set of a text's policies. Relative paths start
/// from the folder of `file`; `None` for a text that is in no folder. Lines stay as they are.
///
/// # Errors
/// Files that cannot be read, or hold what a document may not: private keys leave no machine.
/// Other problems are left to the check.
pub fn inline_files(file: Option<&Path>, name: &Path, text: &str) -> Result<(String, Vec<InlinedFile>), Vec<Problem>> {
    let problems = RefCell::new(Vec::new());
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut changed, mut inlined) = (text.to_owned(), Vec::new());
    let mut replacements = Vec::new();
    for node in yaml::documents(text).into_iter().flatten() {
        if node.get("kind").and_then(Node::text) != Some("Policy") {
            continue;
        }
        let root = Scope::root(name, &node, &problems);
        let spec = root.field("spec");
        let authentication = spec.field("authentication");
        let issuers = authentication.field("issuers");
        let Some(Node { value: Value::List(list), .. }) = issuers.node() else { continue };
        for index in 0..list.len() {
            let issuer = issuers.element(index);
            let jwks = issuer.field("jwks");
            if let Some(replacement) = replacement(file.and_then(Path::parent), &jwks) {
                replacements.push((jwks.field("file").here(), replacement));
            }
        }
    }
    // From the end, so that earlier positions stay right.
    for (place, replacement) in replacements.into_iter().rev() {
        match replacement.apply(&changed) {
            Some(text) => changed = text,
            None => problems.borrow_mut().push(Problem {
                message: "the key set cannot take the place of this path".to_owned(),
                fix: "write the path on one line and without escapes, or write `inline: {keys: [...]}` or `url`"
                    .to_owned(),
                ..place.clone()
            }),
        }
        inlined.push(InlinedFile { place, path: replacement.path });
    }
    inlined.reverse();
    let problems = problems.into_inner();
    if problems.is_empty() { Ok((changed, inlined)) } else { Err(problems) }
}

/// A key set that takes the place of its file's name.
struct Replacement {
    /// The key `file`.
    key: Mark,
    /// The path, as it is in the text.
    value: Mark,
    written: String,
    is_plain: bool,
    path: PathBuf,
    /// One line.
    json: String,
}

fn replacement(folder: Option<&Path>, jwks: &Scope<'_>) -> Option<Replacement> {
    // With `inline` or `url` the check reports that there are several.
    if jwks.has("inline") || jwks.has("url") {
        return None;
    }
    let Some(Value::Map(entries)) = jwks.node().map(|node| &node.value) else { return None };
    let (key, node) = entries.iter().find(|(key, _)| key.text == "file")?;
    let Value::Scalar { text: written, plain } = &node.value else { return None };
    node.text()?;
    let scope = jwks.field("file");
    let path = match folder {
        Some(folder) => folder.join(written),
        None if Path::new(written).is_absolute() => PathBuf::from(written),
        None => {
            let message = format!("{} is a relative path, and this text is in no folder", written.escape_debug());
            scope.problem(message, "give the documents as a file (`-f FILE`), or an absolute path");
            return None;
        }
    };
    let value = match read_key_set(&path) {
        Ok(value) => value,
        Err(error) => {
            let fix = "expected a JSON Web Key set: {\"keys\": [...]}, relative to the document's folder";
            scope.problem(format!("{}: {error}", path.display()), fix);
            return None;
        }
    };
    let refused = jwks::from_json(&value).refused;
    for error in &refused {
        let index = error.index.map(|index| format!("keys[{index}]: ")).unwrap_or_default();
        scope.problem(format!("{}: {index}{}", path.display(), error.message), error.fix);
    }
    let (key, value_mark, json) = (key.mark, node.mark, value.to_string());
    refused.is_empty().then(|| Replacement {
        key,
        value: value_mark,
        written: written.clone(),
        is_plain: *plain,
        path,
        json,
    })
}

impl Replacement {
    /// The text with the key set; `None`: the path is written in a form that is not replaced.
    fn apply(&self, text: &str) -> Option<String> {
        let (key, value) = (offset(text, self.key)?, offset(text, self.value)?);
        let names = [("file", "inline"), ("\"file\"", "\"inline\""), ("'file'", "'inline'")];
        let (name, inline) = names.into_iter().find(|(name, _)| text[key..].starts_with(name))?;
        let written = match text[value..].chars().next()? {
            quote @ ('"' | '\'') if !self.is_plain => format!("{quote}{}{quote}", self.written),
            _ if self.is_plain => self.written.clone(),
            _ => return None,
        };
        let rest = text[value..].strip_prefix(&written)?;
        let changed = format!("{}{inline}{}{}{rest}", &text[..key], text.get(key + name.len()..value)?, self.json);
        let same = yaml::documents(&changed).into_iter().zip(yaml::documents(text)).all(|pair| match pair {
            (Ok(mut after), Ok(mut before)) => {
                self.take(&mut after, "inline");
                self.take(&mut before, "file");
                after.says_the_same(&before)
            }
            (Err(_), Err(_)) => true,
            _ => false,
        });
        same.then_some(changed)
    }

    /// Removes the field at the place of the replacement.
    fn take(&self, node: &mut Node, field: &str) {
        match &mut node.value {
            Value::Scalar { .. } => {}
            Value::List(nodes) => nodes.iter_mut().for_each(|node| self.take(node, field)),
            Value::Map(entries) => {
                entries.retain(|(key, _)| (key.mark, &*key.text) != (self.key, field));
                entries.iter_mut().for_each(|(_, node)| self.take(node, field));
            }
        }
    }
}
