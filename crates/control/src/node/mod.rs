//! A node's side of the control plane.
//!
//! [`join`] gives an [`Agent`], which says what the node wants and has, and a queue of [`Update`]s, which say what it gets. The
//! stream behind them is kept up by a task of its own: while the control plane is away the node keeps everything that it was given, and when the
//! stream is back only what differs is sent.

mod agent;
mod backoff;
mod desired;
mod identities;
mod stream;
mod update;

pub use agent::{Agent, Connection, JoinError, Options, SignFailure, Updates, join};
pub use backoff::Backoff;
pub use identities::{Identities, Renewal};
pub use update::{Change, Update};
