//! The node's end of the discovery stream.
//!
//! [`join`] returns an [`Agent`], which reports the node's state to the control plane, and a queue
//! of [`Update`]s. A task keeps the stream open. While the control plane is away, the node keeps
//! its last configuration. On a new stream, each end sends only differences. [`enrol`] makes a
//! machine a node.
#![forbid(unsafe_code)]

mod agent;
mod agent_state;
pub mod channel;
mod draining;
mod enrol;
mod identities;
mod known_addresses;
mod node_state;
mod platform_join;
mod questions;
mod signing;
mod stream;
mod update;

pub use agent::{Agent, Options, Updates, join, join_after};
pub use enrol::{JoinFailure, JoinOptions, enrol, settings};
pub use identities::{Identities, Renewal};
pub use platform_join::PlatformJoin;
pub use questions::{PendingQuestion, Questions};
pub use signing::SignFailure;
pub use stream::{Connection, ParentEvent, ParentProcess, Term};
pub use update::{Change, Update};

use backon::ExponentialBuilder;
use leno_identity::Membership;
use std::convert::Infallible;
use std::time::Duration;

/// Pauses after failures: 50 ms, doubling up to 1 s. Jitter adds up to the same time again, so that
/// many nodes do not reconnect at the same moment. A withdrawn permission must reach a node within
/// 5 s after another control plane has begun to lead.
pub const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(50))
    .with_max_delay(Duration::from_secs(1))
    .with_factor(2.0)
    .with_jitter()
    .without_max_times();

/// Interval between reads of the files that another process of the node writes.
const RELOAD: Duration = Duration::from_millis(200);

/// Follows the certificate that another process of this node renews and saves. `roots`: also the
/// roots, which the control plane does not deliver to this process yet.
pub async fn follow(membership: &Membership, roots: bool) -> Infallible {
    loop {
        tokio::time::sleep(RELOAD).await;
        if membership.reload(roots) {
            tracing::info!("the process that runs has renewed the node's certificate");
        }
    }
}
