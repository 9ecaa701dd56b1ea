//! The allocator of this program. An exchange allocates a hundred small things, some of which another thread frees: docs/decisions/0008.
#![allow(unsafe_code)]

use mimalloc::MiMalloc;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How often memory that was freed goes back to the system. The allocator does that by itself only while it is asked for more.
const PAUSE: Duration = Duration::from_secs(10);

/// Returns freed memory to the system every few seconds, such as the memory that a compiler or a
/// burst of requests used. Does not end.
pub(crate) async fn give_back() {
    loop {
        // SAFETY: it may be called at any time, on any thread.
        unsafe { libmimalloc_sys::mi_collect(true) };
        tokio::time::sleep(PAUSE).await;
    }
}
