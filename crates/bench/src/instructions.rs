//! `leno-bench instructions`: instructions of the node per request, counted by valgrind's
//! callgrind. The count hardly depends on what else the machine does, so that CI can hold the hot
//! path to it. Only what runs outside the kernel is counted, and without isolation: valgrind runs
//! no micro-VM, and cannot reserve the address space that the WebAssembly engine wants.
//!
//! One request after the other on one connection, without TLS: the handshake would be amortised
//! over as many requests as one likes. The upstream speaks HTTP/1.1.

use crate::contenders::mesh;
use crate::load::{Pace, Plan, Protocol, Single};
use crate::machine;
use crate::policies::{Algorithm, Policies};
use crate::proxy_under_test::leno::Listeners;
use crate::proxy_under_test::{Helper, Programs};
use crate::report::Report;
use crate::rig::Rig;
use anyhow::{Context, ensure};
use leno_testkit::free_addresses;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Until everything was run once: pools are filled, the token is known.
const WARM_UP: usize = 500;
/// Enough that a batch of spans more or less does not show.
const REQUESTS: usize = 2000;
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to write the figures.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where to write callgrind's profile of the requests with all nine policies, for
    /// callgrind_annotate or kcachegrind.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    ensure!(valgrind_is_there(), "there is no valgrind: `apt-get install valgrind`");
    let rig = Rig::set_up(Programs { envoy: None, leno: PathBuf::new() })?;
    let mut report = Report::default();
    for (name, per_request) in count(&rig, arguments.profile.as_deref())? {
        println!("{name}: {per_request:.0}");
        report.add(name, per_request);
    }
    match &arguments.json {
        Some(path) => report.write(machine::describe(), path),
        None => Ok(()),
    }
}

/// Without it nothing can be counted.
pub(crate) fn valgrind_is_there() -> bool {
    let version = |program| Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    version("valgrind") && version("callgrind_control")
}

/// With no policies, with rules and a limit, and with all nine but TLS, over HTTP/1.1 and HTTP/2.
pub(crate) fn count(rig: &Rig, profile: Option<&Path>) -> anyhow::Result<[(&'static str, f64); 6]> {
    let nine = Policies { mtls: false, ..Policies::NINE };
    Ok([
        ("instructions_none", one(rig, Policies::NONE, Protocol::Http1, None)?),
        ("instructions_rules", one(rig, Policies::RULES, Protocol::Http1, None)?),
        ("instructions_nine", one(rig, nine, Protocol::Http1, profile)?),
        ("instructions_nine_each", one(rig, nine.each(), Protocol::Http1, None)?),
        ("instructions_none_http2", one(rig, Policies::NONE, Protocol::Http2, None)?),
        ("instructions_nine_http2", one(rig, nine, Protocol::Http2, None)?),
    ])
}

/// Of all threads of the node.
fn one(rig: &Rig, policies: Policies, protocol: Protocol, profile: Option<&Path>) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir_in(rig.folder())?;
    let [gateway, outbound, inbound, admin, control] = free_addresses();
    let listeners = Listeners { gateway, outbound, inbound, admin, control };
    // Documents cannot select the inline engine, so an argument does.
    let documents = folder.path().join("bench.yaml");
    fs::write(&documents, mesh(rig, folder.path(), "wasm", policies, listeners).documents())?;
    let dump = folder.path().join("counts");
    let valgrind = [
        "valgrind".to_owned(),
        "--tool=callgrind".to_owned(),
        // Starting takes minutes otherwise.
        "--instr-atstart=no".to_owned(),
        "--error-limit=no".to_owned(),
        format!("--log-file={}", dump.with_extension("log").display()),
        format!("--callgrind-out-file={}", dump.display()),
    ];
    let arguments = ["node", "--engine", "inline", "--documents", &documents.display().to_string()];
    let node = Helper::start_under(rig.cores, &valgrind, &arguments)?;
    let mut load = Single::connect(&Plan {
        address: gateway,
        protocol,
        tls: None,
        pace: Pace::Closed,
        connections: 1,
        streams: 1,
        warm_up_ms: 0,
        measured_ms: 0,
        request: rig.material.request(Algorithm::Es256)?,
    })?;
    control_callgrind(&["--instr=on"], node.pid())?;
    load.send(WARM_UP)?;
    control_callgrind(&["--zero"], node.pid())?;
    load.send(REQUESTS)?;
    control_callgrind(&["--dump"], node.pid())?;
    let total = total(&dump)?;
    if let Some(profile) = profile {
        fs::copy(first(&dump), profile).with_context(|| format!("{} cannot be written", profile.display()))?;
    }
    Ok(total as f64 / REQUESTS as f64)
}

fn control_callgrind(arguments: &[&str], pid: u32) -> anyhow::Result<()> {
    let output = Command::new("callgrind_control").args(arguments).arg(pid.to_string()).output()?;
    ensure!(output.status.success(), "callgrind_control failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The file of the first dump. Only the dump at the program's end has the name of the option.
fn first(dump: &Path) -> PathBuf {
    PathBuf::from(format!("{}.1", dump.display()))
}

/// Of the first dump, once it is there.
fn total(dump: &Path) -> anyhow::Result<u64> {
    let path = first(dump);
    let begin = Instant::now();
    loop {
        let text = fs::read_to_string(&path).unwrap_or_default();
        if let Some(totals) = text.lines().find_map(|line| line.strip_prefix("totals: ")) {
            return totals.trim().parse().context("callgrind's totals are no number");
        }
        ensure!(begin.elapsed() < TIMEOUT, "callgrind wrote nothing to {}", path.display());
        sleep(Duration::from_millis(20));
    }
}
