//! A pod after its capture is as it was before.

use crate::agents::Load;
use crate::forwarder::Forwarder;
use crate::networks::{Machines, Place, enrol, may_enforce, may_run, pod, uid};
use leno_pods::{Capture, CaptureError, PodNetwork};
use std::process::{Command, Stdio};

const POD: u8 = 2;
const OTHER: u8 = 3;

/// The routing and the settings of a network.
fn state(place: &Place) -> String {
    place.output(
        "ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; \
         cd /proc/sys/net/ipv4; grep . tcp_fwmark_accept fwmark_reflect ../ipv6/fwmark_reflect tcp_syncookies; tc qdisc show; ls /proc/self/net | wc -l",
    )
}

#[test]
fn a_released_pod_is_as_it_was() {
    if !may_run() {
        return;
    }
    let machines = Machines::new();
    let place = machines.machine(POD);
    // Rules and settings of others.
    place.ip(&["rule add pref 1 from 10.99.0.0/16 lookup 7", "rule add pref 40 fwmark 0x1 lookup 8"]);
    let before = state(&place);
    assert!(before.contains("tcp_fwmark_accept:0"), "{before}");
    let capture = machines.capture();
    let captured = enrol(&capture, &place, &pod(POD, may_enforce(&capture)));
    let during = state(&place);
    assert!(during.contains("tcp_fwmark_accept:1"), "{during}");
    for (version, others) in [("ip rule", true), ("ip -6 rule", false)] {
        let rules = place.output(if version == "ip rule" { "ip rule" } else { "ip -6 rule" });
        let first: Vec<_> = rules.lines().take(3).map(|line| line.split_whitespace().last().unwrap()).collect();
        assert_eq!(first[1], "local", "{rules}");
        assert!(rules.lines().next().unwrap().contains("fwmark 0x4c656e6f"), "{rules}");
        assert_eq!(first[2], if others { "7" } else { "main" }, "{rules}");
    }
    // Twice is as good as once.
    let again = enrol(&capture, &place, &pod(POD, may_enforce(&capture)));
    assert_eq!(state(&place), during);
    drop(captured);
    let pins = std::fs::read_dir(machines.pins().join("1/pods")).unwrap().next().unwrap().unwrap().file_name();
    again.release().unwrap();
    assert_eq!(state(&place), before);
    assert_eq!(capture.captured().unwrap(), []);
    assert_eq!(std::fs::read_dir(machines.pins().join("1/pods")).unwrap().count(), 0);

    // An agent ends the capture in two steps, for the connections that are open.
    let in_steps = enrol(&capture, &place, &pod(POD, false));
    in_steps.stop().unwrap();
    assert_eq!(state(&place), during);
    in_steps.release().unwrap();
    assert_eq!(state(&place), before);

    // A pod whose capture fails at the last step is as it was.
    let folder = machines.pins().join("1/pods").join(pins).join("choose");
    std::fs::create_dir_all(&folder).unwrap();
    let network = PodNetwork::at(&place.path()).unwrap();
    let error = capture.enrol(network, &pod(POD, may_enforce(&capture))).unwrap_err();
    assert!(matches!(error, CaptureError::Ebpf(_)), "{error}");
    assert_eq!(state(&place), before);
    std::fs::remove_dir(folder).unwrap();

    // The next agent releases a pod whose agent has ended.
    drop(enrol(&capture, &place, &pod(POD, false)));
    let next = machines.capture();
    next.release(&PodNetwork::at(&place.path()).unwrap(), &uid(POD).parse().unwrap()).unwrap();
    assert_eq!(state(&place), before);
    assert_eq!(next.captured().unwrap(), []);
}

#[test]
fn pods_are_enrolled_and_released_without_a_failed_connection() {
    if !may_run() {
        return;
    }
    let machines = Machines::new();
    let (place, other) = (machines.machine(POD), machines.machine(OTHER));
    for place in [&place, &other] {
        place.serve("[::]:80".parse().unwrap());
    }
    let capture = machines.capture();
    let load = Load::start(&place, &other);
    for _ in 0..3 {
        load.wait(100);
        let forwarder = Forwarder::start(enrol(&capture, &place, &pod(POD, false)));
        load.wait(100);
        assert!(!forwarder.arrivals().is_empty());
        forwarder.release();
    }
    load.end();
}

#[test]
fn pods_that_are_gone_are_forgotten() {
    if !may_run() {
        return;
    }
    let machines = Machines::new();
    let (place, gone) = (machines.machine(POD), machines.machine(OTHER));
    let capture = machines.capture();
    let kept = enrol(&capture, &place, &pod(POD, may_enforce(&capture)));
    drop(enrol(&capture, &gone, &pod(OTHER, may_enforce(&capture))));
    assert_eq!(capture.captured().unwrap().len(), 2);
    drop(gone);
    // The kernel removes a network some time after its last process.
    while capture.captured().unwrap().len() > 1 {
        std::thread::yield_now();
    }
    let next = Capture::start(machines.options()).unwrap();
    assert_eq!(std::fs::read_dir(machines.pins().join("1/pods")).unwrap().count(), 1);
    assert_eq!(next.captured().unwrap(), [kept.uid().clone()]);
}

#[test]
fn the_network_of_a_pod_is_found_by_its_processes() {
    if !may_run() {
        return;
    }
    let machines = Machines::new();
    let place = machines.machine(POD);
    let capture = machines.capture();
    let uid_of_pod = uid(POD).parse().unwrap();
    let error = capture.network_of(&uid_of_pod).unwrap_err().to_string();
    assert!(error.contains("no process of pod") && error.contains("hostPID"), "{error}");

    let slice = format!("kubepods-burstable-pod{}.slice", uid(POD).replace('-', "_"));
    let group = machines.options().cgroup.join(format!("leno-test-{}", std::process::id())).join(slice);
    std::fs::create_dir_all(&group).unwrap();
    let mut pause = place.run(|| Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap());
    std::fs::write(group.join("cgroup.procs"), pause.id().to_string()).unwrap();
    // A later process of the pod has another network.
    let mut nested = place.run(|| Command::new("unshare").args(["-n", "sleep", "1000"]).spawn().unwrap());
    std::fs::write(group.join("cgroup.procs"), nested.id().to_string()).unwrap();
    let network = capture.network_of(&uid_of_pod);
    let enrolled = network.and_then(|network| capture.enrol(network, &pod(POD, false)));
    let other = capture.network_of(&uid_of_pod).and_then(|network| capture.enrol(network, &pod(OTHER, false)));
    let host = PodNetwork::at("/proc/self/ns/net".as_ref()).and_then(|host| capture.enrol(host, &pod(OTHER, false)));
    for process in [&mut pause, &mut nested] {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    std::fs::remove_dir(&group).unwrap();
    std::fs::remove_dir(group.parent().unwrap()).unwrap();
    enrolled.unwrap().release().unwrap();
    let error = other.unwrap_err().to_string();
    assert!(error.contains("none of the pod's addresses (10.77.0.3, fd77::3); it has 10.77.0.2"), "{error}");
    let error = host.unwrap_err().to_string();
    assert!(error.contains("has the host's network"), "{error}");
}
