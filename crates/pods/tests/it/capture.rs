//! Both directions of a pod's connections.

use crate::forwarder::Forwarder;
use crate::networks::{Machines, at, enrol, may_enforce, may_run, pod, read, v4, v6};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

const POD: u8 = 2;
const OTHER: u8 = 3;

fn arrived(forwarder: &Forwarder, out: bool, to: SocketAddr) -> usize {
    forwarder.arrivals().iter().filter(|arrival| arrival.0 == out && arrival.2 == to).count()
}

#[test]
fn connections_arrive_at_the_agent_and_both_ends_see_each_other() {
    if !may_run() {
        return;
    }
    let machines = Machines::new();
    let (place, other) = (machines.machine(POD), machines.machine(OTHER));
    for place in [&place, &other] {
        place.serve("[::]:80".parse().unwrap());
    }
    let capture = machines.capture();
    let forwarder = Forwarder::start(enrol(&capture, &place, &pod(POD, false)));
    for address in [v4, v6] {
        let (own, others) = (address(POD), address(OTHER));
        assert_eq!(read(place.connect(at(others, 80))).unwrap(), own.to_string(), "out");
        assert_eq!(arrived(&forwarder, true, at(others, 80)), 1, "{:?}", forwarder.arrivals());
        assert_eq!(read(other.connect(at(own, 80))).unwrap(), others.to_string(), "in");
        assert_eq!(arrived(&forwarder, false, at(own, 80)), 1, "{:?}", forwarder.arrivals());
    }
    let IpAddr::V4(others) = v4(OTHER) else { unreachable!() };
    let mapped = SocketAddr::from((others.to_ipv6_mapped(), 80));
    assert_eq!(read(place.connect(mapped)).unwrap(), v4(POD).to_string(), "an IPv4 address in its form of IPv6");
    assert_eq!(arrived(&forwarder, true, at(v4(OTHER), 80)), 2);

    let before = forwarder.arrivals().len();
    let own = [v4(POD), v6(POD), Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for address in own {
        assert_eq!(read(place.connect(at(address, 80))).unwrap(), address.to_string(), "within the pod");
    }
    assert_eq!(forwarder.arrivals().len(), before, "{:?}", forwarder.arrivals());
}

#[test]
fn a_port_without_a_program_refuses_as_before() {
    if !may_run() {
        return;
    }
    let machines = Machines::new();
    let (place, other) = (machines.machine(POD), machines.machine(OTHER));
    // At its loopback interface, a program is not reachable from outside.
    place.serve("127.0.0.1:81".parse().unwrap());
    let capture = machines.capture();
    // Older kernels have the agent accept and reset it.
    if !may_enforce(&capture) {
        return;
    }
    for enforced in [false, true] {
        let forwarder = Forwarder::start(enrol(&capture, &place, &pod(POD, enforced)));
        let listeners = forwarder.pod().inbound().iter().chain(forwarder.pod().outbound().iter());
        let agents: Vec<_> = listeners.map(|listener| listener.local_addr().unwrap().port()).collect();
        for address in [v4(POD), v6(POD)] {
            for port in [80, 81].into_iter().chain(agents.clone()) {
                let refused = other.connect(at(address, port)).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{address} {port}");
            }
        }
        assert_eq!(forwarder.arrivals(), [], "enforced: {enforced}");
        // The agent itself serves this port.
        for address in [v4, v6] {
            let tunnels = at(address(POD), 15008);
            let _ = read(other.connect(tunnels));
            assert_eq!(arrived(&forwarder, false, tunnels), 1, "{:?}", forwarder.arrivals());
        }
    }
}

#[test]
fn a_program_that_starts_again_gets_its_port() {
    if !may_run() {
        return;
    }
    let machines = Machines::new();
    let (place, other) = (machines.machine(POD), machines.machine(OTHER));
    let capture = machines.capture();
    let _forwarder = Forwarder::start(enrol(&capture, &place, &pod(POD, false)));
    let begin = |address| place.run(move || TcpListener::bind(at(address, 80)));
    for address in [v4, v6] {
        let program = begin(address(POD)).unwrap();
        let client = other.connect(at(address(POD), 80)).unwrap();
        let served = program.accept().unwrap();
        drop((program, served));
        // The client keeps the connection, whose other end in the pod has the program's port.
        begin(address(POD)).unwrap();
        drop(client);
        begin(address(POD)).unwrap();
    }
}

#[test]
fn pods_have_several_interfaces_and_are_told_apart() {
    if !may_run() {
        return;
    }
    let machines = Machines::new();
    let (one, two, other) = (machines.machine(POD), machines.machine(4), machines.machine(OTHER));
    let second = |number: u8| -> [IpAddr; 2] {
        [Ipv4Addr::new(10, 78, 0, number).into(), Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, number.into()).into()]
    };
    for (place, number) in [(&one, POD), (&other, OTHER)] {
        machines.attach(place, "net1", number, second(number));
    }
    for place in [&one, &two, &other] {
        place.serve("[::]:80".parse().unwrap());
    }
    let capture = machines.capture();
    let one_agent = Forwarder::start(enrol(&capture, &one, &pod(POD, false)));
    let two_agent = Forwarder::start(enrol(&capture, &two, &pod(4, may_enforce(&capture))));
    for (own, others) in second(POD).into_iter().zip(second(OTHER)) {
        // The second interface is the pod's too, though the cluster does not know it.
        assert_eq!(read(other.connect(at(own, 80))).unwrap(), others.to_string());
        assert_eq!(arrived(&one_agent, false, at(own, 80)), 1);
        assert_eq!(read(one.connect(at(own, 80))).unwrap(), own.to_string());
        // The agent calls by the interface that leads to the callee.
        assert_eq!(read(one.connect(at(others, 80))).unwrap(), own.to_string());
        assert_eq!(arrived(&one_agent, true, at(others, 80)), 1);
    }
    for address in [v4, v6] {
        // From pod to pod, both agents are in between.
        assert_eq!(read(two.connect(at(address(POD), 80))).unwrap(), address(4).to_string());
        assert_eq!(arrived(&two_agent, true, at(address(POD), 80)), 1);
        assert_eq!(arrived(&one_agent, false, at(address(POD), 80)), 1);
    }
    // An address that the pod gets later.
    one.ip(&["addr add 10.77.0.9/24 dev eth0"]);
    assert_eq!(read(other.connect(at(v4(9), 80))).unwrap(), v4(OTHER).to_string());
    assert_eq!(arrived(&one_agent, false, at(v4(9), 80)), 1);
    assert_eq!(read(one.connect(at(v4(9), 80))).unwrap(), v4(POD).to_string());
}
