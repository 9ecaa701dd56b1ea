//! A Job document.

use super::arguments::Arguments;
use super::fields::{self, DAY, MILLISECOND};
use super::process::{self, Kind};
use super::{Context, TypedDocument, confine, container, function, isolation};
use crate::document;
use crate::duration::Duration;
use crate::problem::{Problem, Scope};
use crate::snapshot::Function;
use leno_model::FunctionId;
use leno_model::revision::Plan;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

/// Longest useful time for a job, and for keeping its entry.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Jobs by name. Names are identities, so each may appear once among jobs and functions.
pub(super) fn names(
    jobs: &[Arc<TypedDocument<document::Job>>],
    functions: &[Arc<TypedDocument<document::Function>>],
    named: &BTreeMap<FunctionId, usize>,
    problems: &RefCell<Vec<Problem>>,
) -> BTreeMap<FunctionId, usize> {
    let mut names = BTreeMap::new();
    for (index, placed) in jobs.iter().enumerate() {
        let root = placed.scope(problems);
        let metadata = root.field("metadata");
        let Some(id) = fields::id(&metadata, &placed.document.metadata) else { continue };
        let function = named.get(&id).map(|first| ("function", functions[*first].scope(problems).line()));
        let job = names.get(&id).map(|first: &usize| ("job", jobs[*first].scope(problems).line()));
        if let Some((what, line)) = function.or(job) {
            let message = format!("there is a {what} `{id}` too, in {line}, and they would have the same identity");
            metadata.field("name").problem(message, "give each its own name");
            continue;
        }
        names.insert(id, index);
    }
    names
}

/// A job is a function with regard to identities and its calls; no function calls it.
pub(super) fn job(
    context: &Context<'_>,
    root: &Scope<'_>,
    id: &FunctionId,
    document: &document::Job,
    mesh: &leno_model::MeshConfig,
) -> Function {
    let spec = &document.spec;
    let scope = root.field("spec");
    process::environment(Kind::Job, &scope.field("env"), &spec.env);
    let document::JobSpec { command, args, env, secrets, .. } = spec;
    let (command, args) = (command.as_deref(), args.as_deref());
    Arguments { kind: Kind::Job, command, args, env, secrets }.doubts(context, &scope);
    let grace = scope.field("terminationGracePeriod");
    let (argv, container) = program(&scope, spec);
    process::operators(&scope.field("command"), spec.command.as_deref().unwrap_or_default(), context.doubts);
    let isolation = match container {
        Some(_) => container::isolation(context, &scope, spec.isolation),
        None => isolation::chosen(context, &scope, id, spec.isolation),
    };
    container::only_in_memory(&scope, &spec.volumes);
    container::host_folders(context, &scope, &id.namespace, &spec.volumes);
    let (volumes, isolation) = match container {
        Some(_) => (Vec::new(), isolation),
        None => container::of_program(&scope, &spec.volumes, isolation),
    };
    let directory = spec.working_directory.as_deref().filter(|_| container.is_none()).unwrap_or(Path::new("."));
    let process = leno_model::Process {
        argv,
        directory: fields::relative(&scope.field("workingDirectory"), directory),
        env: spec.env.clone(),
        secrets: confine::secrets(context, &id.namespace, Kind::Job, &scope.field("secrets"), &spec.secrets, &spec.env),
        resources: confine::resources(&scope.field("resources"), &spec.resources),
        isolation,
        read_only_paths: confine::read_only_paths(&scope.field("readOnlyPaths"), &spec.read_only_paths),
        volumes,
        container,
        grace: fields::within(&grace, spec.termination_grace_period, Duration::default(), DAY),
    };
    let limit = |name, limit: Option<Duration>, least| {
        limit.map(|limit| fields::within(&scope.field(name), limit, least, LONGEST))
    };
    let completions = count(&scope.field("completions"), spec.completions, 1..=100_000);
    let parallelism = count(&scope.field("parallelism"), spec.parallelism, 1..=1000);
    if parallelism > completions {
        let fix = format!("expected 1 to {completions}, or more `completions`");
        let message = format!("{parallelism} at a time are more than `completions`");
        scope.field("parallelism").problem(message, fix);
    }
    let job = leno_model::Job {
        process,
        parallelism,
        completions,
        backoff_limit: count(&scope.field("backoffLimit"), spec.backoff_limit, 0..=1000),
        active_deadline: limit("activeDeadline", spec.active_deadline, MILLISECOND),
        ttl: limit("ttlAfterFinished", spec.ttl_after_finished, Duration::default()),
        reruns: 0,
    };
    Function {
        origin: root.origin(),
        labels: document.metadata.labels.clone(),
        protocol: leno_model::AppProtocol::default(),
        run: leno_model::Run::Job(job),
        place: scope.field(if spec.image.is_some() { "image" } else { "command" }).here(),
        declared_places: Vec::new(),
        expose: Vec::new(),
        callees: function::callees(context, &scope.field("callees"), id, &spec.callees),
        concurrency: 0,
        queue: 0,
        scale: leno_model::Scale::default(),
        timeout: mesh.limits.request_timeout,
        as_received: false,
        plan: Plan::default(),
        chain: None,
        policies: Vec::new(),
    }
}

/// The program to start, or the container.
fn program(scope: &Scope<'_>, spec: &document::JobSpec) -> (Vec<String>, Option<leno_model::Container>) {
    if let Some(image) = &spec.image {
        let written = container::ContainerFields {
            command: spec.command.as_deref(),
            args: spec.args.as_deref(),
            user: spec.user.as_deref(),
            volumes: &spec.volumes,
            read_only_root: spec.read_only_root,
            writable: spec.writable,
            pull: spec.pull,
            working_directory: spec.working_directory.as_deref(),
        };
        return (Vec::new(), Some(container::container(scope, image, &written)));
    }
    container::none(scope);
    match &spec.command {
        Some(argv) => process::argv(&scope.field("command"), argv),
        None => scope.problem("the job has nothing to run", "add `command: [program, argument]`, or `image`"),
    }
    (spec.command.clone().unwrap_or_default(), None)
}

fn count(scope: &Scope<'_>, count: u32, range: RangeInclusive<u32>) -> u32 {
    if !range.contains(&count) {
        scope.problem(format!("{count} is out of bounds"), format!("expected {} to {}", range.start(), range.end()));
    }
    count
}
