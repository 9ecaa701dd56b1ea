//! A connection from room to room: its bytes carried by the kernel, or by the node; against one of the machine's loopback.

use super::{CALLED, Settings, enter, open, run_in};
use crate::report::Report;
use crate::statistics::Figure;
use anyhow::{Context, ensure};
use leno_ebpf::{Mesh, Network, Rule, Transport, Verdict};
use rustix::event::{PollFd, PollFlags, poll};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::copy_bidirectional;

/// The subcommands of the two ends.
const ECHO: &str = "path-echo";
const TALK: &str = "path-talk";
/// Bytes of a message.
const MESSAGE: usize = 100;
/// The functions of the two rooms, as addresses. The callee's is the one that is called.
const CALLER: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 2);

#[derive(clap::Args)]
pub(crate) struct EchoArguments {
    /// The port; 0: any.
    port: u16,
}

#[derive(clap::Args)]
pub(crate) struct TalkArguments {
    /// How many messages are sent, one after the other.
    messages: usize,
    /// To whom.
    address: SocketAddr,
}

/// The server: says which port it has, and sends back what it gets.
pub(crate) fn echo(arguments: &EchoArguments) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, arguments.port))?;
    println!("{}", listener.local_addr()?.port());
    while let Ok((mut stream, _)) = listener.accept() {
        stream.set_nodelay(true)?;
        let mut message = [0; MESSAGE];
        while stream.read_exact(&mut message).and_then(|()| stream.write_all(&message)).is_ok() {}
    }
    Ok(())
}

/// The client: prints the median time of a round trip, in microseconds. It waits as programs with an event loop do.
pub(crate) fn talk(arguments: &TalkArguments) -> anyhow::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    // It goes on in the background.
    let _ = socket.connect(&arguments.address.into());
    let mut stream = TcpStream::from(socket);
    let wait = |stream: &TcpStream, what| poll(&mut [PollFd::new(stream, what)], None);
    wait(&stream, PollFlags::OUT)?;
    stream.set_nodelay(true)?;
    let mut message = [7; MESSAGE];
    let mut times = Vec::with_capacity(arguments.messages);
    for _ in 0..arguments.messages {
        let begin = Instant::now();
        stream.write_all(&message)?;
        let mut read = 0;
        while read < MESSAGE {
            wait(&stream, PollFlags::IN)?;
            let count = stream.read(message.get_mut(read..).unwrap_or_default())?;
            ensure!(count > 0, "the server has gone");
            read += count;
        }
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    println!("{}", times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64) * 1e6);
    Ok(())
}

/// Measures all three in turns.
pub(super) async fn measure(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    // Everything that is started from here on is in it.
    let group = Group::enter()?;
    let mesh = Arc::new(Mesh::attach(&group.path).context("the kernel's part")?);
    if let Some(reason) = mesh.unspliced() {
        anyhow::bail!("this kernel does not splice: {reason}");
    }
    let rule =
        |port| Rule { caller: CALLER, callee: callee(), prefix: 32, port: Some(port), transport: Transport::Tcp };
    mesh.set(&rule(CALLED.port()), Verdict::Direct)?;
    let (mut plain, mut kernel, mut node) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..settings.rounds {
        plain.push(outside(settings.messages)?);
        kernel.push(between(&mesh, settings.messages, true).await?);
        node.push(between(&mesh, settings.messages, false).await?);
    }
    let against = |values: &[f64]| values.iter().zip(&plain).map(|(value, plain)| value / plain).collect::<Vec<_>>();
    let figures = [
        ("kernel_path_vs_plain", against(&kernel)),
        ("node_path_vs_plain", against(&node)),
        ("plain_round_trip_us", plain),
        ("kernel_round_trip_us", kernel),
        ("node_round_trip_us", node),
    ];
    for (name, values) in figures {
        report.add_figure(name, Figure::of(values, false).context("nothing was measured")?);
    }
    Ok(())
}

fn callee() -> Ipv4Addr {
    match CALLED {
        SocketAddr::V4(address) => *address.ip(),
        SocketAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}

fn outside(messages: usize) -> anyhow::Result<f64> {
    let program = std::env::current_exe()?;
    let mut server = Command::new(&program).args([ECHO, "0"]).stdout(Stdio::piped()).spawn()?;
    let mut port = String::new();
    let output = server.stdout.take().context("the server's output")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut port)?;
    let address = format!("127.0.0.1:{}", port.trim());
    let client = Command::new(&program).args([TALK, &messages.to_string(), &address]).output();
    server.kill()?;
    server.wait()?;
    let client = client?;
    ensure!(client.status.success(), "the client ended with {}", client.status);
    Ok(String::from_utf8(client.stdout)?.trim().parse()?)
}

async fn between(mesh: &Arc<Mesh>, messages: usize, spliced: bool) -> anyhow::Result<f64> {
    let rooms = open(0).await?;
    let (server, mut said) = enter(&rooms, &[ECHO.to_owned(), "6000".to_owned()]).await?;
    said.read_exact(&mut [0; 5])?;
    let mut caller = rooms.take().await?;
    let entrances = caller.take_listeners().context("the room has no entrances")?;
    mesh.admit(Network::of(&entrances.http)?, CALLER)?;
    let network = Network::of(&entrances.http)?;
    let listener = tokio::net::TcpListener::from_std(entrances.http)?;
    let inside = server.dialer();
    let carrying = mesh.clone();
    let node = tokio::spawn(async move {
        let (mut near, _) = listener.accept().await?;
        let mut far = inside.connect_prepared(6000, |socket, bound| carrying.expect(socket, bound, 6000)).await?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let addresses = [(near.local_addr()?, near.peer_addr()?), (far.local_addr()?, far.peer_addr()?)];
        let [from, to] = addresses.map(|(local, peer)| [local, peer]);
        let splice = if spliced { carrying.splice((&near, from), (&far, to))? } else { None };
        copy_bidirectional(&mut near, &mut far).await?;
        anyhow::Ok(splice.map(|splice| splice.bytes()))
    });
    let arguments = [TALK.to_owned(), messages.to_string(), CALLED.to_string()];
    let mut output = run_in(&mut caller, &arguments).await?;
    let mut text = String::new();
    let text = tokio::task::spawn_blocking(move || output.read_to_string(&mut text).map(|_| text)).await??;
    drop((caller, server));
    let carried = node.await??;
    mesh.dismiss(network);
    if spliced {
        let [sent, received] = carried.context("the kernel does not know the two programs' sockets")?;
        let all = (messages * MESSAGE) as u64;
        ensure!(sent + received > all, "the kernel carried {sent} and {received} of {all} bytes each");
    }
    text.trim().parse().with_context(|| format!("the client in the room wrote: {text}"))
}

/// A control group that this process is in until it is dropped.
struct Group {
    path: PathBuf,
    parent: PathBuf,
}

impl Group {
    fn enter() -> anyhow::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).context("no cgroup2 is mounted")?;
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let own =
            groups.lines().find_map(|line| line.strip_prefix("0::/")).context("this process is in no cgroup v2")?;
        let parent = Path::new(mount.split(' ').nth(4).context("no mount point")?).join(own);
        let path = parent.join(format!("leno-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("{} cannot be made", path.display()))?;
        fs::write(path.join("cgroup.procs"), "0")?;
        Ok(Self { path, parent })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.parent.join("cgroup.procs"), "0");
        let _ = fs::remove_dir(&self.path);
    }
}
