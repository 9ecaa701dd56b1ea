//! Whether an instance that was ready still serves.
//!
//! The supervisor probes an instance repeatedly, as when it started, and requests report failures
//! too. The instance is lost after several failures in a row:
//!
//! - **Probes.** A refused connection and an answer that says that it is not ready are failures. A probe without an answer is one only while no request
//!   waits for the instance's response: a program that does one thing at a time cannot answer a probe while it works.
//! - **Connections of requests.** One that fails brings the next probe forward, and no further request goes to the instance until a probe succeeds.
//! - **Time-outs of requests.** One counts if the instance has had the function's whole request timeout and has sent nothing to any request meanwhile, and if
//!   the request came after the last one that counted. Two are enough where a probe gets no answer either.

use crate::dialer::{Dialer, is_refusal};
use crate::dispatcher::{Dispatcher, Slot};
use crate::readiness::{self, NotReady};
use leno_model::{AppProtocol, Liveness, Readiness};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Interval between probes of an instance that may be lost.
const SHORT_INTERVAL: Duration = Duration::from_secs(1);
/// A probe that hangs is given up after this time. A busy machine may take longer than it did when the instance started.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The parameters of an instance's probes.
pub(crate) struct Probes<'a> {
    pub address: SocketAddr,
    pub readiness: &'a Readiness,
    pub protocol: AppProtocol,
    pub dialer: &'a Dialer,
    pub liveness: Liveness,
}

impl Probes<'_> {
    /// Whether the probes ever find that the instance is lost. The end of a chain's link is reported separately.
    pub(crate) fn can_lose(&self) -> bool {
        !self.liveness.interval.is_zero() && self.protocol != AppProtocol::Chain
    }

    /// Resolves when the instance is lost, with the reason.
    pub(crate) async fn lost(&self, slot: &Slot, dispatcher: &Arc<Dispatcher>) -> String {
        let Liveness { interval, failures: most } = self.liveness;
        if !self.can_lose() {
            return std::future::pending().await;
        }
        let mut failures = 0;
        loop {
            let pause = if failures > 0 { interval.min(SHORT_INTERVAL) } else { interval };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = slot.health.suspected() => {}
            }
            if slot.health.timeouts() >= most {
                return format!("{most} requests in a row have timed out, and it has sent nothing");
            }
            match self.ask(slot).await {
                Ok(()) => {
                    failures = 0;
                    if slot.health.restore() {
                        dispatcher.hand_over();
                    }
                }
                Err(NotReady::Timeout) if slot.awaiting() > 0 => {
                    let count = slot.health.timeouts();
                    if count >= 2 {
                        return format!(
                            "{count} requests in a row and a probe have timed out, and it has sent nothing"
                        );
                    }
                }
                Err(NotReady::Connection(error)) if !is_refusal(&error) => {
                    tracing::debug!(instance = %slot.id, %error, "the node cannot ask the instance");
                }
                Err(error) => {
                    failures += 1;
                    if failures >= most {
                        return format!("it was ready, and {failures} probes in a row have failed: {error}");
                    }
                }
            }
        }
    }

    async fn ask(&self, slot: &Slot) -> Result<(), NotReady> {
        let limit = PROBE_TIMEOUT.min(self.liveness.interval.max(SHORT_INTERVAL));
        readiness::ask(self.address, self.readiness, self.protocol, self.dialer, limit).await?;
        if *self.readiness != Readiness::Tcp {
            slot.health.heard();
        }
        Ok(())
    }
}
