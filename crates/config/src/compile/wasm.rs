//! `spec.wasm` of a function.

use super::process::{self, Kind};
use super::{Context, confine, fields, module};
use crate::document::{FunctionSpec, SecretAs, Wasm};
use crate::duration::Duration;
use crate::problem::Scope;
use leno_model::size::Size;

const SMALLEST_MEMORY: Size = Size::from_mib(1);
const LARGEST_MEMORY: Size = Size::from_mib(512);

/// Fields that make no sense for a component, and the fix for each.
const NOT_HERE: [(&str, &str); 11] = [
    ("workingDirectory", "remove it: a component has no files"),
    ("resources", "remove it: its memory is limited by `wasm.memory`, its time by `timeouts.request`"),
    ("ports", "remove it: a component serves HTTP only"),
    ("isolation", "remove it: a component runs in a sandbox"),
    ("readOnlyPaths", "remove it: a component has no files"),
    ("volumes", "remove it: a component has no files"),
    ("port", "remove it: the node hands requests to the component without a socket"),
    ("protocol", "remove it: the node hands requests to the component without a socket"),
    ("readiness", "remove it: a component is ready when it is compiled"),
    ("liveness", "remove it: every request has an instance of its own"),
    ("scale", "remove it: every request has an instance of its own; `concurrency` limits how many there are"),
];

/// A function that is a component.
pub(super) fn wasm(
    context: &Context<'_>,
    scope: &Scope<'_>,
    namespace: &str,
    spec: &FunctionSpec,
    wasm: &Wasm,
) -> Option<leno_model::Wasm> {
    for (field, fix) in NOT_HERE {
        if scope.has(field) {
            scope.field(field).problem(format!("`{field}` is for commands; this function is a component"), fix);
        }
    }
    let timeouts = scope.field("timeouts");
    if timeouts.has("startup") {
        timeouts.field("startup").problem("`startup` is for commands; this function is a component", "remove it");
    }
    process::environment(Kind::Component, &scope.field("env"), &spec.env);
    let secrets = scope.field("secrets");
    for (index, secret) in spec.secrets.iter().enumerate() {
        if secret.r#as == SecretAs::File {
            secrets.element(index).problem("a component has no files", "add `as: env`");
        }
    }
    let place = scope.field("wasm");
    let memory = wasm.memory;
    if memory < SMALLEST_MEMORY || memory > LARGEST_MEMORY {
        let message = format!("{memory} is too {}", if memory < SMALLEST_MEMORY { "little" } else { "much" });
        place.field("memory").problem(message, format!("expected {SMALLEST_MEMORY} to {LARGEST_MEMORY}"));
    }
    let source = module::Source {
        path: wasm.path.as_deref(),
        url: wasm.url.as_deref(),
        ca_file: wasm.ca_file.as_deref(),
        ca: wasm.ca.as_deref(),
        sha256: wasm.sha256.as_deref(),
    };
    let (module, url) = module::source(context, &place, &source, &module::COMPONENT)?;
    Some(leno_model::Wasm {
        module,
        url,
        memory: memory.0,
        env: spec.env.clone(),
        secrets: confine::secrets(context, namespace, Kind::Component, &secrets, &spec.secrets, &spec.env),
        grace: fields::within(&timeouts.field("grace"), spec.timeouts.grace, Duration::default(), fields::DAY),
    })
}
