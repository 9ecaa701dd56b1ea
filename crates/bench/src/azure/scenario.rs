//! The scenarios: the same functions in the same serverless layer, behind different proxies.

use super::function::{self, WORK, Work};
use super::sidecar;
use crate::contenders;
use crate::load::{self, Request, Tls};
use crate::material::HOST;
use crate::policies::{Algorithm, Policies};
use crate::proxy_under_test::envoy::Sidecar;
use crate::proxy_under_test::leno::{Listeners, function, host_of, join};
use crate::proxy_under_test::{Helper, Proxy};
use crate::rig::Rig;
use anyhow::{Context, ensure};
use clap::ValueEnum;
use leno_testkit::free_addresses;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest wait for something to work.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Requests that may wait for one function: more than there are at any time, since a refused
/// request has no slowdown.
const QUEUE: u32 = 10_000;

/// What stands before the functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(super) enum Scenario {
    /// (a) A serverless layer without a mesh.
    None,
    /// (b) Leno with one rule that allows everything, without TLS.
    Leno,
    /// (c) Leno with all nine policies, judged in wasm.
    Wasm,
    /// (c) Leno with all nine policies, judged in micro-VMs.
    Microvm,
    /// (d) The layer of (a), and an Envoy with all nine policies before each instance.
    Envoy,
}

impl Scenario {
    /// In the names of figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Leno => "leno",
            Self::Wasm => "wasm",
            Self::Microvm => "microvm",
            Self::Envoy => "envoy",
        }
    }

    /// In tables and plots.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::None => "no mesh",
            Self::Leno => "leno, no policies",
            Self::Wasm => "leno, nine, wasm",
            Self::Microvm => "leno, nine, microvm",
            Self::Envoy => "envoy per instance, nine",
        }
    }

    fn policies(self) -> Policies {
        match self {
            Self::None | Self::Leno => Policies::NONE,
            Self::Wasm | Self::Microvm | Self::Envoy => Policies::NINE,
        }
    }

    /// Why it cannot be measured here.
    pub(super) fn missing(self, rig: &Rig) -> Option<&'static str> {
        match self {
            Self::Microvm if !fs::exists("/dev/kvm").unwrap_or(false) => Some("there is no /dev/kvm"),
            Self::Envoy if rig.programs.envoy.is_none() => Some("there is no Envoy"),
            _ => None,
        }
    }
}

/// The settings of the functions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Functions {
    /// One more than the workload has: the last one gets the requests that test the policies
    /// beforehand.
    pub count: usize,
    /// Requests that an instance handles at a time; 0: no limit.
    pub concurrency: u32,
    /// Over which the autoscaler averages; the last instance stays half as long again without any
    /// request. (Knative: 60 s and 30 s.)
    pub window: Duration,
    /// Of one function; 0: no limit. Without one, requests that wait for slow starts make for ever
    /// more starts.
    pub most_instances: u32,
    pub work: Work,
}

/// A scenario that requests can be sent to. Everything of it ends when this is dropped.
pub(super) struct Running {
    pub scenario: Scenario,
    process: Process,
    pub address: SocketAddr,
    pub tls: Option<Tls>,
    /// The request without [`WORK`] and without its host.
    pub request: Request,
    /// The admin address of the node, in Leno's scenarios.
    pub admin: Option<SocketAddr>,
    /// Where sidecars' configurations are, in Envoy's.
    pub folder: PathBuf,
}

enum Process {
    Leno(Proxy),
    Layer(Helper),
}

impl Running {
    /// Starts it and sees that its policies hold.
    pub(super) fn start(rig: &Rig, scenario: Scenario, functions: Functions) -> anyhow::Result<Self> {
        // A scenario may be started more than once.
        let folder = tempfile::Builder::new().prefix(scenario.name()).tempdir_in(rig.folder())?.keep();
        let [gateway, outbound, inbound, admin, control] = free_addresses();
        let listeners = Listeners { gateway, outbound, inbound, admin, control };
        let file = folder.join("functions.yaml");
        fs::write(&file, documents(rig, scenario, functions, listeners, &folder)?)?;
        let process = match scenario {
            Scenario::Leno | Scenario::Wasm | Scenario::Microvm => {
                Process::Leno(Proxy::leno(&rig.programs.leno, rig.cores, &folder, admin)?)
            }
            Scenario::None | Scenario::Envoy => Process::Layer(layer(rig, scenario, &file, gateway)?),
        };
        let policies = scenario.policies();
        let meshed = matches!(process, Process::Leno(_));
        let running = Self {
            scenario,
            process,
            address: gateway,
            tls: (meshed && policies.mtls).then(|| rig.material.client_tls(false)),
            request: rig.material.request(Algorithm::Es256)?,
            admin: meshed.then_some(admin),
            folder,
        };
        running.wait_until_ready(functions)?;
        Ok(running)
    }

    /// The process that starts instances.
    pub(super) fn pid(&self) -> anyhow::Result<u32> {
        match &self.process {
            Process::Leno(proxy) => proxy.pids().first().copied().context("leno has a process"),
            Process::Layer(helper) => Ok(helper.pid()),
        }
    }

    /// Whether instances are Envoys, with functions behind them.
    pub(super) fn has_sidecars(&self) -> bool {
        self.scenario == Scenario::Envoy
    }

    /// Asks the last function, which the workload does not know: a request without a token, one
    /// that no rule allows, a good one.
    fn wait_until_ready(&self, functions: Functions) -> anyhow::Result<()> {
        let mut request = self.request.clone();
        request.authorities = vec![host_of(functions.count - 1)];
        request.headers.push((WORK.to_owned(), functions.work.header(Duration::from_millis(1))));
        self.wait_for_status(200, &request)?;
        if self.scenario.policies() == Policies::NINE {
            self.wait_for_status(401, &Request { authorizations: Vec::new(), ..request.clone() })?;
            self.wait_for_status(403, &Request { method: "DELETE".into(), ..request })?;
        }
        Ok(())
    }

    fn wait_for_status(&self, status: u16, request: &Request) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let plan = load::Plan {
            address: self.address,
            protocol: load::Protocol::Http1,
            tls: self.tls.clone(),
            pace: load::Pace::Closed,
            connections: 1,
            streams: 1,
            warm_up_ms: 0,
            measured_ms: 0,
            request: request.clone(),
        };
        let begin = Instant::now();
        loop {
            let answer = runtime.block_on(tokio::task::LocalSet::new().run_until(load::once(&plan)));
            match answer {
                Ok(found) if found == status => return Ok(()),
                answer => ensure!(
                    begin.elapsed() < TIMEOUT,
                    "{} answers {answer:?} instead of {status}",
                    self.scenario.name()
                ),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn layer(rig: &Rig, scenario: Scenario, documents: &Path, listen: SocketAddr) -> anyhow::Result<Helper> {
    let [documents, listen] = [documents.display().to_string(), listen.to_string()];
    let mut arguments = vec!["layer", "--documents", &documents, "--listen", &listen];
    let folder = rig.folder().display().to_string();
    if scenario == Scenario::Envoy {
        arguments.extend(["--sidecar", &folder, HOST]);
    }
    Helper::start(rig.cores, &arguments)
}

fn documents(
    rig: &Rig,
    scenario: Scenario,
    functions: Functions,
    listeners: Listeners,
    folder: &Path,
) -> anyhow::Result<String> {
    let engine = if scenario == Scenario::Microvm { "microvm" } else { "wasm" };
    // Functions have instances, so the upstream is not used.
    let mesh = contenders::mesh(rig, folder, engine, scenario.policies(), listeners);
    let command = command(rig, scenario, folder)?;
    let mut documents = vec![mesh.mesh()];
    for index in 0..functions.count {
        let name = format!("service-{index}");
        let spec = json!({
            "command": command,
            // No jail: its start would be part of every scenario with Leno.
            "isolation": "process",
            "concurrency": functions.concurrency,
            "queue": QUEUE,
            "scale": {"window": milliseconds(functions.window), "scaleToZeroGracePeriod": milliseconds(functions.window / 2), "max": functions.most_instances},
            "expose": [{"hosts": [host_of(index)], "path": "/"}],
            // InVitro's time-out of a function, for a start and for all that waits for it; while it
            // works there is none.
            "timeouts": {"startup": "15m", "request": "0s"},
        });
        documents.push(function(&name, spec));
        documents.push(mesh.policy(&name, &[name.as_str()]));
    }
    Ok(join(&documents))
}

/// As documents have it.
fn milliseconds(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

/// The command of an instance.
fn command(rig: &Rig, scenario: Scenario, folder: &Path) -> anyhow::Result<Value> {
    let program = std::env::current_exe()?.display().to_string();
    if scenario != Scenario::Envoy {
        return Ok(json!([program, function::SUBCOMMAND]));
    }
    let envoy = rig.programs.envoy.as_ref().context("there is no Envoy")?;
    let template = folder.join("template.json");
    sidecar::write_template(&template, |listen, upstream| {
        let sidecar = Sidecar {
            http2_upstream: false,
            policies: scenario.policies(),
            listen,
            upstream,
            outbound: false,
            material: &rig.material,
            otlp: rig.otlp,
            limits: rig.limits,
            log: folder.with_extension("log").display().to_string(),
        };
        sidecar.configuration()
    })?;
    Ok(json!([program, "sidecar", "--envoy", envoy, "--template", template]))
}
