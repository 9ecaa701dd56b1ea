//! The kernel's treatment of connections of jails.
//!
//! This is a separate program, because it moves its process into control groups.

#[path = "it/networks.rs"]
mod networks;

use leno_ebpf::{Interception, Mesh, Network as Cookie, Rule, Splice, Transport, Verdict};
use networks::{Network, may_run};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const CALLER: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 2);
const CALLEE: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 3);

fn rule(port: impl Into<Option<u16>>, transport: Transport) -> Rule {
    Rule { caller: CALLER, callee: CALLEE, prefix: 32, port: port.into(), transport }
}

fn namespace(network: &Network) -> File {
    network.run(|| File::open("/proc/thread-self/ns/net").unwrap())
}

/// A control group that this process is in until this is dropped. There is one at a time.
struct Group {
    path: PathBuf,
    parent: PathBuf,
    _only: MutexGuard<'static, ()>,
}

impl Group {
    fn enter() -> Self {
        static ONLY: Mutex<()> = Mutex::new(());
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("no cgroup2 is mounted");
        let group = fs::read_to_string("/proc/self/cgroup").unwrap();
        let group = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap().to_owned();
        let parent = Path::new(mount.split(' ').nth(4).unwrap()).join(group);
        let path = parent.join(format!("leno-test-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("cgroup.procs"), "0").unwrap();
        Self { path, parent, _only: only }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.parent.join("cgroup.procs"), "0");
        // A thread that has just ended stays in the group a little longer.
        for _ in 0..1000 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A caller's jail and a callee's, and the node between them.
struct Jails {
    mesh: Arc<Mesh>,
    caller: Network,
    callee: Network,
    listener: TcpListener,
    _interception: Interception,
    _group: Group,
}

impl Jails {
    fn new() -> Self {
        let group = Group::enter();
        let mesh = Arc::new(Mesh::attach(&group.path).unwrap());
        assert_eq!(mesh.unspliced(), None);
        let (caller, callee) = (Network::new(), Network::new());
        let listener = caller.run(|| TcpListener::bind("0.0.0.0:80").unwrap());
        let interception = Interception::begin(namespace(&caller).as_fd(), listener.as_fd()).unwrap();
        mesh.admit(Cookie::of(&listener).unwrap(), CALLER).unwrap();
        Self { mesh, caller, callee, listener, _interception: interception, _group: group }
    }

    fn connect(&self, address: &'static str) -> std::io::Result<TcpStream> {
        self.caller.run(move || TcpStream::connect(address))
    }

    /// A connection from a caller to a callee.
    fn pair(&self) -> Pair {
        self.mesh.set(&rule(6379, Transport::Tcp), Verdict::Direct).unwrap();
        let server = self.callee.run(|| TcpListener::bind("127.0.0.1:6379").unwrap());
        let client = self.caller.run(|| stream("0.0.0.0:0"));
        client.set_nonblocking(true).unwrap();
        let _ = client.connect(&address("100.64.0.3:6379"));
        let (near, _) = self.listener.accept().unwrap();
        client.set_nonblocking(false).unwrap();
        assert_eq!(near.local_addr().unwrap().to_string(), "100.64.0.3:6379");
        let socket = self.callee.run(|| stream("127.0.0.1:0"));
        let bound = socket.local_addr().unwrap().as_socket().unwrap();
        let expected = self.mesh.expect(&socket, bound, 6379).unwrap();
        socket.connect(&address("127.0.0.1:6379")).unwrap();
        let far = TcpStream::from(socket);
        let (served, _) = server.accept().unwrap();
        drop(expected);
        Pair { client: client.into(), near, far, served }
    }
}

fn address(text: &str) -> SockAddr {
    text.parse::<SocketAddr>().unwrap().into()
}

fn stream(bound: &str) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&address(bound)).unwrap();
    socket
}

struct Pair {
    client: TcpStream,
    near: TcpStream,
    far: TcpStream,
    served: TcpStream,
}

impl Pair {
    fn splice(&self, mesh: &Arc<Mesh>) -> Splice {
        self.try_splice(mesh).expect("the kernel knows both programs' sockets")
    }

    fn try_splice(&self, mesh: &Arc<Mesh>) -> Option<Splice> {
        let [near, far] =
            [&self.near, &self.far].map(|stream| (stream, [stream.local_addr().unwrap(), stream.peer_addr().unwrap()]));
        mesh.splice(near, far).unwrap()
    }
}

fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut found = vec![0; bytes.len()];
    stream.read_exact(&mut found).unwrap();
    assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(bytes));
}

fn nothing(stream: &mut TcpStream) {
    stream.set_nonblocking(true).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
}

/// Reads all available bytes.
fn read_available(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_nonblocking(true).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        ended => panic!("{ended:?}"),
    }
    stream.set_nonblocking(false).unwrap();
    bytes
}

#[test]
fn a_block_of_addresses_arrives_at_the_node_and_nothing_beside_it() {
    if !may_run() {
        return;
    }
    let jails = Jails::new();
    let block = Rule { callee: Ipv4Addr::new(203, 0, 113, 0), prefix: 24, ..rule(None, Transport::Tcp) };
    let refused = |address| jails.connect(address).unwrap_err().kind() == ErrorKind::PermissionDenied;
    assert!(refused("203.0.113.7:5432"));
    jails.mesh.set(&block, Verdict::ToTheNode).unwrap();
    // A rule of another function, for the same addresses and more. It does not apply to the caller.
    let foreign = Rule { caller: CALLEE, callee: Ipv4Addr::new(203, 0, 112, 0), prefix: 22, ..block };
    jails.mesh.set(&foreign, Verdict::ToTheNode).unwrap();
    for address in ["203.0.113.7:5432", "203.0.113.255:80"] {
        let _client = jails.connect(address).unwrap();
        let (near, _) = jails.listener.accept().unwrap();
        assert_eq!(near.local_addr().unwrap().to_string(), address, "the address that was called");
    }
    for address in ["203.0.112.7:5432", "203.0.114.1:80", "100.64.0.3:80"] {
        assert!(refused(address), "{address}");
    }
    jails.mesh.unset(&block);
    assert!(refused("203.0.113.7:5432"));
}

#[test]
fn what_is_spliced_does_not_pass_by_the_node_and_nothing_overtakes() {
    if !may_run() {
        return;
    }
    let jails = Jails::new();
    let mut pair = jails.pair();
    // Bytes from before the splice are on their way through the node.
    pair.client.write_all(b"early ").unwrap();
    let splice = pair.splice(&jails.mesh);
    let Pair { mut client, mut near, mut far, mut served } = pair;
    client.write_all(b"and still early ").unwrap();
    expect(&mut near, b"early and still early ");
    far.write_all(b"early and still early ").unwrap();
    // The bytes have arrived and are not read.
    client.write_all(b"before it is read ").unwrap();
    expect(&mut served, b"early and still ");
    expect(&mut near, b"before it is read ");
    far.write_all(b"before it is read ").unwrap();
    expect(&mut served, b"early before it is read ");
    client.write_all(b"direct").unwrap();
    expect(&mut served, b"direct");
    nothing(&mut near);
    served.write_all(b"and back").unwrap();
    expect(&mut client, b"and back");
    assert_eq!(splice.bytes(), [6, 8]);
    nothing(&mut far);

    // The end goes through the node.
    client.write_all(b"last words").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(near.read(&mut [0; 16]).unwrap(), 0);
    far.shutdown(Shutdown::Write).unwrap();
    expect(&mut served, b"last words");
    assert_eq!(served.read(&mut [0; 16]).unwrap(), 0);
    served.write_all(b"bye").unwrap();
    expect(&mut client, b"bye");
}

#[test]
fn a_receiver_that_does_not_read_makes_the_sender_wait() {
    if !may_run() {
        return;
    }
    let jails = Jails::new();
    let pair = jails.pair();
    let _splice = pair.splice(&jails.mesh);
    let Pair { mut client, mut near, mut far, mut served } = pair;
    client.set_nonblocking(true).unwrap();
    let mut sent = Vec::new();
    loop {
        let block: Vec<u8> = (sent.len()..sent.len() + 64 * 1024).map(|number| (number % 251) as u8).collect();
        match client.write(&block) {
            Ok(count) => sent.extend(&block[..count]),
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(sent.len() < 64 << 20, "the kernel takes {} bytes that nobody reads", sent.len());
    }
    let mut received = read_available(&mut served);
    let direct = received.len();
    assert!((1 << 20..2 << 20).contains(&direct), "{direct}");
    far.set_nonblocking(true).unwrap();
    let mut carried = Vec::new();
    while received.len() < sent.len() {
        carried.extend(read_available(&mut near));
        match far.write(&carried) {
            Ok(count) => drop(carried.drain(..count)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        received.extend(read_available(&mut served));
    }
    assert!(received == sent, "what arrived is not what was sent");
    // All of it is read, and the direct path is open again. After a write that failed, older
    // kernels (6.1) take the other path once more.
    client.set_nonblocking(false).unwrap();
    for _ in 0..2 {
        client.write_all(b"direct again").unwrap();
        far.write_all(&read_available(&mut near)).unwrap();
        expect(&mut served, b"direct again");
    }
    client.write_all(b"direct again").unwrap();
    expect(&mut served, b"direct again");
    nothing(&mut near);
}

#[test]
fn what_is_spliced_ends_with_its_permission_in_both_directions() {
    if !may_run() {
        return;
    }
    let jails = Jails::new();
    let pair = jails.pair();
    let _splice = pair.splice(&jails.mesh);
    let Pair { mut client, mut near, mut far, mut served } = pair;
    client.write_all(b"before").unwrap();
    expect(&mut served, b"before");
    jails.mesh.unset(&rule(6379, Transport::Tcp));
    client.write_all(b"after").unwrap();
    nothing(&mut near);
    nothing(&mut served);
    // The callee's bytes arrive at the node, which ends the connection.
    served.write_all(b"after").unwrap();
    expect(&mut far, b"after");
    nothing(&mut client);
}

#[test]
fn whoever_has_the_same_addresses_later_is_somebody_else() {
    if !may_run() {
        return;
    }
    let jails = Jails::new();
    let pair = jails.pair();
    let _splice = pair.splice(&jails.mesh);
    let Pair { mut client, near, far: _far, mut served } = pair;
    client.write_all(b"old").unwrap();
    expect(&mut served, b"old");
    let own = client.local_addr().unwrap().to_string();
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    // The node has not accepted the connection yet.
    let client = jails.caller.run(move || stream(&own));
    client.set_nonblocking(true).unwrap();
    let _ = client.connect(&address("100.64.0.3:6379"));
    let (mut again, _) = jails.listener.accept().unwrap();
    client.set_nonblocking(false).unwrap();
    let mut client = TcpStream::from(client);
    assert_eq!(again.peer_addr().unwrap(), near.peer_addr().unwrap_or(client.local_addr().unwrap()));
    client.write_all(b"new").unwrap();
    expect(&mut again, b"new");
    nothing(&mut served);
    served.write_all(b"old").unwrap();
    nothing(&mut client);
}

#[test]
fn a_program_that_waits_in_reads_is_not_spliced() {
    if !may_run() {
        return;
    }
    let jails = Jails::new();
    jails.mesh.set(&rule(6379, Transport::Tcp), Verdict::Direct).unwrap();
    let mut pair = jails.pair();
    pair.client = jails.connect("100.64.0.3:6379").unwrap();
    (pair.near, _) = jails.listener.accept().unwrap();
    assert!(pair.try_splice(&jails.mesh).is_none());
}

#[test]
fn whoever_sends_to_one_who_is_gone_is_told_by_tcp() {
    if !may_run() {
        return;
    }
    let jails = Jails::new();
    let pair = jails.pair();
    let _splice = pair.splice(&jails.mesh);
    let Pair { mut client, mut near, mut far, mut served } = pair;
    client.write_all(b"a").unwrap();
    expect(&mut served, b"a");
    drop(served);
    assert_eq!(far.read(&mut [0; 1]).unwrap(), 0);
    client.write_all(b"b").unwrap();
    expect(&mut near, b"b");
    far.write_all(b"b").unwrap();
    let error = (0..1000).find_map(|_| far.write_all(b"b").err()).expect("nobody said that the receiver is gone");
    assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
}

#[test]
fn what_no_rule_allows_does_not_begin_and_is_told() {
    if !may_run() {
        return;
    }
    let jails = Jails::new();
    let refusals = jails.mesh.refusals().unwrap();
    let refused = |address: &'static str| {
        let error = jails.connect(address).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{address}: {error}");
        let told = refusals.wait(Duration::from_secs(10)).unwrap();
        told.first().copied().unwrap_or_else(|| panic!("{address}: nobody was told"))
    };
    let before = Instant::now();
    let told = refused("100.64.0.3:5432");
    assert!(before <= told.at && told.at <= Instant::now(), "{told:?}");
    assert_eq!((told.caller, told.callee, told.port), (Some(CALLER), CALLEE, 5432));
    assert_eq!(told.network, Some(Cookie::of(&jails.listener).unwrap()));
    assert_eq!(told.transport, Some(Transport::Tcp));
    // A rule for all ports, and an exception.
    jails.mesh.set(&rule(None, Transport::Tcp), Verdict::ToTheNode).unwrap();
    jails.mesh.set(&rule(22, Transport::Tcp), Verdict::Refused).unwrap();
    jails.connect("100.64.0.3:5432").unwrap();
    jails.connect("[::ffff:100.64.0.3]:5432").unwrap();
    refused("100.64.0.3:22");
    refused("[::ffff:100.64.0.3]:22");
    refused("100.64.0.4:5432");
    refused("203.0.113.7:80");
    jails.mesh.unset(&rule(None, Transport::Tcp));
    refused("100.64.0.3:5432");

    // Datagrams.
    let send =
        |address: &'static str| jails.caller.run(move || UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", address));
    assert_eq!(send("100.64.0.3:53").unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(refusals.wait(Duration::from_secs(10)).unwrap()[0].transport, Some(Transport::Udp));
    jails.mesh.set(&rule(53, Transport::Udp), Verdict::ToTheNode).unwrap();
    send("100.64.0.3:53").unwrap();
    assert_eq!(refusals.untold(), 0);
}

#[test]
fn a_network_that_is_not_admitted_reaches_itself_only() {
    if !may_run() {
        return;
    }
    let jails = Jails::new();
    let stranger = Network::new();
    let (own, away) = stranger.run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (TcpStream::connect(listener.local_addr().unwrap()), TcpStream::connect("100.64.0.3:80"))
    });
    own.unwrap();
    assert_eq!(away.unwrap_err().kind(), ErrorKind::PermissionDenied);
    // The node's own network is not a jail.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    jails.mesh.set(&rule(80, Transport::Tcp), Verdict::ToTheNode).unwrap();
    jails.connect("100.64.0.3:80").unwrap();
    jails.mesh.dismiss(Cookie::of(&jails.listener).unwrap());
    assert_eq!(jails.connect("100.64.0.3:80").unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn a_connection_whose_permission_is_withdrawn_gets_nothing_out() {
    if !may_run() {
        return;
    }
    let jails = Jails::new();
    jails.mesh.set(&rule(80, Transport::Tcp), Verdict::ToTheNode).unwrap();
    let mut client = jails.connect("100.64.0.3:80").unwrap();
    let (mut near, _) = jails.listener.accept().unwrap();
    client.write_all(b"before").unwrap();
    expect(&mut near, b"before");
    let refusals = jails.mesh.refusals().unwrap();
    jails.mesh.unset(&rule(80, Transport::Tcp));
    client.write_all(b"after").unwrap();
    let told = refusals.wait(Duration::from_secs(10)).unwrap();
    assert_eq!((told[0].network, told[0].caller, told[0].port), (None, Some(CALLER), 80));
    nothing(&mut near);
}

#[test]
fn what_is_pinned_outlasts_the_node() {
    if !may_run() {
        return;
    }
    let group = Group::enter();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().to_str().unwrap().to_owned();
    let mount = |arguments: &[&str], program| std::process::Command::new(program).args(arguments).status().unwrap();
    assert!(mount(&["-t", "bpf", "bpf", &target], "mount").success());
    let mut mesh = Mesh::attach(&group.path).unwrap();
    let pinned = mesh.pin(folder.path());
    drop(mesh);
    let away = || Network::new().run(|| TcpStream::connect("100.64.0.3:80").map(drop).map_err(|error| error.kind()));
    let during = away();
    assert!(mount(&[&target], "umount").success());
    pinned.unwrap();
    assert_eq!(during, Err(ErrorKind::PermissionDenied));
}
