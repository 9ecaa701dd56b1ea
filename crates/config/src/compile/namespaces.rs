//! NamespaceQuota documents, and the defaults in the Mesh document.

use super::{Documents, TypedDocument, fields, text};
use crate::document::{self, HostPath, NamespaceLimits};
use crate::document_id::DocumentId;
use crate::namespace::{NamespaceQuota, NamespaceUse, Namespaces};
use crate::problem::{Problem, Scope};
use crate::snapshot::{self, QuotaUses};
use leno_files::{HostFolder, Owner};
use leno_model::FunctionId;
use leno_model::Isolation;
use leno_model::NamespaceBounds;
use leno_model::size::Size;
use std::cell::{LazyCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Folders, blocks and hosts of one quota.
const MAX_ENTRIES: usize = 256;

pub(super) fn namespaces(documents: &Documents, problems: &RefCell<Vec<Problem>>) -> Namespaces {
    let defaults = documents.meshes.first().map_or_else(NamespaceQuota::default, |placed| {
        let root = placed.scope(problems);
        let spec = root.field("spec");
        let scope = spec.field("namespaces");
        let limits = &placed.document.spec.namespaces;
        if limits.hosts.is_some() {
            let fix = "name them in the NamespaceQuota documents of the namespaces that they belong to";
            scope.field("hosts").problem("no two namespaces can have the same hosts", fix);
        }
        let mut before = NamespaceQuota::default();
        let isolation = placed.document.spec.instances.isolation;
        // Other values of the Mesh document are defaults of functions that choose no isolation.
        before.bounds.isolation = (isolation == Isolation::Strict).then_some(isolation);
        quota(&scope, limits, before)
    });
    let mut given: BTreeMap<String, (NamespaceQuota, &Arc<TypedDocument<document::NamespaceQuota>>)> = BTreeMap::new();
    for placed in &documents.namespace_quotas {
        let root = placed.scope(problems);
        let metadata = root.field("metadata");
        let name = &placed.document.metadata.name;
        if !fields::label(&metadata.field("name"), name) {
            continue;
        }
        if let Some((_, first)) = given.get(name) {
            let message =
                format!("there is another quota of the namespace `{name}`, in {}", first.scope(problems).line());
            metadata.field("name").problem(message, "keep one of the two");
            continue;
        }
        let compiled = quota(&root.field("spec"), &placed.document.spec, defaults.clone());
        given.insert(name.clone(), (compiled, placed));
    }
    Namespaces { defaults, given: given.into_iter().map(|(name, (quota, _))| (name, quota)).collect() }
}

/// Reports policies that choose an engine which the quota of one of their functions does not
/// include.
pub(super) fn engines(
    documents: &[Arc<TypedDocument<document::Policy>>],
    policies: &[Arc<snapshot::Policy>],
    functions: &BTreeMap<FunctionId, snapshot::Function>,
    namespaces: &Namespaces,
    problems: &RefCell<Vec<Problem>>,
) {
    let mut reported = BTreeSet::new();
    for (id, function) in functions {
        let Some(allowed) = &namespaces.of(&id.namespace).engines else { continue };
        let chosen = function.policies.iter().filter_map(|index| {
            let sidecar = policies.get(*index)?.sidecar.as_ref()?;
            Some((*index, sidecar.engine?))
        });
        for (index, engine) in chosen.filter(|(_, engine)| !allowed.contains(engine)) {
            if reported.insert((index, &id.namespace)) {
                let root = documents[index].scope(problems);
                let spec = root.field("spec");
                let message = format!("{engine:?} is no engine of the namespace `{}`", id.namespace).to_lowercase();
                let sidecar = spec.field("sidecar");
                let fix = format!("expected one of its quota's `engines`: {allowed:?}").to_lowercase();
                sidecar.field("engine").problem(message, fix);
            }
        }
    }
}

/// Reports namespaces whose documents are files and exceed their quota. A control plane compares
/// the use after a change with the use before it instead.
pub(super) fn within(
    documents: &Documents,
    uses: &QuotaUses<'_>,
    namespaces: &Namespaces,
    problems: &RefCell<Vec<Problem>>,
) {
    let places = LazyCell::new(|| documents.places());
    for (namespace, used) in uses.of_namespaces() {
        for overrun in used.overruns(namespaces.of(namespace), &NamespaceUse::default()) {
            let shares = uses.shares(namespace);
            let order = |id: &DocumentId| places.get(id);
            problems.borrow_mut().extend(overrun.problems(namespace, shares, order, Problem::clone));
        }
    }
}

/// A quota: the fields that are written, and `before` for the others.
fn quota(scope: &Scope<'_>, limits: &NamespaceLimits, before: NamespaceQuota) -> NamespaceQuota {
    let number = |name, written, range| number(scope, name, written, range);
    let size = |name, written, least, most| size(scope, name, written, least, most);
    let of = before.bounds;
    let cpu = limits.cpu.map(|cores| {
        if !(0.01..=1024.0).contains(&cores) {
            scope.field("cpu").problem(format!("{cores} cores"), "expected 0.01 to 1024");
        }
        (cores * 1000.0).round() as u32
    });
    let bounds = NamespaceBounds {
        instances: number("instances", limits.instances, 1..=100_000).or(of.instances),
        cpu_millis: cpu.or(of.cpu_millis),
        memory: size("memory", limits.memory, 1 << 20, 1 << 50).or(of.memory),
        pids: number("pids", limits.pids, 1..=4_194_304).or(of.pids),
        connections: number("connections", limits.connections, 16..=1_000_000).or(of.connections),
        open_requests: number("openRequests", limits.open_requests, 1..=1_000_000).or(of.open_requests),
        waiting_requests: number("waitingRequests", limits.waiting_requests, 1..=1_000_000).or(of.waiting_requests),
        pull_bandwidth: size("pullBandwidth", limits.pull_bandwidth, 64 << 10, 1 << 40).or(of.pull_bandwidth),
        image_bytes: size("imageBytes", limits.image_bytes, 1 << 20, 1 << 50).or(of.image_bytes),
        image_files: number("imageFiles", limits.image_files, 100..=1_000_000_000).or(of.image_files),
        volumes: number("volumes", limits.volumes, 0..=10_000).or(of.volumes),
        volume_bytes: size("volumeBytes", limits.volume_bytes, 16 << 20, 1 << 50).or(of.volume_bytes),
        log_bandwidth: size("logBandwidth", limits.log_bandwidth, 1 << 10, 1 << 40).or(of.log_bandwidth),
        isolation: limits.isolation.or(of.isolation),
        files: limits.files.as_deref().map(|folders| files(&scope.field("files"), folders)).or(of.files),
        host_paths: limits
            .host_paths
            .as_deref()
            .map(|paths| host_paths(&scope.field("hostPaths"), paths))
            .or(of.host_paths),
        egress: limits.egress.as_deref().map(|blocks| egress(&scope.field("egress"), blocks)).or(of.egress),
        metadata: of.metadata,
    };
    if limits.engines.as_ref().is_some_and(Vec::is_empty) {
        scope.field("engines").problem("no engine is allowed", "expected `[microvm]`, `[wasm]` or both");
    }
    NamespaceQuota {
        functions: number("functions", limits.functions, 1..=100_000).unwrap_or(before.functions),
        document_bytes: size("documentBytes", limits.document_bytes, 1 << 10, 64 << 20)
            .unwrap_or(before.document_bytes),
        rules: number("rules", limits.rules, 1..=10_000_000).map_or(before.rules, Into::into),
        secrets: number("secrets", limits.secrets, 0..=10_000).unwrap_or(before.secrets),
        secret_bytes: size("secretBytes", limits.secret_bytes, 1 << 10, 16 << 20).unwrap_or(before.secret_bytes),
        routes: number("routes", limits.routes, 0..=100_000).unwrap_or(before.routes),
        route_matches: number("routeMatches", limits.route_matches, 0..=10_000_000)
            .map_or(before.route_matches, Into::into),
        hosts: limits.hosts.as_deref().map(|names| hosts(&scope.field("hosts"), names)),
        engines: limits.engines.clone().or(before.engines),
        bounds,
    }
}

fn number(scope: &Scope<'_>, name: &str, written: Option<u32>, range: RangeInclusive<u32>) -> Option<u32> {
    if let Some(number) = written.filter(|number| !range.contains(number)) {
        let fix = format!("expected {} to {}", range.start(), range.end());
        scope.field(name).problem(format!("{number} is out of range"), fix);
    }
    written
}

fn size(scope: &Scope<'_>, name: &str, written: Option<Size>, least: u64, most: u64) -> Option<u64> {
    let Size(bytes) = written?;
    if !(least..=most).contains(&bytes) {
        let fix = format!("expected {} to {}", Size(least), Size(most));
        scope.field(name).problem(format!("{} is out of range", Size(bytes)), fix);
    }
    Some(bytes)
}

/// Folders below which files may be opened.
fn files(list: &Scope<'_>, written: &[PathBuf]) -> Vec<PathBuf> {
    few(list, written.len());
    written.iter().enumerate().for_each(|(index, path)| folder(&list.element(index), path));
    written.to_vec()
}

/// Reports a path that cannot be a folder of nodes from which files are given.
fn folder(scope: &Scope<'_>, folder: &Path) {
    let plain = folder.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !folder.is_absolute() || !plain || folder.parent().is_none() {
        let message = format!("{} is not a folder that files can be given from", folder.display());
        scope.problem(message, "expected an absolute path without `..`, such as /etc/leno/shop; not `/`");
    }
}

/// Folders that programs may have.
fn host_paths(list: &Scope<'_>, written: &[HostPath]) -> Vec<HostFolder> {
    few(list, written.len());
    let compile = |(index, HostPath { path, owner }): (usize, &HostPath)| {
        let element = list.element(index);
        folder(&element.field("path"), path);
        let owner = owner.as_ref().and_then(|text| {
            let compiled = self::owner(text);
            if compiled.is_none() {
                let message = format!("`{}` cannot own files of programs", text.escape_debug());
                element.field("owner").problem(message, "expected IDs above 0, such as `1000` or `1000:1000`");
            }
            compiled
        });
        HostFolder { path: path.clone(), owner }
    };
    written.iter().enumerate().map(compile).collect()
}

/// `1000` or `1000:100`; `None`: another text, or root.
fn owner(text: &str) -> Option<Owner> {
    let id = |text: &str| text.parse().ok().filter(|id| (1..u32::MAX).contains(id));
    let (user, group) = text.split_once(':').unwrap_or((text, text));
    Some(Owner { user: id(user)?, group: id(group)? })
}

fn egress(list: &Scope<'_>, written: &[String]) -> Vec<leno_policy::spec::Cidr> {
    few(list, written.len());
    written.iter().enumerate().filter_map(|(index, block)| text::cidr(&list.element(index), block)).collect()
}

fn hosts(list: &Scope<'_>, written: &[String]) -> Vec<String> {
    few(list, written.len());
    written.iter().enumerate().filter_map(|(index, host)| text::exposed_host(&list.element(index), host)).collect()
}

fn few(list: &Scope<'_>, count: usize) {
    if count > MAX_ENTRIES {
        list.problem(format!("there are {count}"), format!("expected at most {MAX_ENTRIES}"));
    }
}
