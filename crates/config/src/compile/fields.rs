//! Checks that many fields share.

use super::Context;
use crate::document::Metadata;
use crate::duration::Duration;
use crate::nearest::nearest;
use crate::problem::{Origin, Problem, Scope};
use leno_model::FunctionId;
use leno_model::function_id::is_label;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name or namespace of a document.
pub(super) fn label(scope: &Scope<'_>, text: &str) -> bool {
    let good = is_label(text);
    if !good {
        let fix = "expected a DNS label: a-z, 0-9 and `-`, at most 63 characters, a letter or digit at both ends";
        scope.problem(format!("`{}` cannot be a name", text.escape_debug()), fix);
    }
    good
}

/// The name of a function or job, from its metadata.
pub(super) fn id(metadata: &Scope<'_>, Metadata { name, namespace, .. }: &Metadata) -> Option<FunctionId> {
    let good = label(&metadata.field("name"), name) & label(&metadata.field("namespace"), namespace);
    good.then(|| FunctionId { namespace: namespace.clone(), name: name.clone() })
}

/// Name of a rule, as it appears in logs.
pub(super) fn rule_name(scope: &Scope<'_>, policy: &str, section: &str, name: Option<&str>, index: usize) -> String {
    let Some(name) = name else { return format!("{policy}/{section}/{index}") };
    let good = !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    // A rule without a name is named by its number.
    if !good || name.bytes().all(|byte| byte.is_ascii_digit()) {
        let fix = "expected letters, digits, `-`, `_` and `.`, at most 63, not only digits";
        scope.field("name").problem(format!("`{}` cannot be a rule's name", name.escape_debug()), fix);
    }
    format!("{policy}/{section}/{name}")
}

/// Reports the second of two rules of a list with the same name.
pub(super) fn unique_names<'a>(list: &Scope<'_>, names: impl Iterator<Item = Option<&'a str>>) {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, name) in names.enumerate().filter_map(|(index, name)| Some((index, name?))) {
        match seen.get(name) {
            Some(first) => {
                let message = format!("`{name}` is the name of element {first} too");
                list.element(index).field("name").problem(message, "give each its own name");
            }
            None => drop(seen.insert(name, index)),
        }
    }
}

/// `name` (in this namespace) or `namespace/name`, whether it exists or not.
pub(super) fn parsed(namespace: &str, text: &str) -> Option<FunctionId> {
    let parsed = match text.split_once('/') {
        Some(_) => text.parse(),
        None => FunctionId::new(namespace, text),
    };
    parsed.ok()
}

/// A function, a job or an External document by `name` (in this namespace) or `namespace/name`. It
/// must exist, unless it is [another tenant's](is_of_another_tenant) or functions are pods, which come
/// and go: calls to a missing one are refused, and no certificate has its identity.
pub(super) fn function(context: &Context<'_>, scope: &Scope<'_>, namespace: &str, text: &str) -> Option<FunctionId> {
    named(context, scope, (namespace, None), text)
}

/// The same for a callee. Names of jobs and of the caller itself are not proposed.
pub(super) fn callee(context: &Context<'_>, scope: &Scope<'_>, caller: &FunctionId, text: &str) -> Option<FunctionId> {
    named(context, scope, (&caller.namespace, Some(caller)), text)
}

fn named(
    context: &Context<'_>,
    scope: &Scope<'_>,
    (namespace, caller): (&str, Option<&FunctionId>),
    text: &str,
) -> Option<FunctionId> {
    let id = written(scope, namespace, text)?;
    if !context.kubernetes && (!is_of_another_tenant(scope, namespace, &id) || context.incomplete) {
        return existing(context, scope, (namespace, caller), id);
    }
    if !context.has(&id) {
        let message = match context.kubernetes {
            true => format!("there is no function `{id}`: it has no pods, or they are not in the mesh"),
            false => format!("there is no function `{id}`: calls to it are refused, and none come from it"),
        };
        scope.doubt(context.doubts, message, similar(context, scope, (namespace, caller), &id));
    }
    Some(id)
}

/// The same for a function that a policy selects. The author of such a policy may also change the
/// function, so the function must exist, in any namespace.
pub(super) fn function_of_policy(
    context: &Context<'_>,
    scope: &Scope<'_>,
    namespace: &str,
    text: &str,
) -> Option<FunctionId> {
    existing(context, scope, (namespace, None), written(scope, namespace, text)?)
}

fn written(scope: &Scope<'_>, namespace: &str, text: &str) -> Option<FunctionId> {
    let id = parsed(namespace, text);
    if id.is_none() {
        let message = format!("`{}` is not a function's name", text.escape_debug());
        scope.problem(message, "expected `name` or `namespace/name`");
    }
    id
}

fn existing(
    context: &Context<'_>,
    scope: &Scope<'_>,
    (namespace, caller): (&str, Option<&FunctionId>),
    id: FunctionId,
) -> Option<FunctionId> {
    if context.has(&id) {
        return Some(id);
    }
    if context.kubernetes {
        let message = format!("there is no function `{id}`: the policy does not apply to it yet");
        scope.doubt(context.doubts, message, similar(context, scope, (namespace, caller), &id));
    } else if !context.incomplete {
        scope.problem(format!("there is no function `{id}`"), similar(context, scope, (namespace, caller), &id));
    }
    None
}

/// Whether a name in a request's document refers to a function of another namespace. That
/// namespace's owner may delete and change it, so an error of it is reported as a doubt only. All
/// files have one owner, who can correct either side.
pub(super) fn is_of_another_tenant(scope: &Scope<'_>, namespace: &str, id: &FunctionId) -> bool {
    scope.origin() == Origin::Request && id.namespace != namespace
}

/// Reports as a doubt that another tenant's function cannot be called from here.
pub(super) fn not_callable(context: &Context<'_>, scope: &Scope<'_>, id: &FunctionId, fix: &str) {
    let message = format!("`{id}` cannot be called from here: calls to it are refused");
    scope.doubt(context.doubts, message, fix);
}

fn similar(
    context: &Context<'_>,
    scope: &Scope<'_>,
    (namespace, caller): (&str, Option<&FunctionId>),
    wrong: &FunctionId,
) -> String {
    // A search over all names helps a human reader, who does not need the hundredth.
    if scope.problem_count() > 100 {
        return String::new();
    }
    // A request may come from a tenant, who must not learn the names of other namespaces.
    let is_shown = |id: &&FunctionId| scope.origin() == Origin::File || id.namespace == namespace;
    let is_callable = |id: &&FunctionId| caller.is_none_or(|caller| *id != caller && !context.jobs.contains_key(id));
    let all = || context.all().flat_map(BTreeMap::keys).filter(is_shown).filter(is_callable);
    let in_other_namespace = all().find(|id| id.name == wrong.name);
    if let Some(id) = in_other_namespace {
        return format!("did you mean `{id}`?");
    }
    // Only names are compared: with the same namespace before both, any two short names are near.
    let names = all().filter(|id| id.namespace == wrong.namespace).map(|id| id.name.as_str());
    if let Some(name) = nearest(&wrong.name, &names.collect::<Vec<_>>()) {
        return format!("did you mean `{}/{name}`?", wrong.namespace);
    }
    if context.kubernetes {
        return "label its namespace or its pods `leno.dev/mesh: enabled`, or name a function that exists".to_owned();
    }
    format!("add a Function document, or name one that exists (`name` alone means `{namespace}/name`)")
}

/// A duration within bounds (both included).
pub(super) fn within(scope: &Scope<'_>, duration: Duration, low: Duration, high: Duration) -> std::time::Duration {
    if duration < low || duration > high {
        let what = if duration < low { "short" } else { "long" };
        scope.problem(format!("{duration} is too {what}"), format!("expected {low} to {high}"));
    }
    duration.0
}

/// A percentage in steps of 0.01, as a number of 10,000.
pub(super) fn per_10k(scope: &Scope<'_>, percent: f64) -> u16 {
    let share = percent * 100.0;
    if !(0.0..=100.0).contains(&percent) {
        scope.problem(format!("{percent} percent"), "expected 0 to 100");
    } else if (share - share.round()).abs() > 1e-6 {
        scope.problem(format!("{percent} percent is too fine"), "expected steps of 0.01");
    }
    // Checked above: 0 to 10,000 (the cast saturates).
    share.round() as u16
}

/// A duration in whole milliseconds, within bounds (both included).
pub(super) fn millis(scope: &Scope<'_>, duration: Duration, low: Duration, high: Duration) -> u64 {
    within(scope, duration, low, high);
    duration.whole_millis().unwrap_or_else(|| {
        scope.problem(format!("{duration} is not a whole number of milliseconds"), "");
        0
    })
}

/// Bytes of a path and of a name in it, as Linux has them (`PATH_MAX` without the NUL at the end,
/// `NAME_MAX`).
const LONGEST_PATH: usize = 4095;
const LONGEST_FILE_NAME: usize = 255;
pub(super) const DAY: Duration = Duration::from_secs(86_400);
/// One of the two bounds of most durations.
pub(super) const MILLISECOND: Duration = Duration::from_millis(1);

/// Makes a path relative to the document's folder absolute: the process that uses it may have
/// another working directory.
pub(super) fn relative(scope: &Scope<'_>, path: &Path) -> PathBuf {
    check_path(scope, path);
    if scope.origin() == Origin::Request {
        // The default of an omitted path is `.`. A request's document is in no folder, so its path
        // is `/`, for which jails have an empty folder.
        if path != Path::new(".") && !path.is_absolute() {
            scope.problem(format!("{} is a relative path", path.display()), Problem::IN_NO_FOLDER);
        }
        return Path::new("/").join(path).components().collect();
    }
    let path = scope.folder().join(path);
    std::path::absolute(&path).unwrap_or(path)
}

/// Refuses a path that no file can have.
fn check_path(scope: &Scope<'_>, path: &Path) {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.contains(&0) {
        scope.problem("the path contains a NUL character", "remove it");
    }
    if bytes.len() > LONGEST_PATH || path.components().any(|name| name.as_os_str().len() > LONGEST_FILE_NAME) {
        let fix = format!("expected at most {LONGEST_PATH} bytes, and {LONGEST_FILE_NAME} in each name");
        scope.problem("the path is longer than the path of a file can be", fix);
    }
}

/// A file that must exist; a change of it changes the configuration.
pub(super) fn file(context: &std::cell::RefCell<Vec<PathBuf>>, scope: &Scope<'_>, path: &Path) -> PathBuf {
    let path = relative(scope, path);
    if scope.origin() == Origin::Request {
        // It is a file of the nodes, which report it if it is missing.
        return path;
    }
    if !path.is_file() {
        let what = if path.exists() { "regular file at" } else { "file" };
        scope.problem(format!("there is no {what} {}", path.display()), "paths are relative to the document's folder");
    }
    context.borrow_mut().push(path.clone());
    path
}

/// Largest certificates in a document, in bytes.
const LARGEST_ROOTS: usize = 64 << 10;

/// The certificates to trust in place of the system's: a file (`caFile`), or PEM (`ca`; empty: none).
pub(super) fn roots(
    context: &std::cell::RefCell<Vec<PathBuf>>,
    scope: &Scope<'_>,
    (file, pem): (Option<&Path>, Option<&str>),
) -> (Option<PathBuf>, String) {
    let place = scope.field("ca");
    if let Some(pem) = pem {
        let fix = "expected certificates: `-----BEGIN CERTIFICATE-----` and so on, as in a PEM file";
        match () {
            () if file.is_some() => {
                place.problem("the certificates come from two places", "keep one of `ca` and `caFile`")
            }
            () if pem.len() > LARGEST_ROOTS => {
                place.problem(format!("it has more than {LARGEST_ROOTS} bytes"), "name fewer authorities")
            }
            () if pem.contains("PRIVATE KEY") => place.problem("there is a private key in it", fix),
            () if !pem.contains("-----BEGIN CERTIFICATE-----") => place.problem("there is no certificate in it", fix),
            () => {}
        }
    }
    let file = file.map(|path| self::file(context, &scope.field("caFile"), path));
    (file, pem.unwrap_or_default().to_owned())
}

/// Whether a file may be read now. Reports files that a document of a request names: otherwise the
/// sender of documents could read any file.
pub(super) fn is_read(scope: &Scope<'_>, fix: &str) -> bool {
    let read = scope.origin() == Origin::File;
    if !read {
        scope.problem(Problem::READS_NO_FILES, fix);
    }
    read
}

/// A port that a caller may ask for.
pub(super) fn port(scope: &Scope<'_>, port: u16) -> u16 {
    if port == 0 {
        scope.problem("0 is not a port", "expected 1 to 65535");
    }
    port
}

/// Refuses an empty list if omitting the field means something wider: a list that lost its last
/// element must not match everything.
pub(super) fn not_empty<T>(scope: &Scope<'_>, list: &[T], without: &str) {
    if list.is_empty() {
        scope.problem("the list is empty", format!("add an element, or remove the field, which means {without}"));
    }
}

/// The same for a field whose absence is an empty list.
pub(super) fn not_written_empty<T>(scope: &Scope<'_>, field: &str, list: &[T], without: &str) {
    if scope.has(field) {
        not_empty(&scope.field(field), list, without);
    }
}

/// Statuses: `404`, `4xx`, `500-503`.
pub(super) fn statuses(list: &Scope<'_>, texts: &[String]) -> Vec<(u16, u16)> {
    let parse = |text: &str| match text.split_once('-') {
        Some((low, high)) => Some((status(low)?, status(high)?)),
        None if text.ends_with("xx") => {
            text.strip_suffix("xx").and_then(|class| status(&format!("{class}00"))).map(|low| (low, low + 99))
        }
        None => status(text).map(|status| (status, status)),
    };
    let mut ranges = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match parse(text) {
            Some((low, high)) if low <= high => ranges.push((low, high)),
            Some((low, high)) => list
                .element(index)
                .problem(format!("{text} is a range from high to low"), format!("write {high}-{low}")),
            None => list.element(index).problem(
                format!("`{}` is not a status or a range of them", text.escape_debug()),
                "expected for example 404, 4xx or 500-503, between 100 and 599",
            ),
        }
    }
    ranges
}

/// Three digits from 100 to 599.
fn status(text: &str) -> Option<u16> {
    let digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|status| digits && (100..=599).contains(status))
}
