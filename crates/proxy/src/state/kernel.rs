//! The work that a node leaves to the kernel for connections of jails. The node implements it if
//! the kernel supports it.

use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use tokio::net::TcpStream;

/// The kernel's part of the data path. Its methods make system calls that take microseconds.
pub trait Kernel: Send + Sync + 'static {
    /// Updates the kernel's table of allowed connections (see [`crate::connection_rules`]), because
    /// the node has another snapshot.
    fn follow(&self);

    /// Watches for the program at the other end of a connection that is about to be made, from this
    /// socket and its address to this port, until the result is dropped.
    fn expect(&self, socket: BorrowedFd<'_>, bound: SocketAddr, port: u16) -> Option<Box<dyn Any + Send>>;

    /// Lets the kernel splice the connections of a caller and a callee, until the result is
    /// dropped. Bytes that the kernel does not splice still arrive at the two sockets. `None`: the
    /// kernel splices nothing.
    fn splice(&self, caller: &TcpStream, callee: &TcpStream) -> Option<Box<dyn Splice>>;
}

/// Two connections that are spliced.
pub trait Splice: Send {
    /// Bytes that the kernel has spliced: from the caller, and to it.
    fn bytes(&self) -> [u64; 2];
}
