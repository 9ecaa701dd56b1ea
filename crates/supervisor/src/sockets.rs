//! TCP sockets of this machine as the kernel knows them. `sock_diag(7)` answers for one connection
//! in microseconds. On kernels without it, this reads `/proc/net/tcp` and `/proc/net/tcp6`.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

/// A TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    /// Local address.
    pub address: SocketAddr,
    pub state: State,
    /// User ID of the process that created it; 0 also for a connection that was not accepted yet.
    pub account: u32,
    /// Shown as `socket:[inode]` in `/proc/PID/fd`; 0: no process has the socket.
    pub inode: u64,
    /// An IPv6 socket that does not accept IPv4.
    v6_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Bytes can still arrive at its process.
    Open,
    /// The handshake is complete, but the listener does not get the connection yet (`TCP_DEFER_ACCEPT`).
    Arriving,
    Listening,
    /// Closed from this side, or completely.
    Closed,
}

impl Socket {
    /// Whether the connection waits in a listener's queue, so that no process has it yet.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.state, State::Open | State::Arriving) && self.inode == 0
    }
}

#[cfg(test)]
impl Socket {
    /// A socket at this address.
    pub(crate) fn listening(address: SocketAddr, state: State) -> Self {
        Self { address, state, account: 0, inode: 0, v6_only: false }
    }
}

impl State {
    /// Converts a state's number in `tcp_states.h`.
    fn of(number: u8) -> Self {
        match number {
            1 | 8 => Self::Open,
            3 | 12 => Self::Arriving,
            10 => Self::Listening,
            _ => Self::Closed,
        }
    }
}

/// The socket at `near` whose peer is at `far`, regardless of its process.
pub(crate) fn connection(near: SocketAddr, far: SocketAddr) -> io::Result<Option<Socket>> {
    let (near, far) = (canonical(near), canonical(far));
    let found = if kernel_tells() {
        ask(&request(family(near), REQUEST, u32::MAX, near, Some(far)))?
    } else {
        listed(|socket, peer| socket.address == near && peer == far)?
    };
    // Without such a connection, the kernel returns the listener.
    Ok(found.into_iter().find(|socket| socket.state != State::Listening))
}

/// All listening sockets at which a connection to `address` could arrive. There are several if they share a port (`SO_REUSEPORT`), or if one listens
/// on this address and another on all addresses.
pub(crate) fn listeners(address: SocketAddr) -> io::Result<Vec<Socket>> {
    let address = canonical(address);
    let mut all = listening(family(address), address)?;
    if address.is_ipv4() {
        all.extend(listening(AddressFamily::INET6, address)?.into_iter().filter(|socket| !socket.v6_only));
    }
    let reachable = |socket: &Socket| {
        let ip = socket.address.ip();
        let same_port = socket.address.port() == address.port() && socket.state == State::Listening;
        same_port && (ip == address.ip() || ip.is_unspecified())
    };
    all.retain(reachable);
    Ok(all)
}

fn listening(family: AddressFamily, address: SocketAddr) -> io::Result<Vec<Socket>> {
    const LISTEN: u32 = 1 << 10;
    let here = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
    if kernel_tells() {
        return ask(&request(family, REQUEST | DUMP, LISTEN, here, None));
    }
    listed(|socket, _| socket.state == State::Listening && socket.address.port() == address.port())
}

/// All listening sockets of the network of process `pid`.
pub(crate) fn listening_near(pid: u32) -> io::Result<Vec<Socket>> {
    listed_in(&format!("/proc/{pid}/net"), |socket, _| socket.state == State::Listening)
}

/// The paths of all listening Unix sockets of the network of process `pid`.
pub(crate) fn unix_near(pid: u32) -> Vec<String> {
    /// `__SO_ACCEPTCON`.
    const LISTENS: &str = "00010000";
    let table = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listening = rows.filter(|row| row.get(3) == Some(&LISTENS));
    listening.filter_map(|row| row.get(7).map(|path| (*path).to_owned())).collect()
}

/// Whether this kernel has `sock_diag` for TCP.
fn kernel_tells() -> bool {
    static TELLS: OnceLock<bool> = OnceLock::new();
    let nothing = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    *TELLS.get_or_init(|| ask_all(&request(AddressFamily::INET, REQUEST | DUMP, 0, nothing, None)).is_ok())
}

/// Turns IPv4-mapped IPv6 addresses into IPv4 addresses.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// `NLM_F_REQUEST` and `NLM_F_DUMP`.
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
/// Sizes of `struct nlmsghdr`, and of the structures after it in questions (`inet_diag_req_v2`) and
/// answers (`inet_diag_msg`).
const HEADER: usize = 16;
const QUESTION: usize = 56;
const ANSWER: usize = 72;

fn request(family: AddressFamily, flags: u16, states: u32, near: SocketAddr, far: Option<SocketAddr>) -> Vec<u8> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const TCP: u8 = 6;
    let mut message = Vec::with_capacity(HEADER + QUESTION);
    message.extend(((HEADER + QUESTION) as u32).to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // Sequence number and port ID of the sender. They can be 0, because the socket is used for one question only.
    message.extend([0; 8]);
    message.extend([family.as_raw() as u8, TCP, 0, 0]);
    message.extend(states.to_ne_bytes());
    message.extend(near.port().to_be_bytes());
    message.extend(far.map_or(0, |far| far.port()).to_be_bytes());
    message.extend(octets(near.ip()));
    message.extend(far.map_or([0; 16], |far| octets(far.ip())));
    // Any interface, no cookie.
    message.extend([0; 4]);
    message.extend([0xff; 8]);
    message
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&ip.octets());
            octets
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Asks the kernel. To find nothing is not an error.
fn ask(question: &[u8]) -> io::Result<Vec<Socket>> {
    match ask_all(question) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        answered => answered,
    }
}

/// Only the kernel can answer: other processes may not send to sockets of this kind.
fn ask_all(question: &[u8]) -> io::Result<Vec<Socket>> {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    send(&kernel, question, SendFlags::empty())?;
    let mut found = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        let (length, _) = recv(&kernel, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = buffer.get(..length).unwrap_or_default();
        while let Some(message) = Message::read(&mut rest) {
            match message.kind {
                DONE => return Ok(found),
                ERROR => {
                    let code = message.body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                    return Err(io::Error::from_raw_os_error(-code));
                }
                _ => found.extend(socket(message.body)),
            }
            if !message.more {
                return Ok(found);
            }
        }
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

struct Message<'a> {
    kind: u16,
    /// More messages follow.
    more: bool,
    body: &'a [u8],
}

impl<'a> Message<'a> {
    fn read(rest: &mut &'a [u8]) -> Option<Self> {
        const MULTI: u16 = 2;
        let header = rest.first_chunk::<HEADER>()?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let body = rest.get(HEADER..length)?;
        *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        let (kind, flags) = ([header[4], header[5]], [header[6], header[7]]);
        Some(Self { kind: u16::from_ne_bytes(kind), more: u16::from_ne_bytes(flags) & MULTI != 0, body })
    }
}

/// Parses one socket of an answer.
fn socket(body: &[u8]) -> Option<Socket> {
    const INET_DIAG_SKV6ONLY: u16 = 11;
    let (message, mut attributes) = body.split_first_chunk::<ANSWER>()?;
    let number = |at: usize| message.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    let source = message.get(8..24)?;
    let ip = if AddressFamily::from_raw(message[0].into()) == AddressFamily::INET {
        IpAddr::from(*source.first_chunk::<4>()?)
    } else {
        IpAddr::from(*source.first_chunk::<16>()?).to_canonical()
    };
    let mut v6_only = false;
    while let Some(&[a, b, c, d]) = attributes.first_chunk() {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        if u16::from_ne_bytes([c, d]) == INET_DIAG_SKV6ONLY {
            v6_only = attributes.get(4) == Some(&1);
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Socket {
        address: SocketAddr::new(ip, u16::from_be_bytes([message[4], message[5]])),
        state: State::of(message[1]),
        account: number(64)?,
        inode: number(68)?.into(),
        v6_only,
    })
}

/// Like [`ask`], but from `/proc`. Each call reads all sockets of the machine.
fn listed(wanted: impl Fn(&Socket, SocketAddr) -> bool) -> io::Result<Vec<Socket>> {
    listed_in("/proc/net", wanted)
}

/// The sockets of the network whose lists are in this folder.
fn listed_in(folder: &str, wanted: impl Fn(&Socket, SocketAddr) -> bool) -> io::Result<Vec<Socket>> {
    let mut found = Vec::new();
    for file in ["tcp", "tcp6"] {
        match fs::read_to_string(format!("{folder}/{file}")) {
            Ok(lines) => {
                let sockets = lines.lines().skip(1).filter_map(line);
                found.extend(sockets.filter(|(socket, peer)| wanted(socket, *peer)).map(|(socket, _)| socket));
            }
            // A machine without IPv6. Without IPv4 too, nothing is found.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Fields: number, local address, peer address, state, queues, timer, retransmissions, account, timeout, inode, …
fn line(line: &str) -> Option<(Socket, SocketAddr)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (address, peer) = (hexadecimal(fields.next()?)?, hexadecimal(fields.next()?)?);
    let state = State::of(u8::from_str_radix(fields.next()?, 16).ok()?);
    let mut fields = fields.skip(3);
    let account = fields.next()?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some((Socket { address, state, account, inode, v6_only: false }, peer))
}

/// Parses an address that is written in words of four octets, each in this machine's byte order.
fn hexadecimal(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            IpAddr::from(Ipv6Addr::from(*words.as_flattened().first_chunk::<16>()?)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, AsRawFd};

    fn inode(socket: &(impl AsFd + AsRawFd)) -> u64 {
        rustix::fs::fstat(socket).unwrap().st_ino
    }

    #[test]
    fn a_connection_is_found_at_both_ends_and_only_once_accepted_is_it_somebodys() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                eprintln!("no {address} on this machine");
                continue;
            };
            let ip = if address == "[::1]:0" { IpAddr::V6(Ipv6Addr::LOCALHOST) } else { Ipv4Addr::LOCALHOST.into() };
            let there = SocketAddr::new(ip, listener.local_addr().unwrap().port());
            let client = TcpStream::connect(there).unwrap();
            let here = client.local_addr().unwrap();

            let slow = listed(|socket, _| socket.state == State::Listening && socket.address.port() == there.port());
            for found in [listeners(there).unwrap(), slow.unwrap()] {
                assert_eq!(
                    found.iter().map(|socket| socket.inode).collect::<Vec<_>>(),
                    [inode(&listener)],
                    "{address}"
                );
            }
            let waiting = connection(there, here).unwrap().unwrap();
            assert_eq!((waiting.state, waiting.inode), (State::Open, 0), "{address}");

            let (server, _) = listener.accept().unwrap();
            let pairs = [(there, here, inode(&server)), (here, there, inode(&client))];
            for (near, far, inode) in pairs {
                let slow = listed(|socket, peer| socket.address == near && peer == far).unwrap().pop();
                for found in [connection(near, far).unwrap(), slow] {
                    assert_eq!(
                        found.map(|socket| (socket.state, socket.inode)),
                        Some((State::Open, inode)),
                        "{address}"
                    );
                }
            }
            drop(server);
            // A child that another test starts has the descriptor for a moment.
            leno_testkit::eventually("the end of the connection", || {
                connection(there, here).unwrap().is_none_or(|socket| socket.state == State::Closed)
            });
        }
    }

    #[test]
    fn all_that_share_a_port_are_found() {
        let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let bound = |address: SocketAddr| {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            rustix::net::sockopt::set_socket_reuseport(&socket, true).unwrap();
            rustix::net::bind(&socket, &address).unwrap();
            rustix::net::listen(&socket, 1).unwrap();
            TcpListener::from(socket)
        };
        let first = bound(address);
        let address = first.local_addr().unwrap();
        let second = bound(address);
        let mut found: Vec<u64> = listeners(address).unwrap().iter().map(|socket| socket.inode).collect();
        found.sort_unstable();
        let mut expected = [inode(&first), inode(&second)];
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}
