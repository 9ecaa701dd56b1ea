//! `leno-bench pipeline`: the same small function as a component in the node and as a process, behind the same policies; alone, and calling
//! another of its kind. And the first request to a function of which nothing runs.
//!
//! The CPU time is that of all that stands between the load and the answer: the node, and the processes that it started.

pub(crate) mod greeter;

use crate::arguments::Plain;
use crate::coldstart::{ask, request};
use crate::contenders::{listeners, mesh, new_folder};
use crate::html::Page;
use crate::load::{Pace, Plan, Request};
use crate::machine;
use crate::policies::{Algorithm, Policies};
use crate::proxy_under_test::Proxy;
use crate::proxy_under_test::leno::{Listeners, document, function, host_of, join};
use crate::report::Report;
use crate::rig::Rig;
use crate::sample::Sample;
use crate::statistics::Trials;
use crate::trial::{self, Contender, HTTP1, Lengths, Traffic, probe};
use anyhow::ensure;
use serde_json::{Value, json};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A connection to the gateway would need its handshake first, in both cases the same.
const POLICIES: Policies = Policies { mtls: false, ..Policies::NINE };
const TIMEOUT: Duration = Duration::from_secs(60);
/// Between first requests, so that each has the machine for itself.
const START_INTERVAL: Duration = Duration::from_millis(50);

/// What a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Wasm,
    Process,
    /// A process in a room.
    Room,
    /// A container in a room, of the image in an OCI layout.
    Container,
}

impl Kind {
    /// Those that are compared with one another here; a room is compared with a process by `leno-bench path`.
    const ALL: [Self; 2] = [Self::Wasm, Self::Process];

    fn name(self) -> &'static str {
        match self {
            Self::Wasm => "wasm",
            Self::Process => "process",
            Self::Room => "room",
            Self::Container => "container",
        }
    }

    /// The fields of a function document that say what is run.
    fn spec(self, component: &Path) -> anyhow::Result<Value> {
        Ok(match self {
            Self::Container => json!({"image": format!("oci:{}:{}", component.display(), crate::containers::TAG)}),
            Self::Wasm => json!({"wasm": {"path": component, "memory": "16Mi"}}),
            Self::Process | Self::Room => {
                let isolation = if self == Self::Room { "strict" } else { "process" };
                json!({"command": [std::env::current_exe()?, greeter::SUBCOMMAND], "workingDirectory": "/usr", "isolation": isolation})
            }
        })
    }
}

pub(crate) fn run(arguments: &Plain) -> anyhow::Result<()> {
    let machine = machine::describe();
    let rig = Rig::set_up(arguments.programs.find()?)?;
    println!("machine: {machine}");
    let component = component()?;
    let quick = arguments.output.quick;
    let (repeats, seconds, starts) = if quick { (2, 3, 30) } else { (7, 10, 200) };
    let seconds = Duration::from_secs(seconds);
    let lengths = Lengths { warm_up: Duration::from_secs(1), closed: seconds, open: seconds, retakes: 2 };
    let mut contenders = Vec::new();
    for kind in Kind::ALL {
        for chain in [false, true] {
            contenders.push(Running::start(&rig, &component, kind, chain)?);
        }
    }
    let mut trials = Trials::default();
    for repeat in 0..repeats {
        for index in 0..contenders.len() {
            // Each repeat begins with another one.
            let contender = &contenders[(index + repeat) % contenders.len()];
            for pace in [Pace::Closed, Pace::Open(HTTP1.rate)] {
                trials.0.push(trial::run(&rig, contender, HTTP1, pace, repeat, lengths)?);
            }
        }
    }
    drop(contenders);
    let mut report = Report::default();
    let mut page = Page::new("A component and a process");
    tell(&trials, &mut report, &mut page);
    for kind in Kind::ALL {
        let sample = first_requests(&rig, &component, kind, starts)?;
        for (share, name) in [(0.5, "p50"), (0.99, "p99")] {
            report.add(&format!("{}_first_{name}_ms", kind.name()), sample.micros(share) / 1000.0);
        }
    }
    for (name, value) in report.all() {
        println!("{name}: {value}");
    }
    let mut details = json!({"conditions": trial::conditions(&rig), "first_requests": starts});
    details["trials"] = serde_json::to_value(&trials.0)?;
    arguments.output.write(report, page, machine, details)
}

/// What a room costs requests: CPU of node and processes with all nine policies, of a function by itself and of one that calls another.
pub(crate) fn strict_against_process(rig: &Rig, quick: bool, report: &mut Report) -> anyhow::Result<()> {
    let (repeats, seconds) = if quick { (3, 3) } else { (7, 8) };
    let seconds = Duration::from_secs(seconds);
    let lengths = Lengths { warm_up: Duration::from_secs(1), closed: seconds, open: seconds, retakes: 2 };
    for (chain, form, figure) in
        [(false, "alone", "strict_cpu_vs_process"), (true, "chain", "strict_chain_cpu_vs_process")]
    {
        let start = |kind| Running::start(rig, Path::new(""), kind, chain);
        let contenders = [start(Kind::Room)?, start(Kind::Process)?];
        let mut trials = Trials::default();
        for repeat in 0..repeats {
            for index in 0..contenders.len() {
                let contender = &contenders[(index + repeat) % contenders.len()];
                trials.0.push(trial::run(rig, contender, HTTP1, Pace::Open(HTTP1.rate), repeat, lengths)?);
            }
        }
        let names = [Kind::Room, Kind::Process].map(|kind| format!("{}_{form}", kind.name()));
        let which = [(names[0].as_str(), "http1", "open"), (names[1].as_str(), "http1", "open")];
        if let Some(ratio) = trials.combined(which, |[room, process]| room.cpu_us / process.cpu_us) {
            report.add_figure(figure, ratio);
        }
    }
    Ok(())
}

/// What a container costs requests that find it running, beside a process in a room.
pub(crate) fn container_against_process(
    rig: &Rig,
    layout: &Path,
    repeats: usize,
    quick: bool,
    report: &mut Report,
) -> anyhow::Result<()> {
    let seconds = Duration::from_secs(if quick { 3 } else { 8 });
    let lengths = Lengths { warm_up: Duration::from_secs(1), closed: seconds, open: seconds, retakes: 2 };
    let contenders =
        [Running::start(rig, layout, Kind::Container, false)?, Running::start(rig, Path::new(""), Kind::Room, false)?];
    let mut trials = Trials::default();
    for repeat in 0..repeats {
        for index in 0..contenders.len() {
            let contender = &contenders[(index + repeat) % contenders.len()];
            trials.0.push(trial::run(rig, contender, HTTP1, Pace::Open(HTTP1.rate), repeat, lengths)?);
        }
    }
    let which = [("container_alone", "http1", "open"), ("room_alone", "http1", "open")];
    if let Some(ratio) = trials.combined(which, |[container, process]| container.cpu_us / process.cpu_us) {
        report.add_figure("warm_request_vs_process", ratio);
    }
    if let Some(ratio) = trials.combined(which, |[container, process]| container.p50_us / process.p50_us) {
        report.add_figure("warm_request_p50_vs_process", ratio);
    }
    Ok(())
}

/// First requests to containers, whose image is on the node, and to processes in rooms.
pub(crate) fn container_starts(rig: &Rig, layout: &Path, count: usize) -> anyhow::Result<[Sample; 2]> {
    Ok([first_requests(rig, layout, Kind::Container, count)?, first_requests(rig, Path::new(""), Kind::Room, count)?])
}

/// The Mesh document, with a folder of its own for images.
fn with_images(rig: &Rig, mut mesh: Value) -> Value {
    mesh["spec"]["images"] = json!({"folder": rig.folder().join(".images")});
    mesh
}

fn tell(trials: &Trials, report: &mut Report, page: &mut Page) {
    page.note("The same function as a component in the node and as a process; alone, and calling another of its kind. CPU: node and processes.");
    let mut rows = vec![["who", "CPU us a request", "p50 us", "p99 us", "requests/s"].map(str::to_owned).to_vec()];
    for form in ["alone", "chain"] {
        for kind in Kind::ALL {
            let name = format!("{}_{form}", kind.name());
            let mut row = vec![name.clone()];
            let mut add = |what: &str, pace: &str, value: fn(&trial::Trial) -> f64| {
                if let Some(figure) = trials.figure((&name, "http1", pace), value) {
                    row.push(format!("{:.1}", figure.median));
                    report.add_figure(&format!("{name}_{what}"), figure);
                }
            };
            // At a given rate, since a full core hides what a request costs behind what others wait.
            add("cpu_us", "open", |trial| trial.cpu_us);
            add("p50_us", "open", |trial| trial.p50_us);
            add("p99_us", "open", |trial| trial.p99_us);
            add("requests_per_second", "closed", |trial| trial.requests_per_second);
            rows.push(row);
        }
        let which = [Kind::Wasm, Kind::Process].map(|kind| format!("{}_{form}", kind.name()));
        let which = [(which[0].as_str(), "http1", "open"), (which[1].as_str(), "http1", "open")];
        if let Some(ratio) = trials.combined(which, |[wasm, process]| wasm.cpu_us / process.cpu_us) {
            report.add_figure(&format!("{form}_cpu_ratio"), ratio);
        }
    }
    page.table(rows);
}

/// The greeter, which `examples/components/build` makes.
fn component() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = Command::new(root.join("examples/components/build")).arg("rust").status()?;
    ensure!(built.success(), "the component cannot be built (make setup)");
    Ok(root.join("target/components/greeter.wasm").canonicalize()?)
}

/// A `leno up` with one function, or two of which one calls the other.
struct Running {
    name: String,
    proxy: Proxy,
    address: SocketAddr,
    request: Request,
}

impl Contender for Running {
    fn name(&self) -> &str {
        &self.name
    }

    fn pids(&self) -> Vec<u32> {
        self.proxy.pids().into_iter().flat_map(descendants).collect()
    }

    fn plan(&self, traffic: Traffic, pace: Pace) -> Plan {
        Plan {
            address: self.address,
            protocol: traffic.protocol,
            tls: None,
            pace,
            connections: traffic.connections,
            streams: traffic.streams,
            warm_up_ms: 0,
            measured_ms: 0,
            request: self.request.clone(),
        }
    }
}

impl Running {
    fn start(rig: &Rig, component: &Path, kind: Kind, chain: bool) -> anyhow::Result<Self> {
        let name = format!("{}_{}", kind.name(), if chain { "chain" } else { "alone" });
        let (folder, listeners) = (new_folder(rig, &name)?, listeners()?);
        let mesh = mesh(rig, &folder, "wasm", POLICIES, listeners);
        let mut greeter = kind.spec(component)?;
        greeter["expose"] = json!([{"hosts": ["*"], "path": "/"}]);
        if kind != Kind::Wasm {
            greeter["scale"] = json!({"min": 1, "max": 1});
        }
        let mut documents = vec![with_images(rig, mesh.mesh()), mesh.policy("greeter", &["greeter"])];
        if chain {
            let mut words = kind.spec(component)?;
            words["scale"] = greeter["scale"].clone();
            if kind == Kind::Wasm {
                words.as_object_mut().map(|words| words.remove("scale"));
            }
            greeter["callees"] = json!(["words"]);
            greeter["env"] = json!({"GREETING_FROM": "http://words/"});
            let mut policy = mesh.policy("words", &["words"])["spec"].clone();
            // The caller is the greeter: its identity stands for a token.
            policy.as_object_mut().map(|policy| policy.remove("authentication"));
            policy["authorization"] =
                json!({"rules": [{"name": "greeter", "from": [{"identities": ["bench/greeter"]}]}]});
            policy["rateLimits"][0]["key"] = json!([{"header": "user-agent"}]);
            documents.extend([function("words", words), document("Policy", "words", policy)]);
        }
        documents.push(function("greeter", greeter));
        fs::write(folder.join("bench.yaml"), join(&documents))?;
        let proxy = Proxy::leno(&rig.programs.leno, rig.cores, &folder, listeners.admin)?;
        let request = rig.material.request(Algorithm::Es256)?;
        let running = Self { name, proxy, address: listeners.gateway, request };
        let begin = Instant::now();
        loop {
            let outcome = probe(rig, &running, |_| {})?;
            if outcome.error.is_none() && outcome.statuses.keys().eq([&200]) {
                return Ok(running);
            }
            let statuses = outcome.statuses;
            ensure!(begin.elapsed() < TIMEOUT, "{} answers {statuses:?}, {:?}", running.name, outcome.error);
        }
    }
}

/// A process and all that it started: a room's program has its room's first process and the launcher above it.
fn descendants(pid: u32) -> Vec<u32> {
    let below = children(pid).into_iter().flat_map(descendants);
    std::iter::once(pid).chain(below).collect()
}

/// Processes that this one started.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Times of the first requests to functions of which nothing runs, on a connection that is there. The first function of all is not counted:
/// with it, the gateway gets used to this connection.
fn first_requests(rig: &Rig, component: &Path, kind: Kind, count: usize) -> anyhow::Result<Sample> {
    let name = format!("first-{}", kind.name());
    let (folder, listeners) = (new_folder(rig, &name)?, listeners()?);
    let mesh = mesh(rig, &folder, "wasm", POLICIES, listeners);
    let mut documents = vec![with_images(rig, mesh.mesh())];
    for index in 0..=count {
        let (name, mut spec) = (format!("greeter-{index}"), kind.spec(component)?);
        spec["expose"] = json!([{"hosts": [host_of(index)], "path": "/"}]);
        documents.extend([function(&name, spec), mesh.policy(&name, &[name.as_str()])]);
    }
    fs::write(folder.join("bench.yaml"), join(&documents))?;
    let Listeners { gateway, admin, .. } = listeners;
    let _proxy = Proxy::leno(&rig.programs.leno, rig.cores, &folder, admin)?;
    let mut connection = TcpStream::connect(gateway)?;
    connection.set_nodelay(true)?;
    let mut times = Vec::new();
    for index in 0..=count {
        let request = request(rig, &host_of(index))?;
        std::thread::sleep(START_INTERVAL);
        let begin = Instant::now();
        let status = ask(&mut connection, &request)?;
        ensure!(status == 200, "the first answer of {name} is {status}");
        times.push(begin.elapsed());
    }
    times.remove(0);
    Ok(Sample::new(times))
}
