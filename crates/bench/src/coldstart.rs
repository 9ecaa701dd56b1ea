//! `leno-bench coldstart`: from the publication of a function that the node has never seen to its
//! first judged request, against starting an Envoy to its first answer. Both have all nine
//! policies.
//!
//! The publication is that of one function by the control plane, which delivers it to the node over
//! its gRPC stream; the node compiles, loads, swaps its snapshot. (`leno up` looks at its files
//! twice a second, which is not counted.)

use crate::arguments::Plain;
use crate::contenders::{EnvoyPlace, envoy_file, mesh};
use crate::machine;
use crate::policies::Policies;
use crate::proxy_under_test::leno::{Listeners, host_of};
use crate::proxy_under_test::{Helper, Proxy};
use crate::report::Report;
use crate::rig::Rig;
use crate::sample::Sample;
use crate::trial;
use anyhow::{Context, ensure};
use leno_testkit::free_addresses;
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two requests for the function before it is there; each takes time of the core that makes
/// it ready.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn run(arguments: &Plain) -> anyhow::Result<()> {
    let machine = machine::describe();
    let rig = Rig::set_up(arguments.programs.find()?)?;
    println!("machine: {machine}");
    let (functions, envoys) = if arguments.output.quick { (40, 8) } else { (300, 40) };
    let mut report = Report::default();
    // A connection would need its handshake first; it is there already where a function is new on a
    // running node.
    let policies = Policies { mtls: false, ..Policies::NINE };
    let mut subjects = vec![("sidecar", "wasm")];
    if fs::exists("/dev/kvm").unwrap_or(false) {
        subjects.push(("sidecar_microvm", "microvm"));
    }
    for (name, engine) in subjects {
        let sample = leno(&rig, engine, policies, functions)?;
        tell(name, &sample, functions, &mut report);
    }
    match rig.programs.envoy {
        Some(_) => tell("envoy", &envoy(&rig, policies, envoys)?, envoys, &mut report),
        None => println!("there is no Envoy: its part is missing"),
    }
    let details = json!({"conditions": trial::conditions(&rig)});
    arguments.output.write(report, machine, details)
}

fn tell(name: &str, sample: &Sample, count: usize, report: &mut Report) {
    let [p50, p99] = [0.5, 0.99].map(|share| sample.micros(share) / 1000.0);
    println!("{name}: p50 {p50:.2} ms, p99 {p99:.2} ms ({count} starts)");
    report.add(&format!("{name}_coldstart_p50_ms"), p50);
    report.add(&format!("{name}_coldstart_p99_ms"), p99);
}

/// Functions are added to a node one by one; the first one is there from the beginning.
fn leno(rig: &Rig, engine: &str, policies: Policies, functions: usize) -> anyhow::Result<Sample> {
    let [gateway, outbound, inbound, admin, control] = free_addresses();
    let listeners = Listeners { gateway, outbound, inbound, admin, control };
    let folder = rig.folder().join(format!("coldstart-{engine}"));
    fs::create_dir(&folder)?;
    let mesh = mesh(rig, &folder, engine, policies, listeners);
    let file = |count: usize| folder.join(format!("{count}.yaml"));
    fs::write(file(1), mesh.documents_of_many(1).concat())?;
    let mut node =
        Helper::start(rig.cores, &["node", "--engine", engine, "--documents", &file(1).display().to_string()])?;
    let request = |index: usize| request(rig, &host_of(index));
    let mut connection = TcpStream::connect(gateway)?;
    connection.set_nodelay(true)?;
    ensure!(ask(&mut connection, &request(0)?)? == 200, "the node does not work");
    let mut times = Vec::new();
    for index in 1..=functions {
        fs::write(file(index + 1), mesh.documents_of_many(index + 1).concat())?;
        node.tell(&format!("load {}", file(index + 1).display()), "loaded")?;
        fs::remove_file(file(index + 1))?;
        let request = request(index)?;
        ensure!(ask(&mut connection, &request)? == 404, "the function is there already");
        sleep(Duration::from_millis(5));
        let begin = Instant::now();
        node.say("publish")?;
        loop {
            match ask(&mut connection, &request)? {
                200 => break,
                404 => sleep(POLL_INTERVAL),
                status => anyhow::bail!("the first answer is {status}"),
            }
            ensure!(begin.elapsed() < TIMEOUT, "the function does not appear");
        }
        times.push(begin.elapsed());
        node.hear("published")?;
    }
    Ok(Sample::new(times))
}

fn envoy(rig: &Rig, policies: Policies, count: usize) -> anyhow::Result<Sample> {
    let program = rig.programs.envoy.as_ref().context("there is no Envoy")?;
    let request = request(rig, crate::material::HOST)?;
    let mut times = Vec::new();
    for index in 0..count {
        let [listen] = free_addresses();
        let place = EnvoyPlace::inbound(listen, rig.upstream);
        let configurations = [envoy_file(rig, &format!("coldstart-{index}"), policies, place)?];
        let begin = Instant::now();
        let proxy = Proxy::envoys(program, rig.cores, &configurations)?;
        times.push(await_answer(listen, &request, begin)?);
        drop(proxy);
    }
    Ok(Sample::new(times))
}

/// The bytes of a request with a token.
pub(crate) fn request(rig: &Rig, host: &str) -> anyhow::Result<Vec<u8>> {
    let request = rig.material.request(crate::policies::Algorithm::Es256)?;
    let token = request.authorizations.first().context("there are tokens")?;
    Ok(format!(
        "{} {} HTTP/1.1\r\nhost: {host}\r\nuser-agent: bench\r\nauthorization: {token}\r\n\r\n",
        request.method, request.target
    )
    .into_bytes())
}

/// The time from `begin` to the first answer of a proxy that starts, which must be a 200.
pub(crate) fn await_answer(address: SocketAddr, request: &[u8], begin: Instant) -> anyhow::Result<Duration> {
    loop {
        let answer = TcpStream::connect(address).ok().and_then(|mut connection| ask(&mut connection, request).ok());
        match answer {
            Some(200) => return Ok(begin.elapsed()),
            Some(status) => anyhow::bail!("the first answer is {status}"),
            None => sleep(POLL_INTERVAL),
        }
        ensure!(begin.elapsed() < TIMEOUT, "nothing answers at {address}");
    }
}

/// The status of the answer.
pub(crate) fn ask(connection: &mut TcpStream, request: &[u8]) -> anyhow::Result<u16> {
    connection.write_all(request)?;
    let mut buffer = [0; 8192];
    let mut filled = 0;
    loop {
        match connection.read(&mut buffer[filled..])? {
            0 => anyhow::bail!("the connection was closed"),
            count => filled += count,
        }
        if let Some(head) = crate::load::parse(&buffer[..filled])?
            && head.length.is_none_or(|length| filled >= head.bytes + length)
        {
            return Ok(head.status);
        }
    }
}
