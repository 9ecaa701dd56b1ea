//! `leno-bench path`: the way into a room and out of it, and what a room costs: against processes and connections of the machine, in the same run.

pub(crate) mod redirect;
pub(crate) mod round_trip;

use crate::affinity::on_one_core;
use crate::arguments::ProgramPaths;
use crate::machine;
use crate::pipeline;
use crate::report::Report;
use crate::rig::Rig;
use crate::statistics::Figure;
use anyhow::{Context, ensure};
use leno_ebpf::Interception;
use leno_jail::{Jail, Jailer, Jails, ListenerGuard, Prepare, Program};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The subcommand that runs in a room.
const INSIDE: &str = "path-inside";
/// The subcommand that makes rooms.
const LAUNCHER: &str = "path-launcher";
/// What an instance calls: any address and port leads to the node.
const CALLED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(100, 64, 0, 1)), 5432);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to write the figures.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A part of the rounds: for a look, not for a figure.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    programs: ProgramPaths,
}

#[derive(clap::Args)]
pub(crate) struct InsideArguments {
    /// How many connections are made.
    connections: usize,
    /// To whom.
    address: SocketAddr,
}

/// How much is done.
struct Settings {
    rounds: usize,
    connections: usize,
    messages: usize,
    starts: usize,
    rooms: usize,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let settings = if arguments.quick {
        Settings { rounds: 5, connections: 1000, messages: 5000, starts: 30, rooms: 200 }
    } else {
        Settings { rounds: 15, connections: 4000, messages: 20_000, starts: 200, rooms: 200 }
    };
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let mut report = Report::default();
    on_one_core(|| {
        runtime()?.block_on(async {
            connections(&settings, &mut report).await?;
            round_trip::measure(&settings, &mut report).await
        })
    })?;
    runtime()?.block_on(async {
        starts(&settings, &mut report).await?;
        memory(&settings, &mut report).await
    })?;
    // Last: from here on this process is bound to a core.
    let rig = Rig::set_up(arguments.programs.find()?)?;
    pipeline::strict_against_process(&rig, arguments.quick, &mut report)?;
    for (name, value) in report.all() {
        println!("{name}: {value}");
    }
    match &arguments.json {
        Some(path) => report.write(machine::describe(), path),
        None => Ok(()),
    }
}

pub(crate) async fn open(ahead: usize) -> anyhow::Result<Jails> {
    let mut launcher = Command::new(std::env::current_exe()?);
    launcher.arg(LAUNCHER).current_dir("/");
    Jails::open(Jailer::start(launcher)?, ahead, Some(prepare())).await.context("there are no rooms here")
}

/// As `leno up` does it: connections to every port arrive at the node.
fn prepare() -> Prepare {
    Arc::new(|entrances, network| Some(ListenerGuard::new(Interception::begin(network, entrances.http.as_fd()).ok()?)))
}

/// Runs this program in a room. Returns the room and what the program writes.
async fn enter(rooms: &Jails, arguments: &[String]) -> anyhow::Result<(Jail, fs::File)> {
    let mut room = rooms.take().await?;
    let output = run_in(&mut room, arguments).await?;
    Ok((room, output))
}

async fn run_in(room: &mut Jail, arguments: &[String]) -> anyhow::Result<fs::File> {
    let program = std::env::current_exe()?;
    let mut argv = vec![program.display().to_string()];
    argv.extend_from_slice(arguments);
    let (output, theirs) = std::io::pipe()?;
    let task = Program {
        argv,
        directory: "/usr".into(),
        environment: BTreeMap::new(),
        hostname: "bench".to_owned(),
        ..Program::default()
    };
    let errors = OwnedFd::from(theirs.try_clone()?);
    room.run(task, theirs.into(), errors).await?;
    Ok(fs::File::from(OwnedFd::from(output)))
}

/// Connect and first byte: to a listener of the machine's loopback, and, from a room to an address that leads nowhere, to the listener that the node has
/// in the room. Both ends are the same programs, on one core.
async fn connections(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let rooms = open(1).await?;
    let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let plain_at = plain.local_addr()?;
    std::thread::spawn(move || greet(&plain));
    let (mut direct, mut intercepted, mut redirected) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..settings.rounds {
        direct.push(outside(settings.connections, plain_at)?);
        intercepted.push(inside(&rooms, settings.connections).await?);
        redirected.push(redirect::connect(settings.connections)?);
    }
    let against = |others: &[f64]| intercepted.iter().zip(others).map(|(one, other)| one / other).collect::<Vec<_>>();
    let figures = [
        ("intercept_vs_plain", against(&direct)),
        ("intercept_vs_redirect", against(&redirected)),
        ("plain_connect_us", direct),
        ("redirect_connect_us", redirected),
        ("intercept_connect_us", intercepted),
    ];
    for (name, values) in figures {
        report.add_figure(name, Figure::of(values, false).context("nothing was measured")?);
    }
    Ok(())
}

/// Accepts, sends a byte, and closes.
fn greet(listener: &TcpListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        let _ = stream.write_all(b"!");
    }
}

fn outside(connections: usize, address: SocketAddr) -> anyhow::Result<f64> {
    let output = Command::new(std::env::current_exe()?)
        .args([INSIDE, &connections.to_string(), &address.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the client ended with {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

async fn inside(rooms: &Jails, connections: usize) -> anyhow::Result<f64> {
    let mut room = rooms.take().await?;
    let entrances = room.take_listeners().context("the room has no entrances")?;
    entrances.http.set_nonblocking(false)?;
    std::thread::spawn(move || greet(&entrances.http));
    let mut output = run_in(&mut room, &[INSIDE.to_owned(), connections.to_string(), CALLED.to_string()]).await?;
    let mut text = String::new();
    let text = tokio::task::spawn_blocking(move || output.read_to_string(&mut text).map(|_| text)).await??;
    drop(room);
    text.trim().parse().with_context(|| format!("the client in the room wrote: {text}"))
}

/// The client: prints the median time of a connection and its first byte, in microseconds.
pub(crate) fn run_inside(arguments: &InsideArguments) -> anyhow::Result<()> {
    let mut times = Vec::with_capacity(arguments.connections);
    for _ in 0..arguments.connections {
        let begin = Instant::now();
        let mut stream = TcpStream::connect(arguments.address)?;
        stream.read_exact(&mut [0])?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    println!("{}", times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64) * 1e6);
    Ok(())
}

pub(crate) fn is_launcher() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == LAUNCHER)
}

/// From the decision to start a program to its first byte: as a process, in a room that was made ahead, and in one that was not.
async fn starts(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let (ahead, none) = (open(2).await?, open(0).await?);
    // The one that is made to see whether rooms can be had.
    drop(none.take().await?);
    let (mut process, mut made, mut unmade) = (Vec::new(), Vec::new(), Vec::new());
    let hello = ["0".to_owned(), "127.0.0.1:1".to_owned()];
    for _ in 0..settings.starts {
        let begin = Instant::now();
        outside(0, SocketAddr::from((Ipv4Addr::LOCALHOST, 1)))?;
        process.push(begin.elapsed().as_secs_f64() * 1e3);
        for (rooms, times) in [(&ahead, &mut made), (&none, &mut unmade)] {
            let begin = Instant::now();
            let arguments = [&[INSIDE.to_owned()][..], &hello].concat();
            let (room, mut output) = enter(rooms, &arguments).await?;
            output.read_exact(&mut [0])?;
            times.push(begin.elapsed().as_secs_f64() * 1e3);
            room.end().await;
        }
        // For the rooms that are made again, and for what ended to be gone.
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let added = |times: &[f64]| times.iter().zip(&process).map(|(room, process)| room - process).collect::<Vec<_>>();
    let figures = [
        ("process_start_ms", process.clone()),
        ("room_added_p50_ms", added(&made)),
        ("room_added_unmade_p50_ms", added(&unmade)),
    ];
    for (name, values) in figures {
        report.add_figure(name, Figure::of(values, false).context("nothing was measured")?);
    }
    Ok(())
}

/// What rooms take that wait for a program, each: memory of the machine, the kernel's included.
async fn memory(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let mut each = Vec::new();
    for _ in 0..3 {
        let launcher = open(1).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = available()?;
        let mut rooms = Vec::new();
        let first = launcher.clone();
        for _ in 0..settings.rooms {
            rooms.push(first.take().await?);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        each.push((before - available()?) / settings.rooms as f64);
        for room in rooms {
            room.end().await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    report.add_figure("room_kib", Figure::of(each, false).context("nothing was measured")?);
    Ok(())
}

/// Memory that is free, or could be at once, in KiB.
fn available() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
        Ok::<f64, anyhow::Error>(line.trim().trim_end_matches(" kB").parse()?)
    };
    Ok(field("MemFree:")? + field("Buffers:")? + field("Cached:")?)
}
