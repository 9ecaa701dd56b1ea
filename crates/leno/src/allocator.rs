//! The allocator of this program. An exchange allocates a hundred small objects, and another thread
//! frees some of them: docs/decisions/0008.
#![allow(unsafe_code)]

use mimalloc::MiMalloc;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How often freed memory goes back to the system. By itself, the allocator returns memory only
/// while threads allocate.
const PAUSE: Duration = Duration::from_secs(10);

/// Returns freed memory to the system every few seconds, such as the memory that a compiler or a
/// burst of requests used. Does not end.
pub(crate) async fn give_back() {
    loop {
        // SAFETY: any thread may call it at any time.
        unsafe { libmimalloc_sys::mi_collect(true) };
        tokio::time::sleep(PAUSE).await;
    }
}
