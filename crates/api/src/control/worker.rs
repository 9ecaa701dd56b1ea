//! Long work of requests: on a thread with low priority, in the caller's turn, and cancelled with
//! the request.

use super::error::ApiError;
use super::turns::Turn;
use leno_config::Effort;
use rustix::process::{getpriority_process, setpriority_process};
use std::time::Duration;
use tokio::sync::oneshot;

/// Niceness of a thread that works for a request.
const NICE: i32 = 10;

/// Cancels the work of a request whose client has disconnected.
struct Waits(Effort);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Runs work on its own thread. The turn ends with the work, even if the client has disconnected.
pub(super) async fn apart<T: Send + 'static>(
    turn: Turn,
    limit: Duration,
    work: impl FnOnce(&Effort) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, Turn), ApiError> {
    let effort = Effort::within(limit);
    let _waits = Waits(effort.clone());
    let (done, outcome) = oneshot::channel();
    let run = move || {
        // For this call, the thread ID is the process. If it fails, the work still runs.
        if let Ok(before) = getpriority_process(None) {
            let _ = setpriority_process(None, before + NICE);
        }
        let result = work(&effort);
        let result = if effort.is_over() { Err(too_long(limit)) } else { result };
        // The client may have disconnected. Then the turn ends here.
        let _ = done.send(result.map(|value| (value, turn)));
    };
    let thread = std::thread::Builder::new().name("change".to_owned()).spawn(run);
    thread.map_err(|error| ApiError::Unavailable(format!("no thread for it: {error}")))?;
    outcome.await.map_err(|_| ApiError::Unavailable("the work on it was given up".to_owned()))?
}

fn too_long(limit: Duration) -> ApiError {
    ApiError::Unavailable(format!("checking the documents takes longer than {limit:?}; apply them in parts"))
}
