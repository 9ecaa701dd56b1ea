//! A node's side of the control plane.
//!
//! [`join`] gives an [`Agent`], which says what the node wants and has, and a queue of [`Update`]s, which say what it gets. The
//! stream behind them is kept up by a task of its own: while the control plane is away the node keeps everything that it was given, and when the
//! stream is back only what differs is sent.

mod agent;
mod desired;
mod identities;
mod stream;
mod update;

pub use agent::{Agent, Connection, JoinError, Options, SignFailure, Updates, join};
pub use identities::{Identities, Renewal};
pub use update::{Change, Update};

use backon::ExponentialBuilder;
use std::time::Duration;

/// Pauses after failures: 50 ms, twice that, and so on up to 3 s. Each is lengthened by up to its double at random, so that many nodes do
/// not come back at the same moment.
pub const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(50))
    .with_max_delay(Duration::from_secs(3))
    .with_factor(2.0)
    .with_jitter()
    .without_max_times();
