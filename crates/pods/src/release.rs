//! The end of a capture.

use crate::error::CaptureError;
use crate::network::{PodNetwork, cookie};
use crate::routes::Routes;
use crate::settings::set_marks;
use leno_ebpf::{Network, PodState, Pods};
use leno_model::PodUid;
use std::thread;
use std::time::Duration;

/// A connection that the kernel has marked arrives at the listener within this time.
const ON_THE_WAY: Duration = Duration::from_millis(20);

/// Captures no further connections. Those that have arrived can still be accepted.
pub(crate) fn stop(pods: &Pods, cookie: Network) -> Result<(), CaptureError> {
    // One that was stopped before has nothing on the way any more.
    if let Some(state) = pods.state(cookie)?.filter(|state| state.captured || state.enforced) {
        pods.set_state(cookie, PodState { captured: false, enforced: false, ..state })?;
        thread::sleep(ON_THE_WAY);
    }
    pods.unlisten(cookie);
    Ok(())
}

/// Takes no further connections. The mode stays: the kernel drops new connections of an enforced pod.
pub(crate) fn leave(pods: &Pods, cookie: Network) -> Result<(), CaptureError> {
    if pods.state(cookie)?.is_some_and(|state| state.enforced) {
        pods.unlisten(cookie);
        return Ok(());
    }
    stop(pods, cookie)
}

/// Puts everything back as it was before the capture. The kernel keeps the pod's setting until the
/// last step, so this can be repeated.
pub(crate) fn release(pods: &Pods, network: &PodNetwork, uid: &PodUid) -> Result<(), CaptureError> {
    network.run(|| {
        let cookie = cookie()?;
        stop(pods, cookie)?;
        Routes::open()?.undo()?;
        if let Some(state) = pods.state(cookie)? {
            set_marks(state.kept)?;
        }
        Ok(pods.detach(&uid.to_string(), cookie)?)
    })
}
