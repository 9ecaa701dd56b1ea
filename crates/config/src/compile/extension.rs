//! `spec.extensions`.

use super::authentication::check_url;
use super::{Context, fields};
use crate::document::{Direction, Extension, FailMode, Phase};
use crate::duration::Duration;
use crate::problem::Scope;
use crate::size::Size;
use crate::slice::{self, ModuleHash, ModuleUrl};
use crate::snapshot;
use std::path::Path;
use std::sync::Arc;

const SHORTEST_DEADLINE: Duration = Duration(std::time::Duration::from_micros(50));
/// A runaway module holds a worker thread this long.
const LONGEST_DEADLINE: Duration = Duration::from_millis(100);
const SMALLEST_MEMORY: Size = Size(64 << 10);
const LARGEST_MEMORY: Size = Size::from_mib(64);
/// Bytes of a configuration: it travels with every slice.
const LARGEST_CONFIGURATION: usize = 64 << 10;
/// Bytes of a module. A delivery is one message, of which the control plane takes a few times as much.
const LARGEST_MODULE: u64 = 8 << 20;
/// Extensions of one policy.
const MOST: usize = 16;

/// The extensions of one policy. Modules that are files are read here, and added to the context's.
pub(super) fn extensions(
    context: &Context<'_>,
    list: &Scope<'_>,
    policy: &str,
    extensions: &[Extension],
) -> Vec<snapshot::Extension> {
    fields::unique_names(list, extensions.iter().map(|extension| Some(extension.name.as_str())));
    if extensions.len() > MOST {
        list.problem(
            format!("{} extensions are many", extensions.len()),
            format!("expected at most {MOST} in a policy"),
        );
    }
    let compiled = extensions.iter().enumerate().filter_map(|(index, one)| {
        let scope = list.element(index);
        let compiled = extension(context, &scope, policy, one, index)?;
        let outbound = one.direction == Direction::Outbound;
        Some(snapshot::Extension { outbound, spec: compiled, place: scope.here() })
    });
    compiled.collect()
}

fn extension(
    context: &Context<'_>,
    scope: &Scope<'_>,
    policy: &str,
    extension: &Extension,
    index: usize,
) -> Option<slice::Extension> {
    let name = fields::rule_name(scope, policy, "extensions", Some(&extension.name), index);
    let deadline = fields::within(&scope.field("deadline"), extension.deadline, SHORTEST_DEADLINE, LONGEST_DEADLINE);
    let memory = extension.memory;
    if memory < SMALLEST_MEMORY || memory > LARGEST_MEMORY {
        let message = format!("{memory} is too {}", if memory < SMALLEST_MEMORY { "little" } else { "much" });
        scope.field("memory").problem(message, format!("expected {SMALLEST_MEMORY} to {LARGEST_MEMORY}"));
    }
    if extension.configuration.len() > LARGEST_CONFIGURATION {
        let fix = format!("expected at most {LARGEST_CONFIGURATION} bytes");
        scope.field("configuration").problem("the configuration is too large", fix);
    }
    let (module, url) = source(context, scope, extension)?;
    Some(slice::Extension {
        name,
        module,
        url,
        request: extension.phase != Phase::Response,
        response: extension.phase != Phase::Request,
        configuration: extension.configuration.clone().into_bytes(),
        deadline,
        memory: memory.0,
        fail_open: extension.fail_mode == FailMode::Open,
    })
}

/// The module's name, and where it comes from if it is not a file of the configuration.
fn source(context: &Context<'_>, scope: &Scope<'_>, extension: &Extension) -> Option<(ModuleHash, Option<ModuleUrl>)> {
    let wanted = extension.sha256.as_deref().map(|text| {
        let parsed = text.parse::<ModuleHash>();
        if parsed.is_err() {
            let fix = "expected 64 hexadecimal digits, as `sha256sum` prints them";
            scope.field("sha256").problem(format!("`{}` is not a SHA-256", text.escape_debug()), fix);
        }
        parsed.ok()
    });
    if extension.url.is_none() && extension.ca_file.is_some() {
        scope.field("caFile").problem("`caFile` is for modules that are fetched", "remove it, or give a `url`");
    }
    match (&extension.path, &extension.url, wanted) {
        (Some(path), None, wanted) => file(context, scope, path, wanted.flatten()).map(|hash| (hash, None)),
        (None, Some(url), Some(hash)) => {
            check_url(&scope.field("url"), url);
            let ca_file =
                extension.ca_file.as_ref().map(|file| fields::file(context.inputs, &scope.field("caFile"), file));
            Some((hash?, Some(ModuleUrl { url: url.clone(), ca_file })))
        }
        (None, Some(_), None) => {
            let fix = "add `sha256` (`sha256sum module.wasm` prints it), so that only this module is ever run";
            scope.field("url").problem("a module that is fetched needs its SHA-256", fix);
            None
        }
        (None, None, _) => {
            scope.problem("there is no module", "expected `path`, or `url` with `sha256`");
            None
        }
        (Some(_), Some(_), _) => {
            scope.problem("the module comes from two places", "keep one of `path` and `url`");
            None
        }
    }
}

fn file(context: &Context<'_>, scope: &Scope<'_>, path: &Path, wanted: Option<ModuleHash>) -> Option<ModuleHash> {
    let place = scope.field("path");
    let path = fields::file(context.inputs, &place, path);
    // A file that is missing has been reported.
    let size = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?.len();
    if size > LARGEST_MODULE {
        let fix = format!("expected at most {LARGEST_MODULE}; build it for size, and strip it");
        place.problem(format!("{} has {size} bytes", path.display()), fix);
        return None;
    }
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) => {
            place.problem(format!("{}: {error}", path.display()), "");
            return None;
        }
    };
    if !bytes.starts_with(b"\0asm") {
        place.problem(format!("{} is no WebAssembly", path.display()), "name the compiled module, usually *.wasm");
        return None;
    }
    let hash = ModuleHash::of(&bytes);
    if let Some(wanted) = wanted.filter(|wanted| *wanted != hash) {
        let message = format!("{} has another SHA-256 than {wanted}", path.display());
        scope.field("sha256").problem(message, format!("its own is {hash}"));
    }
    context.modules.borrow_mut().entry(hash).or_insert_with(|| Arc::from(bytes));
    Some(hash)
}
