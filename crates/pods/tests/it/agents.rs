//! What happens to pods when their agent ends, and when another one takes over.

use crate::forwarder::Forwarder;
use crate::networks::{Machines, Place, at, enrol, may_enforce, may_run, pod, read, uid, v4, v6};
use leno_pods::{DropReason, PodCapture};
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

const POD: u8 = 2;
const OTHER: u8 = 3;

/// An agent that is a process.
struct Agent(Child);

impl Agent {
    fn start(machines: &Machines, place: &Place, pod: &PodCapture) -> Self {
        let options = machines.options();
        let addresses: Vec<_> = pod.addresses.iter().map(IpAddr::to_string).collect();
        // As in a container, whose settings of the kernel are read-only.
        let read_only = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$0\" \"$@\"";
        let mut agent = Command::new("unshare")
            .args(["--mount", "sh", "-c", read_only, env!("CARGO_BIN_EXE_leno-test-agent")])
            .arg(options.cgroup)
            .arg(options.pins)
            .arg(place.path())
            .args([
                pod.uid.to_string(),
                addresses.join(","),
                if pod.enforced { "enforced" } else { "permissive" }.into(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(agent.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(agent)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A pod and another machine, each with a server.
fn machines() -> (Machines, Place, Place) {
    let machines = Machines::new();
    let (place, other) = (machines.machine(POD), machines.machine(OTHER));
    for place in [&place, &other] {
        place.serve("[::]:80".parse().unwrap());
    }
    (machines, place, other)
}

#[test]
fn a_permissive_pod_goes_on_at_once_without_its_agent() {
    if !may_run() {
        return;
    }
    let (machines, place, other) = machines();
    Agent::start(&machines, &place, &pod(POD, false)).kill();
    for address in [v4, v6] {
        assert_eq!(read(place.connect(at(address(OTHER), 80))).unwrap(), address(POD).to_string());
        assert_eq!(read(other.connect(at(address(POD), 80))).unwrap(), address(OTHER).to_string());
    }
    // Another agent adopts it.
    let capture = machines.capture();
    assert_eq!(capture.captured().unwrap(), [uid(POD).parse().unwrap()]);
    let forwarder = Forwarder::start(enrol(&capture, &place, &pod(POD, false)));
    assert_eq!(read(place.connect(at(v4(OTHER), 80))).unwrap(), v4(POD).to_string());
    assert_eq!(read(other.connect(at(v6(POD), 80))).unwrap(), v6(OTHER).to_string());
    assert_eq!(forwarder.arrivals().len(), 2);
}

#[test]
fn an_enforced_pod_waits_for_the_next_agent() {
    if !may_run() {
        return;
    }
    let (machines, place, other) = machines();
    if !may_enforce(&machines.capture()) {
        return;
    }
    Agent::start(&machines, &place, &pod(POD, true)).kill();
    for address in [v4, v6] {
        for failed in [place.connect_in_vain(at(address(OTHER), 80)), other.connect_in_vain(at(address(POD), 80))] {
            assert_eq!(failed.kind(), std::io::ErrorKind::TimedOut);
        }
    }
    // Connections that wait are served when there is an agent again.
    let waiting = [(&place, v4(OTHER)), (&other, v6(POD))]
        .map(|(from, to)| from.spawn(move || read(std::net::TcpStream::connect(at(to, 80))).unwrap()));
    let capture = machines.capture();
    let dropped = |captured: &leno_pods::CapturedPod| {
        captured.dropped().into_iter().find(|(reason, _)| *reason == DropReason::NoAgent).map_or(0, |(_, count)| count)
    };
    let forwarder = Forwarder::start(enrol(&capture, &place, &pod(POD, true)));
    assert!(dropped(forwarder.pod()) >= 4, "{:?}", forwarder.pod().dropped());
    assert_eq!(waiting.map(|thread| thread.join().unwrap()), [v4(POD).to_string(), v6(OTHER).to_string()]);
    assert_eq!(forwarder.arrivals().len(), 2);
}

/// Connections in both directions, one after the other, until they are ended.
pub(crate) struct Load {
    ends: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) fn start(place: &Place, other: &Place) -> Self {
        let mut load = Self { ends: Arc::default(), done: Arc::default(), threads: Vec::new() };
        for (from, to, source) in [
            (place, v4(OTHER), v4(POD)),
            (place, v6(OTHER), v6(POD)),
            (other, v4(POD), v4(OTHER)),
            (other, v6(POD), v6(OTHER)),
        ] {
            let (ends, done) = (load.ends.clone(), load.done.clone());
            load.threads.push(from.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    let answer = read(std::net::TcpStream::connect(at(to, 80)));
                    assert_eq!(answer.unwrap_or_else(|error| panic!("{source} -> {to}: {error}")), source.to_string());
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        load
    }

    /// Waits until so many more connections have been served.
    pub(crate) fn wait(&self, more: usize) {
        let enough = self.done.load(Ordering::Relaxed) + more;
        while self.done.load(Ordering::Relaxed) < enough && !self.threads.iter().any(JoinHandle::is_finished) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn end(self) -> usize {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.done.load(Ordering::Relaxed)
    }
}

#[test]
fn agents_follow_each_other_without_a_failed_connection() {
    if !may_run() {
        return;
    }
    let (machines, place, other) = machines();
    for enforced in [false, true] {
        let mut capture = machines.capture();
        let pod = pod(POD, enforced && may_enforce(&capture));
        let mut forwarder = Forwarder::start(enrol(&capture, &place, &pod));
        let load = Load::start(&place, &other);
        for _ in 0..3 {
            load.wait(100);
            let next = machines.capture();
            let successor = Forwarder::start(enrol(&next, &place, &pod));
            std::mem::replace(&mut forwarder, successor).finish();
            capture = next;
        }
        load.wait(100);
        load.end();
        assert!(!forwarder.arrivals().is_empty() && !capture.captured().unwrap().is_empty());
    }
}
