//! Jails by themselves: a program runs in one, is reached in it, calls out of it, and ends with it.

mod host;
mod kernel;
mod settings;
mod volumes;

use leno_jail::{Exit, Jail, Jailer, Jails, Program};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TIMEOUT: Duration = Duration::from_secs(60);

async fn open(ahead: usize) -> Jails {
    let jailer = Jailer::start(Command::new(env!("CARGO_BIN_EXE_leno-test-jailer"))).unwrap();
    Jails::open(jailer, ahead, None).await.expect("jails can be had here")
}

/// Runs a shell script in a jail.
async fn shell(jails: &Jails, script: &str) -> (Jail, PipeReader) {
    let mut jail = jails.take().await.unwrap();
    let output = run(&mut jail, program(script)).await.unwrap();
    (jail, output)
}

fn program(script: &str) -> Program {
    Program {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        directory: "/usr".into(),
        environment: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        hostname: "guest".to_owned(),
        ..Program::default()
    }
}

async fn run(jail: &mut Jail, program: Program) -> std::io::Result<PipeReader> {
    let (output, theirs) = std::io::pipe()?;
    let errors = OwnedFd::from(theirs.try_clone()?);
    jail.run(program, theirs.into(), errors).await?;
    Ok(output)
}

/// All that a jail's program writes until it has ended.
async fn all(mut output: PipeReader) -> String {
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    tokio::time::timeout(TIMEOUT, read).await.unwrap().unwrap().unwrap()
}

#[tokio::test]
async fn a_program_has_nothing_but_what_it_is_given() {
    let jails = open(1).await;
    let mut jail = jails.take().await.unwrap();
    let script = "hostname; id -u; pwd; echo $PATH; ls /; cat /run/secrets/key; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp|SigBlk):' /proc/self/status; ulimit -n; exit 7";
    let secrets = vec![("key".to_owned(), b"swordfish\n".to_vec())];
    let task = Program { secrets, descriptors: Some(321), ..program(script) };
    let output = run(&mut jail, task).await.unwrap();
    let text = all(output).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..4], ["guest", "1000", "/usr", "/usr/bin:/bin"], "{text}");
    for folder in ["root", "home", "sys", ".host", "boot"] {
        assert!(!lines.contains(&folder), "{folder}: {text}");
    }
    for line in [
        "swordfish",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "SigBlk:\t0000000000000000",
        "321",
    ] {
        assert!(lines.contains(&line), "{line}: {text}");
    }
    jail.exited().await;
    assert_eq!(jail.end().await, Exit(7 << 8));
}

#[tokio::test]
async fn the_host_name_resolves_and_a_program_without_a_folder_has_an_empty_one() {
    let jails = open(1).await;
    let script = "
import os, socket
print({entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), 80)}, socket.gethostname())
print(os.getcwd(), os.listdir())
open('note', 'w').write('x')
print(os.listdir('.'))";
    let mut jail = jails.take().await.unwrap();
    let argv = ["usr/bin/python3", "-c", script].map(str::to_owned).to_vec();
    let output = run(&mut jail, Program { argv, directory: "/".into(), ..program("") }).await.unwrap();
    assert_eq!(all(output).await, "{'127.0.0.1'} guest\n/tmp []\n['note']\n");
}

#[tokio::test]
async fn each_part_of_the_filter_answers() {
    let jails = open(1).await;
    let script = "
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    libc.syscall(*arguments)
    return errno.errorcode[ctypes.get_errno()]
near, far = os.pipe(), os.pipe()
print('clone3', call(435, 0, 0))
print('splice', call(275, near[0], 0, far[1], 0, 1, 2))
print('multipath', call(41, socket.AF_INET, socket.SOCK_STREAM, 262))
print('vsock', call(41, 40, socket.SOCK_STREAM, 0))
print('aio', call(206, 1, 0))
print('terminal', call(16, -1, 0x5412, 0), call(16, -1, 0x541c, 0), call(16, -1, 0x5423, 0), call(16, -1, 0x5401, 0))
print('unshare', call(272, 0x20000))
print('nameless', call(4000))
print('tcp', socket.socket().fileno() > 0)
";
    let mut jail = jails.take().await.unwrap();
    let task = Program { argv: ["/usr/bin/python3", "-c", script].map(str::to_owned).to_vec(), ..program("") };
    let output = run(&mut jail, task).await.unwrap();
    let expected = "clone3 ENOSYS\nsplice EINVAL\nmultipath EPROTONOSUPPORT\nvsock EAFNOSUPPORT\naio ENOSYS\nterminal EPERM EPERM EPERM EBADF\nunshare EPERM\nnameless ENOSYS\ntcp True\n";
    assert_eq!(all(output).await, expected);
}

/// Runs a Python script in a jail, which has `call`: the name of the error of a system call, or
/// `ok`.
async fn python(jails: &Jails, script: &str) -> (Jail, String) {
    let call = "
import ctypes, errno, os, resource, socket, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    result = libc.syscall(*arguments)
    return errno.errorcode[ctypes.get_errno()] if result == -1 else 'ok'
";
    let mut jail = jails.take().await.unwrap();
    let argv = vec!["/usr/bin/python3".to_owned(), "-c".to_owned(), format!("{call}{script}")];
    let output = run(&mut jail, Program { argv, ..program("") }).await.unwrap();
    let text = all(output).await;
    (jail, text)
}

#[tokio::test]
async fn disks_and_the_machines_page_cache_are_not_a_jails_business() {
    let jails = open(1).await;
    let script = "
file = os.open('/usr/bin/env', os.O_RDONLY)
print(call(162), call(306, -1), call(221, -1, 0, 0, 4), call(221, -1, 0, 0, 0), call(221, file, 0, 0, 3), call(451, file, 0, 0, 0))";
    let (_jail, text) = python(&jails, script).await;
    assert_eq!(text, "ok ok ok EBADF ok ENOSYS\n");
}

#[tokio::test]
async fn a_socket_has_one_of_four_protocols() {
    let jails = open(1).await;
    let script = "
STREAM, DGRAM, RAW, SEQPACKET, RDM, DCCP = 1, 2, 3, 5, 4, 6
flags = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
allowed = {(family, kind, protocol) for family in (2, 10) for kind, known in ((STREAM, 6), (DGRAM, 17)) for protocol in (0, known)}
allowed |= {(1, kind, 0) for kind in (STREAM, DGRAM, SEQPACKET, RAW)} | {(16, kind, 0) for kind in (RAW, DGRAM)}
for family in range(0, 50):
    for kind in range(0, 11):
        for protocol in [*range(0, 40), 58, 103, 115, 132, 136, 137, 255, 262, 263, 1 << 16, -1]:
            for extra in (0, flags):
                found = call(41, family, kind | extra, protocol)
                if (found == 'ok') != ((family, kind, protocol) in allowed):
                    print('socket', family, kind, protocol, found)
            pair = (ctypes.c_int * 2)()
            found = call(53, family, kind, protocol, pair)
            if (found == 'ok') != (family == 1 and kind in (STREAM, DGRAM, SEQPACKET, RAW) and protocol == 0):
                print('socketpair', family, kind, protocol, found)
            os.closerange(3, 64)
# The kernel reads 32 bits of each.
print(call(41, 2 | 1 << 32, 1, 132 | 1 << 32), call(41, 2, 1, 132), call(41, 1, 1, 1), call(41, 2, 2, 1), call(53, 1, 1, 1, 0))
";
    let (_jail, text) = python(&jails, script).await;
    assert_eq!(text, ["EPROTONOSUPPORT"; 5].join(" ") + "\n");
}

/// A handler of core dumps, as machines have them, until this is dropped. It writes down which
/// programs have crashed.
struct CoreHandler {
    pattern: File,
    before: String,
    folder: TempDir,
    /// A shell with the limit that this process began with. It has a process crash for each line that it reads.
    machine: Child,
}

impl CoreHandler {
    const PATTERN: &str = "/proc/sys/kernel/core_pattern";

    /// `None`: this account may not have one.
    fn install() -> Option<Self> {
        let Ok(mut pattern) = File::options().read(true).write(true).open(Self::PATTERN) else {
            eprintln!("SKIPPED: {} cannot be set here", Self::PATTERN);
            return None;
        };
        // Other tests set the pattern, too.
        pattern.lock().unwrap();
        let mut before = String::new();
        pattern.read_to_string(&mut before).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let [handler, crashes] = ["handler", "crashes"].map(|name| folder.path().join(name));
        fs::write(&handler, format!("#!/bin/sh\necho \"$1 $2\" >>{}\n", crashes.display())).unwrap();
        fs::set_permissions(&handler, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(&crashes, "").unwrap();
        fs::write(Self::PATTERN, format!("|{} %P %e", handler.display())).unwrap();
        let crash = "while read line; do sh -c 'kill -SEGV $$' & echo $!; wait; done";
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", crash]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Some(Self { pattern, before, folder, machine: shell.spawn().unwrap() })
    }

    fn crashes(&self) -> String {
        fs::read_to_string(self.folder.path().join("crashes")).unwrap()
    }

    /// Lets a process crash outside of the jail, and waits until the handler has written it down.
    fn sees_a_crash(&mut self) {
        writeln!(self.machine.stdin.as_ref().unwrap()).unwrap();
        let mut line = String::new();
        BufReader::new(self.machine.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let line = format!("{} sh\n", line.trim());
        let begin = Instant::now();
        while !self.crashes().contains(&line) {
            assert!(begin.elapsed() < TIMEOUT, "no handler runs for {line}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for CoreHandler {
    fn drop(&mut self) {
        drop(self.machine.stdin.take());
        self.machine.wait().unwrap();
        fs::write(Self::PATTERN, &self.before).unwrap();
        self.pattern.unlock().unwrap();
    }
}

#[tokio::test]
async fn a_crash_runs_no_handler_outside() {
    let Some(mut handler) = CoreHandler::install() else { return };
    leno_jail::forbid_core_dumps().unwrap();
    handler.sees_a_crash();
    // Outside of a jail, as `isolation: process` has it.
    let crash = "echo crash-inside >/proc/self/comm; ulimit -c 0; ulimit -S -c 0; kill -SEGV $$";
    let start = || Command::new("/bin/sh").args(["-c", crash]).spawn();
    let ended = leno_jail::start_without_core_dumps(start).unwrap().wait().unwrap();
    assert_eq!((ended.signal(), ended.core_dumped()), (Some(11), false));
    let jails = open(1).await;
    let crash = "for limit in 1 unlimited 0 1000; do
        sh -c \"echo crash-inside >/proc/self/comm; ulimit -c $limit; ulimit -S -c 0; kill -SEGV \\$\\$\"
    done; cat /proc/self/limits";
    let (_jail, output) = shell(&jails, crash).await;
    let text = all(output).await;
    let cores = text.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(cores.split_whitespace().skip(4).collect::<Vec<_>>(), ["1", "1", "bytes"], "{text}");
    // The kernel runs the handler before it reports the end of a process.
    handler.sees_a_crash();
    assert!(!handler.crashes().contains("crash-inside"), "{}", handler.crashes());
}

/// Runs a script that goes on until the jail ends, and waits until it has written `ready`.
async fn holding(jails: &Jails, script: &str) -> Jail {
    let mut jail = jails.take().await.unwrap();
    let argv =
        ["/usr/bin/python3", "-c", &format!("{script}\nprint('ready', flush=True)\nimport time; time.sleep(1000)")];
    let task = Program { argv: argv.map(str::to_owned).to_vec(), ..program("") };
    let output = run(&mut jail, task).await.unwrap();
    let text = tokio::task::spawn_blocking(move || all_until(output, "ready")).await.unwrap();
    assert_eq!(text, "ready\n");
    jail
}

#[tokio::test]
async fn the_node_connects_to_a_program_and_the_program_to_the_node() {
    let jails = open(1).await;
    let mut jail = jails.take().await.unwrap();
    let listeners = jail.take_listeners().unwrap();
    // Bash can connect; that is all that the machine needs for this test.
    let script = "exec 3<>/dev/tcp/203.0.113.9/80; read -r line <&3; echo \"heard $line\"";
    let task = Program { argv: ["/bin/bash", "-c", script].map(str::to_owned).to_vec(), ..program("") };
    let output = run(&mut jail, task).await.unwrap();
    let listener = tokio::net::TcpListener::from_std(listeners.http).unwrap();
    let (mut stream, _) = tokio::time::timeout(TIMEOUT, listener.accept()).await.unwrap().unwrap();
    assert_eq!(stream.local_addr().unwrap().to_string(), "203.0.113.9:80", "the address that was called");
    stream.write_all(b"hello\n").await.unwrap();
    assert_eq!(all(output).await, "heard hello\n");

    answers_at(&jails, "127.0.0.1").await;
}

/// Connects to a port without a listener, and then to one on which the program listens.
async fn answers_at(jails: &Jails, host: &str) {
    let mut jail = jails.take().await.unwrap();
    let inside = jail.dialer();
    assert!(inside.connect(4000).await.is_err());
    let server = format!(
        "import socket; s = socket.create_server(('{host}', 4000), family=socket.getaddrinfo('{host}', 0)[0][0], backlog=500)\n\
         print('ready', flush=True)\n\
         while True: c, _ = s.accept(); c.sendall(b'hi'); c.close()"
    );
    let task = Program { argv: ["/usr/bin/python3", "-c", &server].map(str::to_owned).to_vec(), ..program("") };
    let mut output = run(&mut jail, task).await.unwrap();
    output.read_exact(&mut [0; 5]).unwrap();
    // More at a time than there are sockets in hand.
    let calls = (0..200).map(|_| {
        let inside = inside.clone();
        tokio::spawn(async move {
            let mut answer = String::new();
            inside.connect(4000).await.unwrap().read_to_string(&mut answer).await.unwrap();
            answer
        })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap(), "hi", "{host}");
    }
    let mut answer = String::new();
    inside.connect_prepared(4000, |_, _| ()).await.unwrap().read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "hi", "{host}");
    jail.end().await;
    assert!(inside.connect(4000).await.is_err(), "the jail has ended");
}

#[tokio::test]
async fn a_program_is_reached_at_either_address_of_localhost() {
    if !std::path::Path::new("/proc/net/if_inet6").exists() {
        eprintln!("SKIPPED a_program_is_reached_at_either_address_of_localhost: this machine has no IPv6");
        return;
    }
    let jails = open(0).await;
    for host in ["::1", "::", "0.0.0.0"] {
        answers_at(&jails, host).await;
    }
}

#[tokio::test]
async fn a_jail_ends_with_its_program_and_with_whoever_holds_it() {
    let jails = open(0).await;
    // The program leaves detached processes behind.
    let (jail, output) = shell(&jails, "setsid sleep 1000 & setsid sleep 1000 & sleep 0.2; echo done").await;
    let inside = processes_of(jail.pid());
    assert_eq!(all_until(output, "done"), "done\n");
    jail.exited().await;
    assert_eq!(jail.end().await, Exit(0));
    vanish(&inside).await;

    let (jail, _output) = shell(&jails, "sleep 1000").await;
    let inside = processes_of(jail.pid());
    jail.terminate();
    tokio::time::timeout(TIMEOUT, jail.exited()).await.unwrap();
    assert_eq!(jail.end().await, Exit(15), "SIGTERM ends a program without a handler");
    vanish(&inside).await;

    let (jail, _output) = shell(&jails, "trap '' TERM; while :; do sleep 1; done").await;
    let inside = processes_of(jail.pid());
    jail.terminate();
    drop(jail);
    vanish(&inside).await;

    let (jail, _output) = shell(&jails, "sleep 1000").await;
    let inside = processes_of(jail.pid());
    drop(jails);
    vanish(&inside).await;
    assert_eq!(jail.end().await, Exit(9), "the jailer has ended");
}

fn all_until(mut output: PipeReader, text: &str) -> String {
    let mut read = vec![0; text.len() + 1];
    output.read_exact(&mut read).unwrap();
    String::from_utf8(read).unwrap()
}

/// The first process of a jail and its descendants.
fn processes_of(first: u32) -> Vec<u32> {
    let (mut all, mut next) = (Vec::new(), vec![first]);
    while let Some(pid) = next.pop() {
        all.push(pid);
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        next.extend(children.split_whitespace().map(|child| child.parse::<u32>().unwrap()));
    }
    all
}

fn runs(pid: &u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

async fn vanish(processes: &[u32]) {
    let begin = Instant::now();
    while processes.iter().any(runs) {
        assert!(begin.elapsed() < TIMEOUT, "left: {processes:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jails_and_many_connections_at_a_time_wait_for_each_other() {
    let jails = open(0).await;
    let made = (0..350).map(|_| {
        let jails = jails.clone();
        tokio::spawn(async move { jails.take().await.map(|jail| jail.pid()) })
    });
    for made in made.collect::<Vec<_>>() {
        made.await.unwrap().unwrap();
    }
    let server = "import socket; s = socket.create_server(('127.0.0.1', 4000), backlog=1000); print('ready', flush=True)\nwhile True: c, _ = s.accept(); c.sendall(b'hi'); c.close()";
    let mut jail = jails.take().await.unwrap();
    let task = Program { argv: ["/usr/bin/python3", "-c", server].map(str::to_owned).to_vec(), ..program("") };
    let mut output = run(&mut jail, task).await.unwrap();
    output.read_exact(&mut [0; 5]).unwrap();
    let inside = jail.dialer();
    let calls = (0..500).map(|_| {
        let inside = inside.clone();
        tokio::spawn(async move { inside.connect(4000).await.map(drop) })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    assert!(inside.connect(80).await.unwrap_err().to_string().contains("the node's"));
}

#[tokio::test]
async fn signals_to_the_nodes_group_are_not_for_the_jailer() {
    let jails = open(1).await;
    let status = fs::read_to_string(format!("/proc/{}/status", jails.jailer())).unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
    // SIGHUP, SIGINT, SIGTERM, and SIGCHLD, which it reads.
    assert_eq!(u64::from_str_radix(blocked, 16).unwrap(), 1 | 1 << 1 | 1 << 14 | 1 << 16, "{blocked}");
    let stat = fs::read_to_string(format!("/proc/{}/stat", jails.jailer())).unwrap();
    let group = stat.rsplit_once(") ").unwrap().1.split(' ').nth(2).unwrap();
    assert_eq!(group, jails.jailer().to_string(), "a process group of its own");
}

/// First processes of jails: the jailer's children.
fn waiting(jails: &Jails) -> usize {
    processes_of(jails.jailer()).len() - 1
}

#[tokio::test]
async fn a_program_that_ends_at_once_has_run() {
    let jails = open(2).await;
    for _ in 0..50 {
        let (jail, output) = shell(&jails, "exit 3").await;
        assert_eq!(all(output).await, "");
        jail.exited().await;
        assert_eq!(jail.end().await, Exit(3 << 8));
    }
}

#[tokio::test]
async fn how_a_program_ended_is_known_although_the_jail_left_orders_unread() {
    let jails = open(1).await;
    let (jail, _output) = shell(&jails, "exec sleep 1000").await;
    let inside = processes_of(jail.pid());
    let signal = |name: &str, pid: u32| {
        assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
    };
    let [first, program] = inside[..] else { panic!("{inside:?}") };
    // While the first process stands still, the program ends and an order comes.
    signal("-STOP", first);
    signal("-USR1", program);
    vanish(&[program]).await;
    jail.terminate();
    signal("-CONT", first);
    // Blocks, so that this runtime reads nothing before the jail has ended.
    let begin = Instant::now();
    while runs(&first) {
        assert!(begin.elapsed() < TIMEOUT, "left: {first}");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(jail.end().await, Exit(10));
}

#[tokio::test]
async fn a_jailer_that_has_ended_is_started_again() {
    let jails = open(2).await;
    let (jail, _output) = shell(&jails, "sleep 1000").await;
    let first = jails.jailer();
    let inside = processes_of(first);
    assert!(Command::new("kill").args(["-KILL", &first.to_string()]).status().unwrap().success());
    vanish(&inside).await;
    assert_eq!(jail.end().await, Exit(9), "its jails end with it");
    // Those that waited are over too.
    for _ in 0..3 {
        assert_eq!(all(shell(&jails, "echo again").await.1).await, "again\n");
    }
    assert_ne!(jails.jailer(), first);
}

#[tokio::test]
async fn nothing_is_left_of_jails_that_are_closed() {
    let jails = open(2).await;
    let all = processes_of(jails.jailer());
    assert_eq!(all.len(), 3, "the jailer and two jails");
    jails.close().await;
    assert!(!all.iter().any(runs), "{all:?}");
    assert!(jails.take().await.is_err());
    assert!(!runs(&jails.jailer()), "it is not started again");
}

#[tokio::test]
async fn what_cannot_be_run_is_said() {
    let jails = open(0).await;
    let refusal = async |program: Program| {
        let mut jail = jails.take().await.unwrap();
        run(&mut jail, program).await.unwrap_err().to_string()
    };
    let missing = refusal(Program { argv: vec!["/usr/bin/no-such-program".to_owned()], ..program("") }).await;
    assert!(missing.contains("/usr/bin/no-such-program: No such file or directory"), "{missing}");
    let folder = refusal(Program { directory: "/no/such/folder".into(), ..program("") }).await;
    assert!(folder.contains("/no/such/folder: No such file or directory"), "{folder}");
    let machine = refusal(Program { visible: vec!["/".into()], ..program("") }).await;
    assert!(machine.contains("a jail cannot show /: that is all of the machine"), "{machine}");
}

#[tokio::test]
async fn jails_are_made_ahead_and_made_again() {
    let jails = open(2).await;
    let first = [jails.take().await.unwrap(), jails.take().await.unwrap()];
    let mut pids: Vec<u32> = first.iter().map(Jail::pid).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 2);
    drop(first);
    // Both were there, so no more are needed.
    let begin = Instant::now();
    while waiting(&jails) != 2 {
        assert!(begin.elapsed() < TIMEOUT, "{} jails wait", waiting(&jails));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(waiting(&jails), 2);
    assert_eq!(all(shell(&jails, "echo again").await.1).await, "again\n");
}
