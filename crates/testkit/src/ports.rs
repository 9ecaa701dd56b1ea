//! Ports for servers that take a number and not a listener.

use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::{self, net::UnixListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// The kernel gives ports of 32,768 and above to outgoing connections. Ports below are safe: no
/// connection of another test takes one between this look and the start of a server.
const FIRST: u16 = 10_000;
const COUNT: u64 = 22_000;

/// A free port of the loopback interface, another one with each call. Test programs run at the same
/// time, so this program claims the port by an abstract Unix socket until it ends.
pub fn free_port() -> u16 {
    static CLAIMS: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU64::new(RandomState::new().hash_one(std::process::id()) % COUNT));
    (0..COUNT)
        .map(|_| FIRST + (next.fetch_add(1, Ordering::Relaxed) % COUNT) as u16)
        .find(|&port| {
            let claim = unix::net::SocketAddr::from_abstract_name(format!("leno-test-port-{port}")).unwrap();
            let Ok(claim) = UnixListener::bind_addr(&claim) else { return false };
            CLAIMS.lock().unwrap().push(claim);
            TcpListener::bind(("127.0.0.1", port)).is_ok()
        })
        .expect("one port is free")
}

/// Addresses of the loopback interface with free ports.
pub fn free_addresses<const COUNT: usize>() -> [SocketAddr; COUNT] {
    [(); COUNT].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())))
}
