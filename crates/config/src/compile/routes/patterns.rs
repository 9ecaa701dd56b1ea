//! Paths, header fields and query parameters that routes look at.

use crate::compile::header::{self, Use};
use crate::host;
use crate::problem::Scope;
use leno_model::{FieldMatch, PathChange, PathPattern, RouteMatch, ValuePattern};
use leno_policy::host::normal_authority;
use leno_policy::path::normalise;
use leno_routing::{check_path, check_regex};
use std::borrow::Cow;

/// The header field whose value is the authority.
const HOST: &str = "host";
/// Longest regular expression, in bytes.
const LONGEST: usize = 1024;

/// A match of all requests.
pub(super) fn any() -> RouteMatch {
    RouteMatch {
        path: PathPattern::Prefix(String::new()),
        method: String::new(),
        headers: Vec::new(),
        query: Vec::new(),
    }
}

/// A path that requests have to be at.
pub(super) fn exact(scope: &Scope<'_>, path: &str) -> Option<PathPattern> {
    let path = normal(scope, path)?;
    checked(scope, PathPattern::Exact(path.into_owned()))
}

/// A path that requests have to be at or below.
pub(super) fn prefix(scope: &Scope<'_>, path: &str) -> Option<PathPattern> {
    match path.trim_end_matches('/') {
        "" => Some(PathPattern::Prefix(String::new())),
        path => {
            let path = normal(scope, path)?;
            checked(scope, PathPattern::Prefix(path.into_owned()))
        }
    }
}

/// A path that the tables of nodes take.
fn checked(scope: &Scope<'_>, path: PathPattern) -> Option<PathPattern> {
    let fix = match path {
        PathPattern::Regex(_) => "write simpler expressions, of service and method too",
        _ => "expected a path that begins with `/`",
    };
    check_path(&path).inspect_err(|reason| scope.problem(reason, fix)).is_ok().then_some(path)
}

fn normal<'p>(scope: &Scope<'_>, path: &'p str) -> Option<Cow<'p, str>> {
    match normalise(path) {
        Ok(normal) => Some(normal),
        Err(ambiguous) => {
            let message = format!("no request is at `{}`: {}", path.escape_debug(), ambiguous.words());
            scope.problem(message, "write the path as the mesh forwards it, for example `/a/b`");
            None
        }
    }
}

/// Whether a pattern is a regular expression.
fn is_regex(scope: &Scope<'_>, pattern: &str) -> bool {
    let checked = match pattern.len() {
        1..=LONGEST => check_regex(pattern),
        length => Err(format!("a regular expression of {length} bytes")),
    };
    if let Err(reason) = &checked {
        scope.problem(reason, "expected RE2's syntax, at most 1024 bytes, without look-around and back-references");
    }
    checked.is_ok()
}

/// A regular expression that paths have to match.
pub(super) fn path_regex(scope: &Scope<'_>, pattern: &str) -> Option<PathPattern> {
    is_regex(scope, pattern).then(|| PathPattern::Regex(pattern.to_owned()))
}

/// The path of a gRPC method. Without a service or a method: of any.
pub(super) fn grpc(scope: &Scope<'_>, service: Option<&str>, method: Option<&str>) -> Option<PathPattern> {
    let path = match (service, method) {
        (Some(service), Some(method)) => PathPattern::Exact(format!("/{service}/{method}")),
        (Some(service), None) => PathPattern::Prefix(format!("/{service}")),
        (None, Some(method)) => PathPattern::Regex(format!("/[^/]+/{}", regex_syntax::escape(method))),
        (None, None) => PathPattern::Prefix(String::new()),
    };
    checked(scope, path)
}

/// The same for regular expressions of services and methods.
pub(super) fn grpc_regex(scope: &Scope<'_>, service: Option<&str>, method: Option<&str>) -> Option<PathPattern> {
    let part = |field: &str, pattern: Option<&str>| match pattern {
        // Each part alone has to be an expression: `a)(b` is none.
        Some(pattern) => is_regex(&scope.field(field), pattern).then(|| format!("(?:{pattern})")),
        None => Some("[^/]+".to_owned()),
    };
    let (service, method) = (part("service", service), part("method", method));
    checked(scope, PathPattern::Regex(format!("/{}/{}", service?, method?)))
}

/// Header fields, also `host`. Of several elements with one name, the first one counts.
pub(super) fn headers<'e>(
    list: &Scope<'_>,
    elements: impl Iterator<Item = (&'e str, &'e str, bool)>,
) -> Vec<FieldMatch> {
    fields(list, elements, |scope, name| match name.eq_ignore_ascii_case(HOST) {
        true => Some(HOST.to_owned()),
        false => header::name(scope, name, Use::Read),
    })
}

/// The same for query parameters.
pub(super) fn query<'e>(list: &Scope<'_>, elements: impl Iterator<Item = (&'e str, &'e str, bool)>) -> Vec<FieldMatch> {
    fields(list, elements, |_, name| Some(name.to_owned()))
}

/// Each element has a name, a value, and whether the value is a regular expression.
fn fields<'e>(
    list: &Scope<'_>,
    elements: impl Iterator<Item = (&'e str, &'e str, bool)>,
    checked: impl Fn(&Scope<'_>, &str) -> Option<String>,
) -> Vec<FieldMatch> {
    let mut found: Vec<FieldMatch> = Vec::new();
    for (index, (name, value, expression)) in elements.enumerate() {
        let element = list.element(index);
        let Some(name) = checked(&element.field("name"), name) else { continue };
        if found.iter().any(|field| field.name == name) {
            continue;
        }
        let written = &element.field("value");
        let value = match expression {
            // Hosts are compared in one form.
            false if name == HOST => match normal_authority(value) {
                Some(host) => ValuePattern::Exact(host.into_owned()),
                None => {
                    let message = format!("no host is `{}`", value.escape_debug());
                    written.problem(message, "expected a host with or without a port, such as shop.example");
                    continue;
                }
            },
            true if !is_regex(written, value) => continue,
            true => ValuePattern::Regex(value.to_owned()),
            false => ValuePattern::Exact(value.to_owned()),
        };
        found.push(FieldMatch { name, value });
    }
    found
}

/// A path in place of another one.
pub(super) fn full_path(scope: &Scope<'_>, path: &str) -> Option<PathChange> {
    is_normal(scope, path).then(|| PathChange::Full(path.to_owned()))
}

/// A path in place of the prefix that the only match of the rule has.
pub(super) fn prefix_path(scope: &Scope<'_>, path: &str, matches: &[RouteMatch]) -> Option<PathChange> {
    if !matches!(matches, [RouteMatch { path: PathPattern::Prefix(_), .. }]) {
        let fix = "give the rule one match, with a path of the type `PathPrefix`";
        scope.problem("there is no prefix to replace", fix);
        return None;
    }
    let kept = path.trim_end_matches('/');
    (kept.is_empty() || is_normal(scope, kept)).then(|| PathChange::Prefix(path.to_owned()))
}

/// Whether requests can have this path.
fn is_normal(scope: &Scope<'_>, path: &str) -> bool {
    let fix = match normalise(path) {
        Ok(Cow::Borrowed(_)) if path != "*" && !path.contains('?') => return true,
        Ok(Cow::Owned(normal)) => format!("write `{normal}`"),
        Ok(Cow::Borrowed(_)) => "expected a path that begins with `/`, without a query".to_owned(),
        Err(ambiguous) => ambiguous.words().to_owned(),
    };
    scope.problem(format!("`{}` is not a path in its normal form", path.escape_debug()), fix);
    false
}

/// A host that requests get, or to which clients are sent.
pub(super) fn host(scope: &Scope<'_>, written: &str) -> Option<String> {
    let host = host::normal(written);
    if host.is_none() {
        scope.problem(format!("`{}` is not a host", written.escape_debug()), "expected a name such as shop.example");
    }
    host
}
