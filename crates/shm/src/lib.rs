//! Chains: functions of one node that hand each other memory, through the node (`docs/decisions/0026-chains.md`).
//!
//! A [`Link`] connects the node with one instance. Descriptors of 16 bytes go through its socket ([`descriptor`]); they say where messages are
//! ([`message`]): a head ([`head`]), which the node copies before anybody judges it, and a [`Body`], which stays where it is. What the instance says
//! is input: whatever it must not say is refused, counted and named in the log, and it never makes a worker wait.
//!
//! Each instance has two arenas ([`arena`]): it alone writes to one, and the node alone to the other. What the node reads there may be written at the
//! same time, so it only ever copies ([`mapping`]).
//!
//! Without the feature `node` this crate is what both ends need, without a runtime.
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
