//! Ways around the agent of an enforced pod.

use crate::forwarder::Forwarder;
use crate::networks::{Machines, Place, SHORT, at, enrol, may_enforce, may_run, pod, v4, v6};
use leno_pods::{CapturedPod, DatagramPeer, DropReason, Guard};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

const POD: u8 = 2;
const OTHER: u8 = 3;
/// Data sent by a way around.
const SECRET: &[u8] = b"leno-secret-of-a-pod";
/// Data sent through the agent.
const PUBLIC: &[u8] = b"leno-by-the-agent";

/// All frames that arrive at a machine.
struct Frames(Socket);

impl Frames {
    fn of(place: &Place) -> Self {
        /// `ETH_P_ALL`, in network order.
        const ALL: i32 = 0x0300;
        Self(place.run(|| Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(ALL))).unwrap()))
    }

    /// Waits for a frame that contains `last`; whether an earlier one contained `wanted`.
    fn had(&mut self, wanted: &[u8], last: &[u8]) -> bool {
        let (mut frame, mut had) = ([0; 65536], false);
        let contains = |frame: &[u8], part: &[u8]| frame.windows(part.len()).any(|found| found == part);
        loop {
            let length = (&self.0).read(&mut frame).unwrap();
            had |= contains(&frame[..length], wanted);
            if contains(&frame[..length], last) {
                return had;
            }
        }
    }
}

type Way = (&'static str, DropReason, fn() -> io::Result<()>);

fn udp(to: IpAddr, length: usize) -> io::Result<()> {
    let mut data = SECRET.to_vec();
    data.resize(length, 0);
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.send_to(&data, at(to, 9000)).map(|_| ())
}

/// A packet of a protocol, with the first bytes of its header.
fn raw(to: IpAddr, protocol: i32, header: &[u8], mark: u32) -> io::Result<()> {
    let domain = Domain::for_address(at(to, 0));
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(protocol)))?;
    socket.set_mark(mark)?;
    let data = [header, &vec![0; 40 - header.len()], SECRET].concat();
    socket.send_to(&data, &SockAddr::from(at(to, 0))).map(|_| ())
}

/// A TCP segment with data, from port 80 to port 80. Its header has five words.
fn segment(mark: u32) -> io::Result<()> {
    raw(v4(OTHER), 6, &[0, 80, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18], mark)
}

/// The program at the pod's own port 9001 does not exist. The kernel's answer goes to the address
/// that the packet comes from.
fn echo_by_the_kernel() -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)))?;
    let (IpAddr::V4(from), IpAddr::V4(to)) = (v4(OTHER), v4(POD)) else { unreachable!() };
    let mut packet = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0];
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend([0x23, 0x28, 0x23, 0x29, 0, 8 + SECRET.len() as u8, 0, 0]);
    packet.extend(SECRET);
    socket.send_to(&packet, &SockAddr::from(at(to.into(), 0))).map(|_| ())
}

/// A frame that the program has made, to all machines.
fn frame(protocol: u16, bypass: bool) -> io::Result<()> {
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
    if bypass {
        bypass_queue(&socket)?;
    }
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 2]);
    frame.extend(protocol.to_be_bytes());
    frame.extend([0x45, 0, 0, 60, 0, 1, 0, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 3]);
    frame.extend([0; 26]);
    frame.extend(SECRET);
    socket.send_to(&frame, &interface(nix::net::if_::if_nametoindex("eth0")? as i32)).map(|_| ())
}

#[expect(unsafe_code, reason = "a system call")]
fn bypass_queue(socket: &Socket) -> io::Result<()> {
    let (on, length) = (1_i32, size_of::<i32>() as u32);
    // SAFETY: the kernel reads one number, which outlives the call.
    let failed = unsafe {
        let level = libc::SOL_PACKET;
        libc::setsockopt(socket.as_raw_fd(), level, libc::PACKET_QDISC_BYPASS, (&raw const on).cast(), length)
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[expect(unsafe_code, reason = "no crate makes such an address")]
fn interface(number: i32) -> SockAddr {
    let init = |storage: *mut socket2::SockAddrStorage, length: *mut libc::socklen_t| {
        let address = storage.cast::<libc::sockaddr_ll>();
        // SAFETY: the storage has place for any address, is zeroed and aligned for all.
        unsafe {
            (*address).sll_family = libc::AF_PACKET as u16;
            (*address).sll_ifindex = number;
            *length = size_of::<libc::sockaddr_ll>() as u32;
        }
        Ok(())
    };
    // SAFETY: it sets the family and the length of that family's address.
    unsafe { SockAddr::try_init(init) }.unwrap().1
}

/// Routes for other interfaces do not apply to the socket.
fn bound_to_the_interface() -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind_device(Some(b"eth0"))?;
    socket.connect_timeout(&SockAddr::from(at(v4(OTHER), 80)), SHORT)?;
    (&socket).write_all(SECRET)
}

const WAYS: [Way; 12] = [
    ("UDP", DropReason::Udp, || udp(v4(OTHER), 100)),
    ("UDP by IPv6", DropReason::Udp, || udp(v6(OTHER), 100)),
    ("UDP in fragments", DropReason::Fragment, || udp(v4(OTHER), 4000)),
    ("ping", DropReason::Icmp, || raw(v4(OTHER), 1, &[8, 0], 0)),
    ("ping by IPv6", DropReason::Icmp, || raw(v6(OTHER), 58, &[128, 0], 0)),
    ("SCTP", DropReason::Protocol, || raw(v4(OTHER), 132, &[], 0)),
    ("TCP of a raw socket", DropReason::Tcp, || segment(0)),
    ("TCP of a raw socket with a mark", DropReason::Tcp, || segment(0x4c65_6e6e)),
    ("an answer of the kernel", DropReason::Udp, echo_by_the_kernel),
    ("a frame", DropReason::Frame, || frame(0x88b5, false)),
    ("an ARP frame", DropReason::Frame, || frame(0x0806, false)),
    ("TCP bound to the interface", DropReason::Tcp, bound_to_the_interface),
];

fn dropped(pod: &CapturedPod, reason: DropReason) -> u64 {
    pod.dropped().into_iter().find(|(found, _)| *found == reason).map_or(0, |(_, count)| count)
}

/// A server that reads a line.
fn sink(place: &Place) {
    let listener = place.run(|| TcpListener::bind("[::]:80").unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || stream.unwrap().read_to_end(&mut Vec::new()));
        }
    });
}

fn public(place: &Place) {
    let mut stream = place.connect(at(v4(OTHER), 80)).unwrap();
    stream.write_all(PUBLIC).unwrap();
}

#[test]
fn no_way_leads_around_the_agent() {
    if !may_run() {
        return;
    }
    let machines = Machines::new();
    let (place, other) = (machines.machine(POD), machines.machine(OTHER));
    sink(&other);
    place.serve("10.77.0.2:81".parse().unwrap());
    let capture = machines.capture();
    if !may_enforce(&capture) {
        return;
    }
    let mut frames = Frames::of(&other);
    for enforced in [false, true] {
        let forwarder = Forwarder::start(enrol(&capture, &place, &pod(POD, enforced)));
        for (name, reason, way) in WAYS {
            let before = dropped(forwarder.pod(), reason);
            let tried = place.run(way);
            public(&place);
            assert_eq!(frames.had(SECRET, PUBLIC), !enforced, "{name}, enforced: {enforced}, {tried:?}");
            if enforced {
                let what = format!("{name}: {:?}, {tried:?}", forwarder.pod().dropped());
                assert!(dropped(forwarder.pod(), reason) > before, "{what}");
            }
        }
        // The answer to a connection within the pod that has another machine's address.
        place.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.set_ip_transparent_v4(true).unwrap();
            socket.bind(&SockAddr::from(at(v4(OTHER), 7777))).unwrap();
            drop(socket.connect_timeout(&SockAddr::from(at(v4(POD), 81)), SHORT));
        });
        public(&place);
        let ports = [81_u16.to_be_bytes(), 7777_u16.to_be_bytes()].concat();
        assert_eq!(frames.had(&ports, PUBLIC), !enforced, "an answer to another machine");
        assert_eq!(dropped(forwarder.pod(), DropReason::Spoofed) > 0, enforced);
        // The kernel has two ways to prevent this one.
        let tried = place.run(|| frame(0x88b5, true));
        public(&place);
        assert_eq!(frames.had(SECRET, PUBLIC), !enforced, "bypass, {tried:?}");
        assert_eq!(tried.is_err(), enforced, "{tried:?}");
        assert_eq!(dropped(forwarder.pod(), DropReason::Family) > 0, enforced);
        assert!(matches!(capture.guard(), Some(Guard::Options | Guard::Sockets)));
    }
}

#[test]
fn an_interface_that_a_pod_gets_later_is_no_way_around() {
    if !may_run() {
        return;
    }
    let machines = Machines::new();
    let (place, other) = (machines.machine(POD), machines.machine(OTHER));
    let capture = machines.capture();
    if !may_enforce(&capture) {
        return;
    }
    let forwarder = Forwarder::start(enrol(&capture, &place, &pod(POD, true)));
    let second = |number: u8| [IpAddr::from([10, 79, 0, number]), format!("fd79::{number}").parse().unwrap()];
    for (place, number) in [(&place, POD), (&other, OTHER)] {
        machines.attach(place, "eth1", number, second(number));
    }
    for to in second(OTHER) {
        let before = dropped(forwarder.pod(), DropReason::Udp);
        while dropped(forwarder.pod(), DropReason::Udp) == before {
            place.run(move || udp(to, 40)).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn datagrams_pass_as_the_agent_says() {
    if !may_run() {
        return;
    }
    let machines = Machines::new();
    let (place, other) = (machines.machine(POD), machines.machine(OTHER));
    let capture = machines.capture();
    if !may_enforce(&capture) {
        return;
    }
    let pod = enrol(&capture, &place, &pod(POD, true));
    // A name server: it answers everything.
    for (address, port) in [(v4(OTHER), 53), (v6(OTHER), 53), (v4(OTHER), 54)] {
        let server = other.run(move || UdpSocket::bind(at(address, port)).unwrap());
        std::thread::spawn(move || {
            let mut data = [0; 100];
            while let Ok((length, from)) = server.recv_from(&mut data) {
                let _ = server.send_to(&data[..length], from);
            }
        });
    }
    let ask = |to: SocketAddr| {
        let socket = place.run(move || UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let before = dropped(&pod, DropReason::Udp);
        // Until it is answered, or has been dropped.
        loop {
            socket.send_to(b"?", to).unwrap();
            match socket.recv(&mut [0; 9]) {
                Ok(_) => return true,
                Err(_) if dropped(&pod, DropReason::Udp) > before => return false,
                Err(_) => {}
            }
        }
    };
    let all = [at(v4(OTHER), 53), at(v6(OTHER), 53), at(v4(OTHER), 54)];
    let peer = |address, prefix, port| DatagramPeer { address, prefix, port };
    for (peers, expected) in [
        (vec![], [false, false, false]),
        (vec![peer(v4(OTHER), 32, Some(53)), peer(v6(OTHER), 128, Some(53))], [true, true, false]),
        (vec![peer(Ipv4Addr::new(10, 77, 0, 0).into(), 24, None)], [true, false, true]),
        (vec![peer(v4(OTHER), 32, Some(54)), peer(v4(4), 32, None)], [false, false, true]),
        (vec![], [false, false, false]),
    ] {
        pod.set_datagram_peers(&peers).unwrap();
        assert_eq!(all.map(ask), expected, "{peers:?}");
    }
    let many = vec![peer(v4(OTHER), 32, None); 2000];
    let error = pod.set_datagram_peers(&many).unwrap_err().to_string();
    assert_eq!(error, "2000 blocks of datagram peers; a pod may have 1024");
}

#[test]
fn connections_past_the_agent_end_when_a_pod_is_enforced() {
    if !may_run() {
        return;
    }
    let machines = Machines::new();
    let (place, other) = (machines.machine(POD), machines.machine(OTHER));
    let listener = other.run(|| TcpListener::bind("[::]:80").unwrap());
    let early = place.connect(at(v4(OTHER), 80)).unwrap();
    let (mut early_server, _) = listener.accept().unwrap();
    let capture = machines.capture();
    if !may_enforce(&capture) {
        return;
    }
    let forwarder = Forwarder::start(enrol(&capture, &place, &pod(POD, false)));
    let judged = place.connect(at(v4(OTHER), 80)).unwrap();
    let (mut judged_server, _) = listener.accept().unwrap();
    let works = |near: &TcpStream, far: &mut TcpStream| {
        far.set_read_timeout(Some(SHORT)).unwrap();
        let mut near = near;
        near.write_all(b"!").is_ok() && far.read_exact(&mut [0]).is_ok()
    };
    assert!(works(&early, &mut early_server) && works(&judged, &mut judged_server), "permissive");
    forwarder.pod().set_enforced(true).unwrap();
    assert!(works(&judged, &mut judged_server), "through the agent");
    assert!(!works(&early, &mut early_server), "past the agent");
    forwarder.pod().set_enforced(false).unwrap();
    assert!(works(&judged, &mut judged_server), "through the agent");
}
