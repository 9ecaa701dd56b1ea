//! The allocator of this program. An exchange allocates a hundred small objects, and another thread
//! frees some of them: docs/decisions/0008.
#![allow(unsafe_code)]

use libmimalloc_sys::{mi_collect, mi_option_get, mi_option_set, mi_option_t};
use mimalloc::MiMalloc;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How often freed memory goes back to the system. By itself, the allocator returns memory only
/// while threads allocate.
const PAUSE: Duration = Duration::from_secs(10);

/// `mi_option_purge_delay`, which the crate does not name: milliseconds until freed memory goes back.
const PURGE_DELAY: mi_option_t = 15;

/// The start of a node. Freed memory goes back to the system at once, because small objects that
/// stay would otherwise be spread over pages that the start has used before.
pub(crate) struct Starting {
    /// The delay after the start.
    delay: std::ffi::c_long,
}

impl Starting {
    /// Begins the start.
    pub(crate) fn begin() -> Self {
        // SAFETY: any thread may read and set an option at any time.
        unsafe {
            let delay = mi_option_get(PURGE_DELAY);
            mi_option_set(PURGE_DELAY, 0);
            Self { delay }
        }
    }

    /// Ends the start, and then returns freed memory to the system every few seconds, such as the
    /// memory that a compiler or a burst of requests used. Does not end.
    pub(crate) async fn give_back(self) {
        // SAFETY: any thread may set an option at any time.
        unsafe { mi_option_set(PURGE_DELAY, self.delay) };
        loop {
            // SAFETY: any thread may call it at any time.
            unsafe { mi_collect(true) };
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_the_one_that_is_meant() {
        // SAFETY: any thread may read an option at any time.
        let [delay, other] = [PURGE_DELAY, PURGE_DELAY + 1].map(|option| unsafe { mi_option_get(option) });
        assert_eq!((delay, other), (1000, 0), "the allocator's options have other numbers now");
    }
}
