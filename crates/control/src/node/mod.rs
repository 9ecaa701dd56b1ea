//! The node's side of the control plane.
//!
//! [`join`] returns an [`Agent`], which tells what the node wants and has, and a queue of [`Update`]s. A task keeps the stream open. While the
//! control plane is away, the node keeps everything that it was given. When the stream is back, only differences are sent.

mod agent;
mod desired;
mod identities;
mod questions;
mod replaced;
mod stream;
mod update;

pub use agent::{Agent, Connection, Options, Predecessor, SignFailure, Succession, Term, Updates, join, succeed};
pub use identities::{Identities, Renewal};
pub use questions::{Asked, Questions};
pub use update::{Change, Update};

use backon::ExponentialBuilder;
use std::time::Duration;

/// Pauses after failures: 50 ms, doubling up to 1 s. Jitter adds up to the same time again, so that many nodes do not come back at the same moment. A node has
/// to hear of a withdrawn permission within 5 s after another control plane has begun to lead.
pub const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(50))
    .with_max_delay(Duration::from_secs(1))
    .with_factor(2.0)
    .with_jitter()
    .without_max_times();
