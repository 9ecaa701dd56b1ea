//! Chains: functions of one node that share memory with each other, through the node
//! (`docs/decisions/0026-chains.md`).
//!
//! A [`Link`] connects the node with one instance. Descriptors of 16 bytes go through its socket
//! ([`descriptor`]) and say where messages are ([`message`]). A message has a head ([`head`]),
//! which the node copies before it judges the call, and a [`Body`], which is not copied. The node
//! treats everything that an instance sends as untrusted input: it refuses, counts and logs each
//! violation, and an instance never makes a worker wait.
//!
//! Each instance has two arenas ([`arena`]): the instance alone writes to one, and the node alone
//! to the other. The instance may write while the node reads, so the node only ever copies
//! ([`mapping`]).
//!
//! Without the feature `node`, this crate contains the parts that both ends need, and depends on no
//! async runtime.
#![deny(unsafe_code)] // allowed in `mapping` and `pool` alone

pub mod arena;
pub mod descriptor;
#[cfg(feature = "node")]
mod domain;
pub mod handshake;
pub mod head;
#[cfg(feature = "node")]
pub mod large_pages;
#[cfg(feature = "node")]
pub mod link;
#[allow(unsafe_code)]
pub mod mapping;
pub mod message;
#[allow(unsafe_code)]
pub mod pool;
#[cfg(feature = "node")]
mod region;
pub mod slab;
pub mod socket;
#[cfg(feature = "node")]
mod statistics;

#[cfg(feature = "node")]
pub use {
    domain::Domain,
    link::{
        Answer, Call, CallError, Context, End, Incoming, IncomingCall, Link, OpenError, Parent, Reply, SendError,
        Settings,
    },
    region::{Body, Writer},
    statistics::{Statistics, Violation, Violations},
};
