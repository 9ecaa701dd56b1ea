//! What a node has the kernel do with the connections of rooms. The node provides it, where the kernel can.

use super::node::Node;
use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use tokio::net::TcpStream;

/// The kernel's part. Its methods make system calls that take microseconds.
pub trait Kernel: Send + Sync + 'static {
    /// Puts in force which connections the node's current snapshot allows (see [`crate::connections::rules`]).
    fn follow(&self, node: &Node);

    /// Looks for the program at the other end of a connection that is about to be made, from this socket and its address to this port. It does so until
    /// the result is dropped.
    fn expect(&self, socket: BorrowedFd<'_>, bound: SocketAddr, port: u16) -> Option<Box<dyn Any + Send>>;

    /// Has the kernel carry bytes between a caller's connection and a callee's, until the result is dropped. What it does not carry goes on arriving at
    /// the two. `None`: it carries none.
    fn splice(&self, caller: &TcpStream, callee: &TcpStream) -> Option<Box<dyn Spliced>>;
}

/// Two connections that are spliced.
pub trait Spliced: Send {
    /// How many bytes the kernel has carried: from the caller, and to it.
    fn bytes(&self) -> [u64; 2];
}
