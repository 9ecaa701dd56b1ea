//! Follows the frames of an HTTP/2 connection. The result is the same for any split of its bytes.
#![no_main]

use leno_http::inflow::Frames;
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

/// Whether the bytes are no flood, and how many bytes of a block of header fields they end in.
fn followed(bytes: &[u8], piece: usize) -> (bool, usize) {
    let mut frames = Frames::of_client(Arc::default());
    let sound = bytes.chunks(piece).all(|piece| frames.watch(piece).is_ok());
    (sound, frames.block())
}

// The size of the pieces in which the bytes arrive, and the bytes.
fuzz_target!(|input: &[u8]| {
    let Some((piece, bytes)) = input.split_first() else { return };
    let (whole, pieces) = (followed(bytes, usize::MAX), followed(bytes, usize::from(*piece).max(1)));
    assert_eq!(whole.0, pieces.0);
    assert!(!whole.0 || whole.1 == pieces.1);
});
