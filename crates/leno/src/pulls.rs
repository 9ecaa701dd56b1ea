//! Pulls of images of the node in this process, in a terminal. Elsewhere the node's log has them.

use crate::progress::{self, Progress};
use leno_model::FunctionId;
use leno_supervisor::{ImageState, PullProgress, Supervisor};
use std::collections::BTreeMap;
use std::time::Duration;

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// Pulls that are shown at the same time.
const MAX_SHOWN: usize = 8;

/// Shows pulls as long as the future is polled.
pub(crate) async fn show(supervisor: Supervisor) {
    let mut shown: BTreeMap<(FunctionId, u32), Progress> = BTreeMap::new();
    while progress::is_drawn() {
        let mut pulling: BTreeMap<(FunctionId, u32), PullProgress> = BTreeMap::new();
        for (function, revision, state) in supervisor.images() {
            if let ImageState::Pulling(progress) = state {
                pulling.insert((function, revision), progress);
            }
        }
        shown.retain(|id, _| pulling.contains_key(id));
        for (id, PullProgress { words, bytes, bytes_total }) in pulling {
            let text = format!("pulls the image of {}: {words}", id.0);
            let part = Some((bytes, bytes_total));
            match shown.get(&id) {
                Some(progress) => progress.set(text, part),
                None if shown.len() < MAX_SHOWN => drop(shown.insert(id, Progress::of(text))),
                None => {}
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
