//! A Function document.

use super::arguments::Arguments;
use super::cache::Results;
use super::fields::{self, DAY, MILLISECOND};
use super::process::{self, Kind};
use super::revisions::{self, RevisionContent};
use super::{Context, TypedDocument, confine, container, isolation, metadata, rollout, scale, template, text, wasm};
use crate::document::{self, FunctionSpec, FunctionTimeouts, Liveness, Readiness};
use crate::duration::Duration;
use crate::problem::{Problem, Scope};
use crate::snapshot::Function;
use leno_model::FunctionId;
use leno_model::revision::{DeclaredRevision, Template};
use leno_model::special_address::single;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

/// The port of the node's listener in a jail.
const NODE_PORT: u16 = 1;
/// The shortest interval between two probes of an instance that is ready.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// The fields about instances that the node runs.
pub(super) const INSTANCE_FIELDS: [&str; 12] = [
    "workingDirectory",
    "env",
    "secrets",
    "resources",
    "isolation",
    "readOnlyPaths",
    "volumes",
    "port",
    "ports",
    "readiness",
    "liveness",
    "scale",
];

/// Functions by name; each name may appear once.
pub(super) fn names(
    functions: &[Arc<TypedDocument<document::Function>>],
    cache: &Results,
    problems: &RefCell<Vec<Problem>>,
) -> BTreeMap<FunctionId, usize> {
    let mut names = BTreeMap::new();
    for (index, placed) in functions.iter().enumerate() {
        let root = placed.scope(problems);
        let metadata = root.field("metadata");
        let document::Metadata { name, namespace, .. } = &placed.document.metadata;
        let known = || FunctionId { namespace: namespace.clone(), name: name.clone() };
        let id = cache.has(placed).then(known).or_else(|| fields::id(&metadata, &placed.document.metadata));
        let Some(id) = id else { continue };
        match names.entry(id) {
            Entry::Vacant(entry) => {
                entry.insert(index);
            }
            Entry::Occupied(entry) => {
                let (id, first) = (entry.key(), functions[*entry.get()].scope(problems).line());
                let message = format!("there is another function `{id}`, in {first}");
                metadata.field("name").problem(message, "give each its own name");
            }
        }
    }
    names
}

pub(super) fn function(
    context: &Context<'_>,
    root: &Scope<'_>,
    id: &FunctionId,
    document: &document::Function,
    mesh: &leno_model::MeshConfig,
) -> Function {
    let spec = &document.spec;
    let scope = root.field("spec");
    let timeouts = scope.field("timeouts");
    let timeout = spec.timeouts.request.map(|timeout| {
        fields::millis(&timeouts.field("request"), timeout, Duration::default(), DAY);
        timeout.0
    });
    // The mesh changes nothing about requests to pods unless a document says so.
    let has_pods = spec.pods.is_some();
    let declared = revisions::declared(context, &scope, id, spec);
    let mut plan = rollout::plan(&scope, id, spec);
    let largest = plan.traffic.iter().rev().max_by_key(|target| target.percent).and_then(|most| most.name.clone());
    let main = declared.iter().find(|one| Some(&one.name) == largest.as_ref()).map(|one| one.content.clone());
    let main = main.or_else(|| Some(declared.first()?.content.clone()));
    let Content { template, place, sole } = main.unwrap_or_else(|| content(context, &scope, id, spec));
    if let Some(sole) = sole.filter(|_| declared.is_empty()) {
        rollout::alone(&scope, &sole);
    }
    let declared_places = declared.iter().map(|one| one.content.place.clone()).collect();
    let revision = |one: RevisionContent| DeclaredRevision { name: one.name, template: one.content.template };
    plan.declared = declared.into_iter().map(revision).collect();
    let Template { run, protocol, concurrency, scale } = template;
    Function {
        origin: root.origin(),
        labels: document.metadata.labels.clone(),
        protocol,
        run,
        place,
        declared_places,
        expose: expose(&scope.field("expose"), &spec.expose),
        callees: callees(context, &scope.field("callees"), id, &spec.callees),
        concurrency,
        queue: scale::queue(&scope.field("queue"), spec.queue),
        scale,
        timeout: timeout.unwrap_or(if has_pods { Default::default() } else { mesh.limits.request_timeout }),
        as_received: spec.paths.as_received() || has_pods,
        plan,
        chain: None,
        policies: Vec::new(),
    }
}

/// The fields that make a revision.
#[derive(Clone)]
pub(super) struct Content {
    pub template: Template,
    /// The place of its program, its component or its image.
    pub place: Problem,
    pub sole: Option<Sole>,
}

/// The fields of a function, or of one of its declared revisions, that make a revision.
pub(super) fn content(context: &Context<'_>, scope: &Scope<'_>, id: &FunctionId, spec: &FunctionSpec) -> Content {
    chained(scope, spec);
    let run = run(context, scope, id, spec);
    let sole = Sole::of(&run);
    let scale = scale::scale(context, scope, spec, sole.as_ref());
    let template = Template { run, protocol: spec.protocol, concurrency: spec.concurrency, scale };
    Content { template, place: scope.field(place(spec)).here(), sole }
}

/// Why only one instance of a function can run at a time on a node.
#[derive(Clone)]
pub(super) enum Sole {
    /// Its port is fixed, and all instances share the network of the node.
    Port,
    /// It has a volume that one instance may have at a time.
    Volume(String),
}

impl Sole {
    fn of(run: &leno_model::Run) -> Option<Self> {
        let leno_model::Run::Command(command) = run else { return None };
        let shares_port = command.port.is_some() && command.isolation == leno_model::Isolation::Process;
        let volume = command.sole_volume().map(|volume| Self::Volume(volume.name.clone()));
        volume.or(shares_port.then_some(Self::Port))
    }

    /// The end of a message about several instances or revisions, and the fix.
    pub(super) fn explain(&self) -> (String, &'static str) {
        match self {
            Self::Port => (
                "without jails cannot share a fixed port".to_owned(),
                "remove `port`: every instance gets a free one; or have `isolation: strict`",
            ),
            Self::Volume(name) => (
                format!("cannot have the volume `{name}` at a time"),
                "write `access: shared` for it if several processes may write to its files at a time, or remove this",
            ),
        }
    }
}

/// The field of the program, the image or the component.
fn place(spec: &FunctionSpec) -> &'static str {
    match (&spec.image, &spec.command) {
        _ if spec.pods.is_some() => "pods",
        (Some(_), _) => "image",
        (None, Some(_)) => "command",
        (None, None) => "wasm",
    }
}

/// Properties that a function that is called through memory cannot have.
fn chained(scope: &Scope<'_>, spec: &FunctionSpec) {
    if spec.protocol != leno_model::AppProtocol::Chain {
        return;
    }
    // A component is not checked here: it may not set a protocol at all.
    if spec.external.is_some() {
        let fix = "expected http1, h2c or grpc";
        scope.field("protocol").problem("external instances share no memory with the node", fix);
    }
    if spec.readiness.is_some() {
        let fix = "remove it: it is ready when it has mapped its memory";
        scope.field("readiness").problem("a function with `protocol: chain` is not asked whether it is ready", fix);
    }
    if spec.liveness.is_some() {
        let fix = "remove it: its link ends with it";
        scope.field("liveness").problem("a function with `protocol: chain` is not asked whether it still serves", fix);
    }
}

/// Functions that a function or a job may call.
pub(super) fn callees(context: &Context<'_>, list: &Scope<'_>, id: &FunctionId, names: &[String]) -> Vec<FunctionId> {
    let mut callees = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let scope = list.element(index);
        let Some(callee) = fields::callee(context, &scope, id, name) else { continue };
        if context.jobs.contains_key(&callee) && fields::is_of_another_tenant(&scope, &id.namespace, &callee) {
            fields::not_callable(context, &scope, &callee, "it is a job, and nobody can call a job");
            continue;
        }
        if context.jobs.contains_key(&callee) {
            scope.problem(format!("`{callee}` is a job, and nobody can call a job"), "name a function, or remove it");
        }
        if callees.contains(&callee) {
            scope.problem(format!("`{callee}` is named twice"), "remove one of the two");
        }
        callees.push(callee);
    }
    callees
}

fn run(context: &Context<'_>, scope: &Scope<'_>, id: &FunctionId, spec: &FunctionSpec) -> leno_model::Run {
    let program = spec.image.is_some() || spec.command.is_some();
    if spec.image.is_none() {
        container::none(scope);
    }
    if let Some(pods) = &spec.pods {
        return leno_model::Run::Pods(super::pods::pods(context, scope, id, pods));
    }
    match (program.then_some(()), &spec.wasm, &spec.external) {
        (Some(()), None, None) => leno_model::Run::Command(command(context, scope, id, spec)),
        (None, Some(component), None) => wasm::wasm(context, scope, &id.namespace, spec, component)
            .map_or(leno_model::Run::External(Vec::new()), leno_model::Run::Wasm),
        (None, None, Some(addresses)) => leno_model::Run::External(external(context, scope, id, addresses)),
        (None, None, None) => {
            let fix = "add `command: [program, argument]`, `image: registry/repository:tag`, `wasm: {path: component.wasm}`, or `external: {addresses: [ip:port]}`";
            scope.problem("the function has nothing to run", fix);
            leno_model::Run::External(Vec::new())
        }
        (program, component, _) => {
            let own = if spec.image.is_some() { "an image" } else { "a command" };
            let (place, what) = match (program, component) {
                (Some(()), None) => ("external", format!("{own} and external addresses")),
                (None, _) => ("external", "a component and external addresses".to_owned()),
                (Some(()), Some(_)) => ("wasm", format!("{own} and a component")),
            };
            let fix = "keep one of `command` (or `image`), `wasm` and `external`";
            scope.field(place).problem(format!("the function has {what}"), fix);
            leno_model::Run::External(Vec::new())
        }
    }
}

fn external(
    context: &Context<'_>,
    scope: &Scope<'_>,
    id: &FunctionId,
    external: &document::ExternalInstances,
) -> Vec<SocketAddr> {
    for field in INSTANCE_FIELDS {
        if scope.has(field) {
            let message = format!("`{field}` is for commands; external instances are run by somebody else");
            scope.field(field).problem(message, "remove it");
        }
    }
    let addresses = scope.field("external");
    let addresses = addresses.field("addresses");
    fields::not_empty(&addresses, &external.addresses, "nothing: it is required");
    for (index, address) in external.addresses.iter().enumerate() {
        fields::port(&addresses.element(index), address.0.port());
        metadata::refuse(context, &addresses.element(index), &id.namespace, single(address.0.ip().to_canonical()));
        if matches!(address.0.ip(), IpAddr::V4(ip) if ip.octets()[0] == 127 && ip.octets()[1] & 0xc0 == 0x40) {
            let fix = "expected another loopback address, such as 127.0.0.1";
            addresses
                .element(index)
                .problem(format!("{} is one of 127.64.0.0/10, which name instances in jails", address.0.ip()), fix);
        }
    }
    external.addresses.iter().map(|address| address.0).collect()
}

fn command(context: &Context<'_>, scope: &Scope<'_>, id: &FunctionId, spec: &FunctionSpec) -> leno_model::Command {
    let container = spec.image.as_ref().map(|image| {
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
        container::container(scope, image, &written)
    });
    let argv = spec.command.as_deref().filter(|_| container.is_none()).unwrap_or_default();
    if container.is_none() {
        process::argv(&scope.field("command"), argv);
    }
    process::operators(&scope.field("command"), spec.command.as_deref().unwrap_or_default(), context.doubts);
    let isolation = match container {
        Some(_) => container::isolation(context, scope, spec.isolation),
        None => with_ports(isolation::chosen(context, scope, id, spec.isolation), context, scope, spec),
    };
    let (volumes, isolation) = match container {
        Some(_) => (Vec::new(), isolation),
        None => container::of_program(scope, &spec.volumes, isolation),
    };
    container::host_folders(context, scope, &id.namespace, &spec.volumes);
    let directory = spec.working_directory.as_deref().filter(|_| container.is_none()).unwrap_or(Path::new("."));
    process::environment(Kind::Instance, &scope.field("env"), &spec.env);
    match spec.port {
        Some(0) => {
            let fix = "expected 1 to 65535, or remove it: every instance gets a free port";
            scope.field("port").problem("0 is not a port", fix);
        }
        Some(NODE_PORT) if isolation != leno_model::Isolation::Process => {
            scope.field("port").problem(format!("port {NODE_PORT} is the node's in a jail"), "expected 2 to 65535");
        }
        _ => {}
    }
    let FunctionSpec { command, args, env, secrets, .. } = spec;
    let (command, args) = (command.as_deref(), args.as_deref());
    Arguments { kind: Kind::Instance, command, args, env, secrets }.doubts(context, scope);
    let FunctionTimeouts { startup, grace, .. } = spec.timeouts;
    let timeouts = scope.field("timeouts");
    leno_model::Command {
        argv: argv.to_vec(),
        directory: fields::relative(&scope.field("workingDirectory"), directory),
        env: spec.env.clone(),
        secrets: confine::secrets(
            context,
            &id.namespace,
            Kind::Instance,
            &scope.field("secrets"),
            &spec.secrets,
            &spec.env,
        ),
        resources: confine::resources(&scope.field("resources"), &spec.resources),
        isolation,
        read_only_paths: confine::read_only_paths(&scope.field("readOnlyPaths"), &spec.read_only_paths),
        volumes,
        persistent: container::persistent(scope, &spec.volumes),
        port: spec.port,
        ports: ports(&scope.field("ports"), &spec.ports),
        container,
        readiness: readiness(&scope.field("readiness"), spec.readiness.as_ref()),
        liveness: spec.liveness.map(|written| liveness(&scope.field("liveness"), written)),
        startup_timeout: fields::within(&timeouts.field("startup"), startup, MILLISECOND, DAY),
        grace: fields::within(&timeouts.field("grace"), grace, Duration::default(), DAY),
    }
}

/// A function with ports always runs in a jail: without one, any process could connect to them. So
/// does a function that is to have several instances on a fixed port.
fn with_ports(
    chosen: leno_model::Isolation,
    context: &Context<'_>,
    scope: &Scope<'_>,
    spec: &FunctionSpec,
) -> leno_model::Isolation {
    let document::Scale { min, max, initial, activation_scale, .. } = spec.scale;
    let several = [min.unwrap_or_default(), max, initial, activation_scale].iter().any(|count| *count > 1)
        || !spec.traffic.is_empty()
        || spec.rollout.is_some();
    match chosen {
        leno_model::Isolation::Process if !spec.ports.is_empty() => {
            let fix = "give the function `isolation: strict`, or remove `ports`";
            scope.field("ports").problem("without a jail, any process of the machine could connect to them", fix);
            leno_model::Isolation::Process
        }
        leno_model::Isolation::Process if spec.port.is_some() && spec.scale.max != 1 => {
            let message = "without a jail, a node runs one instance with this port at a time";
            let fix =
                "remove `port`: every instance gets a free one; or have `isolation: strict`, or `scale: {max: 1}`";
            scope.field("port").doubt(context.doubts, message, fix);
            leno_model::Isolation::Process
        }
        leno_model::Isolation::Auto if !spec.ports.is_empty() || spec.port.is_some() && several => {
            leno_model::Isolation::Strict
        }
        isolation => isolation,
    }
}

fn ports(list: &Scope<'_>, ports: &[document::Port]) -> Vec<leno_model::Port> {
    let mut compiled: Vec<leno_model::Port> = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let document::Port { port: number, protocol, splice } = *port;
        let element = list.element(index);
        let scope = element.field("port");
        if number == 80 {
            let fix = "expected another: callers that connect to port 80 send HTTP, and reach `port`";
            scope.problem("port 80 is for HTTP", fix);
        } else if number <= NODE_PORT {
            scope.problem(format!("port {number} is the node's in a jail"), "expected 2 to 65535");
        }
        if compiled.iter().any(|other| other.number == number) {
            scope.problem(format!("port {number} is there twice"), "remove one of the two");
        }
        compiled.push(leno_model::Port {
            number,
            protocol,
            splice: splice && protocol == leno_model::PortProtocol::Tcp,
        });
    }
    compiled
}

fn readiness(scope: &Scope<'_>, readiness: Option<&Readiness>) -> leno_model::Readiness {
    match readiness {
        None | Some(Readiness { http: None, tcp: Some(true) }) => leno_model::Readiness::Tcp,
        Some(Readiness { http: Some(path), tcp: None }) => {
            if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) || path.contains('#') {
                let fix = "expected a path such as /healthz";
                scope.field("http").problem(format!("`{}` cannot be asked for", path.escape_debug()), fix);
            }
            leno_model::Readiness::Http(path.clone())
        }
        Some(_) => {
            scope.problem("readiness is one thing", "expected `{http: /path}` or `{tcp: true}`");
            leno_model::Readiness::Tcp
        }
    }
}

/// Zero means that instances are not watched.
fn liveness(scope: &Scope<'_>, Liveness { interval, failures }: Liveness) -> leno_model::Liveness {
    let is_watched = interval > Duration::default();
    let shortest = if is_watched { SHORTEST_INTERVAL } else { interval };
    let interval = fields::within(&scope.field("interval"), interval, shortest, DAY);
    if !(1..=100).contains(&failures) {
        scope.field("failures").problem(format!("{failures} is not possible"), "expected 1 to 100");
    }
    leno_model::Liveness { interval, failures }
}

fn expose(list: &Scope<'_>, exposes: &[document::Expose]) -> Vec<leno_model::Expose> {
    let mut compiled = Vec::new();
    for (index, expose) in exposes.iter().enumerate() {
        let scope = list.element(index);
        let hosts = scope.field("hosts");
        fields::not_empty(&hosts, &expose.hosts, "any host");
        let names = expose
            .hosts
            .iter()
            .enumerate()
            .filter_map(|(index, host)| text::exposed_host(&hosts.element(index), host))
            .collect();
        let path = template::prefix(&scope.field("path"), &expose.path);
        compiled.push(leno_model::Expose { hosts: names, path: path.unwrap_or_else(|| "/".to_owned()) });
    }
    compiled
}
