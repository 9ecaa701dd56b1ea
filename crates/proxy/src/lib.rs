//! Carries one request from the socket to its upstream and back: the *corridor*.
//!
//! Read it in the order in which things happen: [`listen`] accepts, [`connection`] finds out who speaks and how, [`exchange`] is
//! the corridor itself, [`upstream`] forwards, [`record`] tells what happened. [`judge`] alone touches the sandbox, and the
//! [`ledger`] holds all that programs see as state. A [`node::Node`] is what all workers share, and [`listen::serve`] starts them.
#![forbid(unsafe_code)]

pub mod access_log;
pub mod admission;
pub mod body;
mod client;
mod clock;
pub mod component;
pub mod connection;
pub mod credential;
pub mod descriptors;
mod dial;
pub mod edits;
pub mod exchange;
pub mod extension;
pub mod failure;
mod framing;
pub mod head;
pub mod instances;
pub mod io;
pub mod judge;
pub mod jwks;
pub mod ledger;
pub mod listen;
pub mod metrics;
pub mod node;
mod outbox;
pub mod peer;
pub mod pool;
mod proxy_protocol;
pub mod random;
pub mod record;
pub mod replay;
pub mod reply;
pub mod retry;
pub mod ring;
pub mod route;
mod schedule;
pub mod shards;
pub mod signature;
pub mod snapshot;
pub mod span;
pub mod split;
pub mod tally;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod upgrade;
mod upload;
pub mod upstream;
pub mod withdrawn;
pub mod worker;

pub use listen::{Addresses, Handle, Options, ServeError, serve};
pub use node::Node;
pub use snapshot::{FunctionEntry, NodeSnapshot};
