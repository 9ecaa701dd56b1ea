//! TCP connections between two jails, spliced by the kernel.
//!
//! The node has a connection from the caller, and one to the callee. Each ends in a program's
//! socket, which the kernel knows. When the two are spliced, the kernel puts each program's bytes
//! into the queue of the other's socket, unless that is full or earlier bytes are still passing
//! through the node. So the node continues to forward arriving bytes unchanged, and the ends of
//! both directions.

use crate::Error;
use crate::mesh::{Mesh, Network, Rule, Transport};
use libbpf_rs::{MapCore, MapFlags};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Two ends of a TCP connection, as one of its sockets sees them. The same as `struct ends` of the
/// eBPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    network: Network,
    local: SocketAddrV4,
    remote: SocketAddrV4,
}

impl Ends {
    /// The ends of a socket of the same network as this one.
    fn of(socket: BorrowedFd<'_>, local: SocketAddr, remote: SocketAddr) -> io::Result<Self> {
        let network = Network::of(socket)?;
        match (local, remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => Ok(Self { network, local, remote }),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is of IPv6")),
        }
    }

    fn key(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(24);
        key.extend(self.network.0.to_ne_bytes());
        key.extend(self.local.ip().octets());
        key.extend(self.remote.ip().octets());
        key.extend(self.local.port().to_ne_bytes());
        key.extend(self.remote.port().to_ne_bytes());
        key.extend([0; 4]);
        key
    }
}

/// Makes the kernel watch for the program's end of a connection that the node is about to open,
/// until this is dropped.
#[derive(Debug)]
pub struct SocketWatch {
    mesh: Arc<Mesh>,
    key: Vec<u8>,
}

impl Drop for SocketWatch {
    fn drop(&mut self) {
        let _ = self.mesh.expected.delete(&self.key);
    }
}

/// Two connections that are spliced. When this is dropped, all bytes go through the node again.
#[derive(Debug)]
pub struct Splice {
    mesh: Arc<Mesh>,
    /// The program's sockets.
    caller: Ends,
    callee: Ends,
}

impl Mesh {
    /// Makes the kernel watch for the program's end of a connection from `bound`, the address of a
    /// socket that is not connected yet, to this port of the same network.
    ///
    /// # Errors
    /// The socket is not bound to an IPv4 address, or the kernel has no memory.
    pub fn expect(self: &Arc<Self>, socket: impl AsFd, bound: SocketAddr, port: u16) -> Result<SocketWatch, Error> {
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let key = Ends::of(socket.as_fd(), to.into(), bound)?.key();
        self.expected.update(&key, &[1], MapFlags::ANY)?;
        Ok(SocketWatch { mesh: self.clone(), key })
    }

    /// Splices a caller's connection with the connection to its callee; their other ends are in two
    /// jails. Each comes with its own address and its peer's. `None`: the kernel does not know the
    /// sockets at the other ends.
    ///
    /// # Errors
    /// The kernel has no memory, or the addresses are not IPv4.
    pub fn splice(
        self: &Arc<Self>,
        caller: (impl AsFd, [SocketAddr; 2]),
        callee: (impl AsFd, [SocketAddr; 2]),
    ) -> Result<Option<Splice>, Error> {
        let (from, [local, remote]) = caller;
        let caller = Ends::of(from.as_fd(), remote, local)?;
        let (to, [local, remote]) = callee;
        let callee = Ends::of(to.as_fd(), remote, local)?;
        let half = |ends: &Ends| self.halves.lookup(&ends.key(), MapFlags::ANY);
        let (Some(sends), Some(receives)) = (half(&caller)?, half(&callee)?) else { return Ok(None) };
        let Some(function) = self.function(caller.network)? else { return Ok(None) };
        let rule = Rule {
            prefix: 32,
            caller: function,
            callee: *caller.remote.ip(),
            port: Some(caller.remote.port()),
            transport: Transport::Tcp,
        };
        let splice = Splice { mesh: self.clone(), caller, callee };
        self.pairs.update(&caller.key(), &pair(&callee, [&sends, &receives], &rule), MapFlags::ANY)?;
        self.pairs.update(&callee.key(), &pair(&caller, [&receives, &sends], &rule), MapFlags::ANY)?;
        Ok(Some(splice))
    }
}

/// `struct pair` of the eBPF program.
fn pair(receiver: &Ends, halves: [&Vec<u8>; 2], rule: &Rule) -> Vec<u8> {
    let mut pair = receiver.key();
    pair.extend([0; 8]);
    halves.into_iter().for_each(|half| pair.extend(half));
    pair.extend(rule.key());
    pair.extend([0; 4]);
    pair
}

impl Splice {
    /// The number of bytes that the kernel has put into the other program's queue: the caller's,
    /// and the callee's.
    pub fn bytes(&self) -> [u64; 2] {
        [&self.caller, &self.callee].map(|sender| {
            let pair = self.mesh.pairs.lookup(&sender.key(), MapFlags::ANY).ok().flatten();
            // The count follows the receiver's ends.
            pair.and_then(|pair| Some(u64::from_ne_bytes(*pair.get(24..)?.first_chunk()?))).unwrap_or_default()
        })
    }
}

impl Drop for Splice {
    fn drop(&mut self) {
        for sender in [&self.caller, &self.callee] {
            // The entry exists, unless the kernel is broken.
            let _ = self.mesh.pairs.delete(&sender.key());
        }
    }
}
