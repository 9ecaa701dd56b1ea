//! StoredSecret documents, and the documents that name them.

use super::{Context, Documents, TypedDocument, fields};
use crate::document::{self, StoredSecretSpec};
use crate::nearest::nearest;
use crate::problem::{Origin, Problem, Scope};
use crate::secrets::{CheckedSecret, KeySummary, SecretSet};
use aws_lc_rs::{hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leno_model::{SecretBytes, SecretSource, StoredKey};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use zeroize::Zeroizing;

/// Bytes of one value, and of all values of a document: an entry of etcd has to hold them encrypted.
const MAX_VALUE: usize = 64 << 10;
const MAX_TOTAL: usize = 512 << 10;

/// Values by key.
pub(crate) type Values = BTreeMap<String, Zeroizing<Vec<u8>>>;

/// The stored secrets of all documents.
pub(super) fn secrets(documents: &Documents, problems: &RefCell<Vec<Problem>>) -> SecretSet {
    let mut set = documents.stored.clone().unwrap_or_default();
    let mut places: BTreeMap<(&str, &str), String> = BTreeMap::new();
    for placed in &documents.stored_secrets {
        let root = placed.scope(problems);
        let metadata = root.field("metadata");
        let Some(id) = fields::id(&metadata, &placed.document.metadata) else { continue };
        let name = (&*placed.document.metadata.namespace, &*placed.document.metadata.name);
        if let Some(first) = places.insert(name, root.line()) {
            let message = format!("there is a StoredSecret `{id}` too, in {first}");
            metadata.field("name").problem(message, "give each its own name");
            continue;
        }
        let checked = match &placed.document.spec.redacted {
            Some(redacted) if placed.origin == Origin::Request && !documents.unstored => {
                let summary =
                    |value: &document::RedactedValue| KeySummary { bytes: value.bytes, changed: value.changed };
                CheckedSecret {
                    keys: redacted.iter().map(|(key, value)| (key.clone(), summary(value))).collect(),
                    values: BTreeMap::new(),
                }
            }
            _ => checked(values(&root, &placed.document.spec)),
        };
        set.all.entry(id.namespace).or_default().insert(id.name, checked);
    }
    set
}

fn checked(values: Values) -> CheckedSecret {
    let size = |value: &Zeroizing<Vec<u8>>| u32::try_from(value.len()).unwrap_or(u32::MAX);
    CheckedSecret {
        keys: values.iter().map(|(key, value)| (key.clone(), KeySummary { bytes: size(value), changed: 0 })).collect(),
        values: values.into_iter().map(|(key, value)| (key, marked(value))).collect(),
    }
}

/// The value with a mark that is the same for equal values in this process only, so that it cannot
/// be guessed from.
fn marked(value: Zeroizing<Vec<u8>>) -> SecretBytes {
    static KEY: LazyLock<hmac::Key> = LazyLock::new(|| {
        let mut key = Zeroizing::new([0; 32]);
        let random = rand::fill(&mut *key).is_ok();
        debug_assert!(random);
        hmac::Key::new(hmac::HMAC_SHA256, &*key)
    });
    let mut mark = [0; 16];
    mark.iter_mut().zip(hmac::sign(&KEY, &value).as_ref()).for_each(|(to, from)| *to = *from);
    SecretBytes::new(value, mark)
}

/// The values of a document that is not stored yet. Problems contain no values.
pub(crate) fn values(root: &Scope<'_>, spec: &StoredSecretSpec) -> Values {
    let scope = root.field("spec");
    if spec.redacted.is_some() {
        let fix = "write the values into `stringData` (text) or `data` (base64); a control plane never shows them";
        scope.field("redacted").problem("this document was shown by a control plane, without its values", fix);
        return Values::new();
    }
    let mut values = Values::new();
    for (field, written) in [("stringData", &spec.string_data), ("data", &spec.data)] {
        let map = scope.field(field);
        for (key, text) in written {
            let place = map.field(key);
            let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if key.is_empty() || key.len() > 253 || !key.bytes().all(good) {
                place.problem("this cannot be a key", "expected letters, digits, `-`, `_` and `.`, at most 253");
            }
            let value = match field {
                "data" => base64(text),
                _ => Some(Zeroizing::new(text.0.as_bytes().to_vec())),
            };
            let Some(value) = value else {
                place.problem("the value is not base64 (RFC 4648)", "write a text into `stringData`");
                continue;
            };
            if value.len() > MAX_VALUE {
                let message = format!("the value has {} bytes", value.len());
                place.problem(message, format!("expected at most {MAX_VALUE}"));
            }
            if values.insert(key.clone(), value).is_some() {
                place.problem(format!("`{key}` is in `stringData` too"), "remove one of the two");
            }
        }
    }
    let total: usize = values.values().map(|value| value.len()).sum();
    if total > MAX_TOTAL {
        scope.problem(format!("the values have {total} bytes together"), format!("expected at most {MAX_TOTAL}"));
    }
    if values.is_empty() && spec.string_data.is_empty() && spec.data.is_empty() {
        scope.problem("it has no value", "add `stringData: {KEY: TEXT}`");
    }
    values
}

/// Spaces and line ends between the digits are left out: `base64` writes lines of 76 characters.
fn base64(text: &document::SecretText) -> Option<Zeroizing<Vec<u8>>> {
    let digits: Vec<u8> = text.0.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(&*Zeroizing::new(digits)).ok().map(Zeroizing::new)
}

/// A source that a document names: a file, relative to the document's folder, or a stored secret of
/// the same namespace, which must exist.
pub(super) fn source(
    context: &Context<'_>,
    scope: &Scope<'_>,
    namespace: &str,
    written: &SecretSource,
) -> SecretSource {
    match written {
        SecretSource::File(path) if is_nowhere(scope, path) => written.clone(),
        SecretSource::File(path) => SecretSource::File(fields::relative(scope, path)),
        SecretSource::Stored(key) => stored(context, scope, namespace, key),
    }
}

/// The same for a file that must exist when the document is checked.
pub(super) fn existing(
    context: &Context<'_>,
    scope: &Scope<'_>,
    namespace: &str,
    written: &SecretSource,
) -> SecretSource {
    match written {
        SecretSource::File(path) if is_nowhere(scope, path) => written.clone(),
        SecretSource::File(path) => SecretSource::File(fields::file(context.inputs, scope, path)),
        SecretSource::Stored(key) => stored(context, scope, namespace, key),
    }
}

/// Whether it is a relative path in a document of a request. Reports that.
fn is_nowhere(scope: &Scope<'_>, path: &Path) -> bool {
    let relative = scope.origin() == Origin::Request && !path.is_absolute();
    if relative {
        let fix = format!("{}, or `{{secret: NAME, key: KEY}}` of a StoredSecret", Problem::IN_NO_FOLDER);
        scope.problem(format!("{} is a relative path", path.display()), fix);
    }
    relative
}

fn stored(context: &Context<'_>, scope: &Scope<'_>, namespace: &str, named: &StoredKey) -> SecretSource {
    let StoredKey { secret, key } = named;
    let place = if scope.has("secret") { scope.field("secret") } else { *scope };
    match context.secrets.get(namespace, secret) {
        Some(found) if !found.keys.contains_key(key) => {
            let keys: Vec<&str> = found.keys.keys().map(String::as_str).collect();
            let fix = match nearest(key, &keys) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("expected {}", crate::nearest::list(&keys)),
            };
            let message = format!("the StoredSecret `{secret}` has no key `{}`", key.escape_debug());
            scope.field("key").problem(message, fix);
        }
        Some(_) => {}
        None if context.incomplete => {}
        None if context.unknown_secrets => {
            let message = format!(
                "no StoredSecret `{}` is among these documents; whether the control plane has one in `{namespace}` is not known",
                secret.escape_debug()
            );
            place.doubt(context.doubts, message, "store it first, or name the control plane with --server");
        }
        None => {
            let names: Vec<&str> = context.secrets.of(namespace).map(|(name, _)| name.as_str()).collect();
            let fix = match nearest(secret, &names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("add one to the namespace, for example with `leno create-secret {namespace}/{secret}`"),
            };
            let message =
                format!("there is no StoredSecret `{}` in the namespace `{namespace}`", secret.escape_debug());
            place.problem(message, fix);
        }
    }
    SecretSource::Stored(named.clone())
}

/// Files with values that other accounts can read.
pub(super) fn exposed(documents: &[std::sync::Arc<TypedDocument<document::StoredSecret>>]) -> Vec<Problem> {
    use std::os::unix::fs::PermissionsExt;
    let mut seen: Vec<&PathBuf> = Vec::new();
    let mut warnings = Vec::new();
    for placed in documents.iter().filter(|placed| placed.origin == Origin::File) {
        let Ok(found) = std::fs::metadata(&placed.file) else { continue };
        let mode = found.permissions().mode() & 0o777;
        if mode & 0o044 != 0 && !seen.contains(&&placed.file) {
            seen.push(&placed.file);
            let message = format!("it holds secrets, and other accounts can read it (mode {mode:o})");
            warnings.push(Problem::of_file(&placed.file, message, format!("chmod 600 {}", placed.file.display())));
        }
    }
    warnings
}
