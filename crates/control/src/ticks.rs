//! Periodic work of the control plane.

use crate::control::{Control, WeakControl};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Interval between decisions on active rollouts.
const ROLLOUT_TICK: Duration = Duration::from_millis(250);
/// Interval between checks of the control plane's own certificate.
const RENEWAL_TICK: Duration = Duration::from_secs(30);
/// Interval between decisions of the autoscaler.
const SCALE_TICK: Duration = Duration::from_millis(500);
/// Interval between checks of the nodes' progress, during a rotation of the authority.
const ROTATION_TICK: Duration = Duration::from_millis(250);
/// Interval between checks of the authority's expiry.
const EXPIRY_TICK: Duration = Duration::from_secs(3600);

/// Decides on rollouts, and sleeps while there are none.
pub(crate) async fn roll_out(control: WeakControl, begun: Arc<Notify>) -> Infallible {
    loop {
        let rolls_out = control.upgrade().is_some_and(|control| control.state().rolls_out());
        if !rolls_out {
            begun.notified().await;
            continue;
        }
        tokio::time::sleep(ROLLOUT_TICK).await;
        let Some(control) = control.upgrade() else { continue };
        let deciding = tokio::task::spawn_blocking(move || control.roll_out());
        let outcome = deciding.await.map_err(|error| error.to_string());
        if let Err(reason) = outcome.and_then(|outcome| outcome.map_err(|error| error.to_string())) {
            tracing::error!(reason, "a decision on a rollout is not in force; it is tried again");
        }
    }
}

/// Renews the control plane's own certificate at half of its lifetime.
pub(crate) async fn renew(control: WeakControl) -> Infallible {
    loop {
        tokio::time::sleep(RENEWAL_TICK).await;
        let Some(control) = control.upgrade() else { continue };
        let (svids, identity) = control.own();
        let due = svids.now().is_some_and(|now| svids.renew_due(now).contains(identity));
        if due && let Err(error) = control.renew() {
            tracing::error!(%error, "the control plane's certificate was not renewed; it is tried again");
        }
    }
}

/// Advances a rotation of the authority as far as the nodes' reports permit.
pub(crate) async fn rotate(control: WeakControl) -> Infallible {
    loop {
        tokio::time::sleep(ROTATION_TICK).await;
        let Some(control) = control.upgrade().filter(Control::rotates) else { continue };
        let advancing = tokio::task::spawn_blocking(move || control.advance_rotation());
        let outcome = advancing.await.map_err(|error| error.to_string());
        if let Err(reason) = outcome.and_then(|outcome| outcome.map_err(|error| error.to_string())) {
            tracing::error!(reason, "the rotation of the authority does not go on; it is tried again");
        }
    }
}

/// Warns long before the authority expires.
pub(crate) async fn watch_expiry(control: WeakControl) -> Infallible {
    loop {
        if let Some(control) = control.upgrade() {
            control.authority_status().warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        }
        tokio::time::sleep(EXPIRY_TICK).await;
    }
}

/// Lets the autoscaler decide on functions that have load, also while their nodes report nothing
/// new.
pub(crate) async fn scale(control: WeakControl) -> Infallible {
    loop {
        tokio::time::sleep(SCALE_TICK).await;
        if let Some(control) = control.upgrade() {
            control.when_free().await;
            control.scale();
        }
    }
}
