//! Origin of WebAssembly: a file of the configuration, or a URL with a hash.

use super::authentication::check_url;
use super::{Context, fields};
use crate::digest::module_hash;
use crate::problem::Scope;
use leno_files::FileAccess;
use leno_model::{ModuleHash, ModuleUrl};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// The expected kind of WebAssembly.
pub(super) struct Kind {
    name: &'static str,
    other: &'static str,
    /// Largest size in bytes. A delivery is one message, for which the control plane takes a few
    /// times as much.
    largest: u64,
    preamble: [u8; 8],
    fix: &'static str,
}

/// The fields of a document that name the origin.
pub(super) struct Source<'a> {
    pub path: Option<&'a Path>,
    pub url: Option<&'a str>,
    pub ca_file: Option<&'a Path>,
    pub ca: Option<&'a str>,
    pub sha256: Option<&'a str>,
}

/// A plain module.
pub(super) const MODULE: Kind = Kind {
    name: "module",
    other: "a component",
    largest: 8 << 20,
    preamble: *b"\0asm\x01\0\0\0",
    fix: "name the compiled module, usually *.wasm",
};

/// A component.
pub(super) const COMPONENT: Kind = Kind {
    name: "component",
    other: "a plain module",
    largest: 48 << 20,
    preamble: *b"\0asm\x0d\0\x01\0",
    fix: "make a component of it: build for wasm32-wasip2, or use `wasm-tools component new`",
};

/// The module's name, and its origin if it is not a file of the configuration. Files are read, and
/// added to the context.
pub(super) fn source(
    context: &Context<'_>,
    scope: &Scope<'_>,
    source: &Source<'_>,
    kind: &Kind,
) -> Option<(ModuleHash, Option<ModuleUrl>)> {
    let name = kind.name;
    let wanted = source.sha256.map(|text| {
        let parsed = text.parse::<ModuleHash>();
        if parsed.is_err() {
            let fix = "expected 64 hexadecimal digits, as `sha256sum` prints them";
            scope.field("sha256").problem(format!("`{}` is not a SHA-256", text.escape_debug()), fix);
        }
        parsed.ok()
    });
    for (field, is_written) in [("caFile", source.ca_file.is_some()), ("ca", source.ca.is_some())] {
        if source.url.is_none() && is_written {
            let fix = "remove it, or give a `url`";
            scope.field(field).problem(format!("`{field}` is for {name}s that are fetched"), fix);
        }
    }
    match (source.path, source.url, wanted) {
        (Some(path), None, wanted) => file(context, scope, path, wanted.flatten(), kind).map(|hash| (hash, None)),
        (None, Some(url), Some(hash)) => {
            check_url(&scope.field("url"), url);
            let (ca_file, ca) = fields::roots(context.inputs, scope, (source.ca_file, source.ca));
            Some((hash?, Some(ModuleUrl { url: url.to_owned(), ca_file, ca })))
        }
        (None, Some(_), None) => {
            let fix = format!("add `sha256` (`sha256sum {name}.wasm` prints it), so that only this {name} is ever run");
            scope.field("url").problem(format!("a {name} that is fetched needs its SHA-256"), fix);
            None
        }
        (None, None, _) => {
            scope.problem(format!("there is no {name}"), "expected `path`, or `url` with `sha256`");
            None
        }
        (Some(_), Some(_), _) => {
            scope.problem(format!("the {name} comes from two places"), "keep one of `path` and `url`");
            None
        }
    }
}

fn file(
    context: &Context<'_>,
    scope: &Scope<'_>,
    path: &Path,
    wanted: Option<ModuleHash>,
    kind: &Kind,
) -> Option<ModuleHash> {
    let place = scope.field("path");
    if !fields::is_read(&place, "expected `url` with `sha256`") {
        return None;
    }
    let path = fields::file(context.inputs, &place, path);
    // A missing file has been reported.
    std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
    let bytes = match leno_files::read(&path, &FileAccess::Any, kind.largest) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            let fix = format!("expected at most {}; build it for size, and strip it", kind.largest);
            place.problem(format!("{}: {error}", path.display()), fix);
            return None;
        }
        Err(error) => {
            place.problem(format!("{}: {error}", path.display()), "");
            return None;
        }
    };
    if !bytes.starts_with(&kind.preamble) {
        let is = if bytes.starts_with(b"\0asm") { kind.other } else { "no WebAssembly" };
        place.problem(format!("{} is {is}", path.display()), kind.fix);
        return None;
    }
    let hash = module_hash(&bytes);
    if let Some(wanted) = wanted.filter(|wanted| *wanted != hash) {
        let message = format!("{} has another SHA-256 than {wanted}", path.display());
        scope.field("sha256").problem(message, format!("its own is {hash}"));
    }
    context.modules.borrow_mut().entry(hash).or_insert_with(|| Arc::from(bytes));
    Some(hash)
}
