//! Sockets that programs of enforced pods may not make. The other tests of pods are in `leno-pods`.

use crate::networks::{Network, may_run};
use leno_ebpf::{Guard, Network as Cookie, PodState, Pods};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use socket2::{Domain, Protocol, Socket, Type};
use std::fs::File;
use std::os::fd::AsRawFd;

/// Makes a socket that sees and sends any frame.
fn frames(administers: bool) -> std::io::Result<Socket> {
    let before = capabilities(None)?;
    let mut reduced = before;
    reduced.effective.set(CapabilitySet::NET_ADMIN, administers);
    set_capabilities(None, reduced)?;
    let made = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)));
    set_capabilities(None, before)?;
    made
}

#[test]
fn programs_of_enforced_pods_make_no_frames() {
    if !may_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    mount(Some("bpf"), folder.path(), Some("bpf"), MsFlags::empty(), None::<&str>).unwrap();
    let pins = File::open(folder.path()).unwrap();
    umount2(folder.path(), MntFlags::MNT_DETACH).unwrap();
    let pins = format!("/proc/self/fd/{}/leno", pins.as_raw_fd());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let group = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("no cgroup2 is mounted");
    let group = group.split(' ').nth(4).unwrap();
    let pods = match Pods::load(group.as_ref(), pins.as_ref(), Some(Guard::Sockets)) {
        Ok(pods) => pods,
        Err(error) => return eprintln!("SKIPPED: this kernel does not let programs refuse sockets: {error}"),
    };
    let network = Network::new();
    let cookie = network.run(|| Cookie::of(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap());
    for enforced in [false, true, false] {
        pods.set_state(cookie, PodState { captured: true, enforced, generation: 0, kept: 0 }).unwrap();
        let made = network.run(|| frames(false).map(drop).map_err(|error| error.raw_os_error()));
        assert_eq!(made, if enforced { Err(Some(libc::EAFNOSUPPORT)) } else { Ok(()) });
        network.run(|| frames(true).unwrap());
        network.run(|| Socket::new(Domain::UNIX, Type::STREAM, None).unwrap());
        // Outside of the pod.
        frames(false).unwrap();
    }
}
