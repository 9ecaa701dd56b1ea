//! `spec.resources` and `spec.secrets` of functions and jobs.

use super::process::Kind;
use super::{Context, fields, stored_secret};
use crate::document::{Resources, Secret, SecretAs};
use crate::problem::Scope;
use std::collections::BTreeMap;
use std::path::PathBuf;

pub(super) fn resources(scope: &Scope<'_>, resources: &Resources) -> leno_model::Resources {
    const LEAST_MEMORY: u64 = 1 << 20;
    let Resources { memory, cpu, pids } = *resources;
    if let Some(memory) = memory.filter(|memory| memory.0 < LEAST_MEMORY) {
        scope.field("memory").problem(format!("{memory} is too little"), "expected at least 1Mi");
    }
    if let Some(cpu) = cpu
        && !(0.01..=1024.0).contains(&cpu)
    {
        scope.field("cpu").problem(format!("{cpu} cores"), "expected 0.01 to 1024");
    }
    if pids == Some(0) {
        scope.field("pids").problem("an instance is at least one process", "expected at least 1");
    }
    leno_model::Resources {
        memory: memory.map_or(0, |memory| memory.0),
        cpu_millis: cpu.map_or(0, |cores| (cores * 1000.0).round() as u32),
        pids: pids.unwrap_or(0),
    }
}

/// Files and folders that a jail shows. They are checked when an instance starts: they may be
/// another machine's.
pub(super) fn read_only_paths(list: &Scope<'_>, paths: &[PathBuf]) -> Vec<PathBuf> {
    paths.iter().enumerate().map(|(index, path)| fields::relative(&list.element(index), path)).collect()
}

pub(super) fn secrets(
    context: &Context<'_>,
    namespace: &str,
    kind: Kind,
    list: &Scope<'_>,
    written: &[Secret],
    env: &BTreeMap<String, String>,
) -> Vec<leno_model::Secret> {
    let mut secrets: Vec<leno_model::Secret> = Vec::new();
    for (index, Secret { name, from, r#as }) in written.iter().enumerate() {
        let scope = list.element(index);
        let field = scope.field("name");
        let environment = *r#as == SecretAs::Env;
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > 253 || name.starts_with('.') || !name.bytes().all(good) {
            let fix = "expected letters, digits, `-`, `_` and `.`, at most 253, not beginning with `.`";
            field.problem(format!("`{}` cannot be a secret's name", name.escape_debug()), fix);
        }
        if environment && (kind.sets(name) || name == "LENO_SECRETS") {
            field.problem(format!("`{name}` is set by the node"), "give it another name");
        }
        if environment && env.contains_key(name) {
            field.problem(format!("`{name}` is in `env` too"), "remove one of the two");
        }
        if secrets.iter().any(|other| other.name == *name && other.environment == environment) {
            field.problem(format!("`{name}` is there twice"), "give each its own name");
        }
        let from = stored_secret::source(context, &scope.field("from"), namespace, from);
        secrets.push(leno_model::Secret { name: name.clone(), from, environment });
    }
    secrets
}
