//! `spec.extensions`.

use super::{Context, fields, module};
use crate::document::{Direction, Extension, FailMode, Phase};
use crate::duration::Duration;
use crate::problem::Scope;
use crate::snapshot;
use leno_model::size::Size;

const SHORTEST_DEADLINE: Duration = Duration(std::time::Duration::from_micros(50));
/// A runaway module holds a worker thread this long.
const LONGEST_DEADLINE: Duration = Duration::from_millis(100);
const SMALLEST_MEMORY: Size = Size(64 << 10);
const LARGEST_MEMORY: Size = Size::from_mib(64);
/// Bytes of a configuration: it is sent with every function configuration.
const LARGEST_CONFIGURATION: usize = 64 << 10;
/// Extensions of one policy.
const MOST: usize = 16;

/// The extensions of one policy. Modules that are files are read here, and added to the context.
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
) -> Option<leno_model::Extension> {
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
    let source = module::Source {
        path: extension.path.as_deref(),
        url: extension.url.as_deref(),
        ca_file: extension.ca_file.as_deref(),
        ca: extension.ca.as_deref(),
        sha256: extension.sha256.as_deref(),
    };
    let (module, url) = module::source(context, scope, &source, &module::MODULE)?;
    Some(leno_model::Extension {
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
