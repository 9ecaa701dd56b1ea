//! A `leno up` with functions that are container images, and with the same program as processes in
//! jails: requests that find an instance, and first requests to functions without one.

use super::{TAG, greeter};
use crate::coldstart::{ask, request};
use crate::contenders::{Running, listeners, mesh, new_folder};
use crate::load::Pace;
use crate::policies::Policies;
use crate::proxy_under_test::Proxy;
use crate::proxy_under_test::leno::{Listeners, function, host_of, join};
use crate::report::Report;
use crate::rig::Rig;
use crate::sample::Sample;
use crate::statistics::Trials;
use crate::trial::{self, HTTP1, Lengths};
use anyhow::ensure;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// All but TLS, whose handshake would be the same for both.
const POLICIES: Policies = Policies { mtls: false, ..Policies::NINE };
/// Between first requests, so that no start disturbs the next.
const START_INTERVAL: Duration = Duration::from_millis(50);

/// The form of the function.
#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    /// A process in a jail.
    Process,
    /// A container of the image in this OCI layout.
    Container(&'a Path),
}

impl Form<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Container(_) => "container",
        }
    }

    /// The fields of the function document that select the program.
    fn spec(self) -> anyhow::Result<Value> {
        Ok(match self {
            Self::Process => {
                json!({"command": [std::env::current_exe()?, greeter::SUBCOMMAND], "workingDirectory": "/usr", "isolation": "strict"})
            }
            Self::Container(layout) => json!({"image": format!("oci:{}:{TAG}", layout.display())}),
        })
    }
}

/// Compares requests that find an instance: a container's with a process's.
pub(super) fn warm_requests(
    rig: &Rig,
    layout: &Path,
    repeats: usize,
    quick: bool,
    report: &mut Report,
) -> anyhow::Result<()> {
    let seconds = Duration::from_secs(if quick { 3 } else { 8 });
    let lengths = Lengths { warm_up: Duration::from_secs(1), closed: seconds, open: seconds, retakes: 2 };
    let contenders = [warm(rig, Form::Container(layout))?, warm(rig, Form::Process)?];
    let mut trials = Trials::default();
    for repeat in 0..repeats {
        for index in 0..contenders.len() {
            let contender = &contenders[(index + repeat) % contenders.len()];
            trials.0.push(trial::run(rig, contender, HTTP1, Pace::Open(HTTP1.rate), repeat, lengths)?);
        }
    }
    let which = [("container", HTTP1.name, "open"), ("process", HTTP1.name, "open")];
    if let Some(ratio) = trials.combined(which, |[container, process]| container.cpu_us / process.cpu_us) {
        report.add_figure("warm_request_vs_process", ratio);
    }
    if let Some(ratio) = trials.combined(which, |[container, process]| container.p50_us / process.p50_us) {
        report.add_figure("warm_request_p50_vs_process", ratio);
    }
    Ok(())
}

/// A node whose function has an instance all the time.
fn warm(rig: &Rig, form: Form<'_>) -> anyhow::Result<Running> {
    let (folder, listeners) = (new_folder(rig, form.name())?, listeners()?);
    let mesh = mesh(rig, &folder, "wasm", POLICIES, listeners);
    let mut spec = form.spec()?;
    spec["expose"] = json!([{"hosts": ["*"], "path": "/"}]);
    spec["scale"] = json!({"min": 1, "max": 1});
    let documents = [with_images(rig, mesh.mesh()), mesh.policy("greeter", &["greeter"]), function("greeter", spec)];
    fs::write(folder.join("bench.yaml"), join(&documents))?;
    Running::at_gateway(rig, form.name(), listeners, POLICIES)?
        .with_instances()
        .behind_leno(rig, &folder, listeners, POLICIES)
}

/// Times of the first requests to `count` functions without an instance, on one connection. The
/// first request of all is not counted: it is the first on its connection.
pub(super) fn first_requests(rig: &Rig, form: Form<'_>, count: usize) -> anyhow::Result<Sample> {
    let (folder, listeners) = (new_folder(rig, &format!("first-{}", form.name()))?, listeners()?);
    let mesh = mesh(rig, &folder, "wasm", POLICIES, listeners);
    let mut documents = vec![with_images(rig, mesh.mesh())];
    for index in 0..=count {
        let (name, mut spec) = (format!("greeter-{index}"), form.spec()?);
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
        ensure!(status == 200, "the first request to a {} is answered with {status}", form.name());
        times.push(begin.elapsed());
    }
    times.remove(0);
    Ok(Sample::new(times))
}

/// The Mesh document with a folder for images.
fn with_images(rig: &Rig, mut mesh: Value) -> Value {
    mesh["spec"]["images"] = json!({"folder": rig.folder().join(".images")});
    mesh
}
