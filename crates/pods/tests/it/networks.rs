//! A network of pods and other machines for tests.

use leno_pods::{Capture, CaptureOptions, CapturedPod, PodCapture, PodNetwork};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Whether tests can run here; otherwise prints why not.
pub(crate) fn may_run() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: only root may make network namespaces here, and load programs into the kernel");
    }
    root
}

/// Whether this machine can enforce that all traffic of a pod passes the agent; otherwise prints why
/// not.
pub(crate) fn may_enforce(capture: &Capture) -> bool {
    if let Some(reason) = capture.unenforceable() {
        eprintln!("SKIPPED: pods cannot be enforced here: {reason}");
    }
    capture.unenforceable().is_none()
}

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace and a thread in it.
pub(crate) struct Place {
    jobs: Sender<Job>,
    pub(crate) namespace: File,
}

impl Place {
    fn new() -> Self {
        let (jobs, todo) = channel::<Job>();
        let (opened, namespace) = channel();
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            opened.send(File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
            todo.iter().for_each(|job| job());
        });
        let place = Self { jobs, namespace: namespace.recv().unwrap() };
        place.ip(&["link set lo up"]);
        place
    }

    /// Runs a closure in the network. Its sockets remain in this network.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        self.jobs.send(Box::new(move || drop(done.send(job())))).unwrap();
        result.recv().unwrap()
    }

    /// Runs a closure that blocks, on another thread.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let namespace = self.namespace.try_clone().unwrap();
        std::thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            job()
        })
    }

    /// Commands of `ip`.
    pub(crate) fn ip(&self, commands: &[&str]) {
        let text = commands.join("\n");
        let output = self.run(move || {
            let mut ip = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
            ip.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            ip.wait().unwrap()
        });
        assert!(output.success(), "{commands:?}");
    }

    /// The output of a command.
    pub(crate) fn output(&self, command: &'static str) -> String {
        self.run(move || {
            let output = Command::new("sh").args(["-c", command]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        })
    }

    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_raw_fd()).into()
    }

    pub(crate) fn connect(&self, address: SocketAddr) -> std::io::Result<TcpStream> {
        self.run(move || TcpStream::connect(address))
    }

    /// A connection that is to get no answer.
    pub(crate) fn connect_in_vain(&self, address: SocketAddr) -> std::io::Error {
        self.run(move || TcpStream::connect_timeout(&address, SHORT)).unwrap_err()
    }

    /// A server that answers with the address of its client.
    pub(crate) fn serve(&self, address: SocketAddr) {
        let listener = self.run(move || TcpListener::bind(address).unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let peer = stream.peer_addr().unwrap();
                let _ = writeln!(stream, "{}", peer.ip().to_canonical());
            }
        });
    }
}

/// So long something is tried that is not to succeed.
pub(crate) const SHORT: Duration = Duration::from_millis(100);

/// Namespaces on one bridge, each with an IPv4 and an IPv6 address, and the pins of their capture.
pub(crate) struct Machines {
    bridge: Place,
    /// A BPF file system that no path leads to. It ends with the process.
    pins: File,
}

pub(crate) fn v4(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 77, 0, number).into()
}

pub(crate) fn v6(number: u8) -> IpAddr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into()).into()
}

pub(crate) fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

impl Machines {
    pub(crate) fn new() -> Self {
        let bridge = Place::new();
        bridge.ip(&["link add bridge0 type bridge mcast_snooping 0", "link set bridge0 up"]);
        let folder = tempfile::tempdir().unwrap();
        mount(Some("bpf"), folder.path(), Some("bpf"), MsFlags::empty(), None::<&str>).unwrap();
        let pins = File::open(folder.path()).unwrap();
        umount2(folder.path(), MntFlags::MNT_DETACH).unwrap();
        Self { bridge, pins }
    }

    /// A machine, or a pod.
    pub(crate) fn machine(&self, number: u8) -> Place {
        let place = Place::new();
        self.attach(&place, "eth0", number, [v4(number), v6(number)]);
        place.ip(&["route add default via 10.77.0.1", "route add default via fd77::1"]);
        place
    }

    /// Gives a machine one more interface.
    pub(crate) fn attach(&self, place: &Place, name: &str, number: u8, [v4, v6]: [IpAddr; 2]) {
        let own = std::process::id();
        // Through the process that runs `ip`, the descriptor's path leads to the namespace.
        let target = format!("/proc/{own}/fd/{}", place.namespace.as_raw_fd());
        self.bridge.ip(&[
            &format!("link add p{number}{name} type veth peer name {name} netns {target}"),
            &format!("link set p{number}{name} master bridge0 up"),
        ]);
        place.ip(&[
            // A link-local address would appear some time later.
            &format!("link set {name} addrgenmode none"),
            &format!("addr add {v4}/24 dev {name}"),
            &format!("addr add {v6}/64 dev {name} nodad"),
            &format!("link set {name} up"),
        ]);
    }

    pub(crate) fn options(&self) -> CaptureOptions {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("no cgroup2 is mounted");
        CaptureOptions { cgroup: mount.split(' ').nth(4).unwrap().into(), pins: self.pins() }
    }

    pub(crate) fn pins(&self) -> PathBuf {
        format!("/proc/{}/fd/{}/leno", std::process::id(), self.pins.as_raw_fd()).into()
    }

    pub(crate) fn capture(&self) -> Capture {
        Capture::start(self.options()).unwrap()
    }
}

pub(crate) fn uid(number: u8) -> String {
    format!("6f0e6d1c-2a54-4c2b-9c43-{number:012}")
}

pub(crate) fn pod(number: u8, enforced: bool) -> PodCapture {
    PodCapture { uid: uid(number).parse().unwrap(), addresses: vec![v4(number), v6(number)], enforced }
}

pub(crate) fn enrol(capture: &Capture, place: &Place, pod: &PodCapture) -> CapturedPod {
    capture.enrol(PodNetwork::at(&place.path()).unwrap(), pod).unwrap()
}

/// All that a server sent.
pub(crate) fn read(stream: std::io::Result<TcpStream>) -> std::io::Result<String> {
    let stream = stream?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(std::io::read_to_string(stream)?.trim().to_owned())
}
