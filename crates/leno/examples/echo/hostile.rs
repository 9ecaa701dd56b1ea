//! A function that sends random messages to the node and to its peers.

use rustix::net::{SendFlags, send};
use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};

/// Most descriptors in one message.
const BATCH: usize = 8;
const BYTES: usize = 16;

/// Sends random descriptors and malformed messages on all sockets of this process.
pub(crate) fn scribble(time: Duration) {
    let begin = Instant::now();
    let (mut random, mut sent) = (0x9e37_79b9_7f4a_7c15_u64, 0_u64);
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    while begin.elapsed() < time {
        for socket in sockets() {
            for _ in 0..100 {
                let count = 1 + next() as usize % BATCH;
                let mut message = [0; BYTES * BATCH];
                for descriptor in message.chunks_exact_mut(BYTES).take(count) {
                    // Mostly numbers and places that exist.
                    let (number, slot, length) = (next() as u32 % 64, next() as u32 % 512, next() as u32 % 256);
                    descriptor[0] = next() as u8 % 10;
                    descriptor[4..8].copy_from_slice(&number.to_le_bytes());
                    descriptor[8..12].copy_from_slice(&slot.to_le_bytes());
                    descriptor[12..].copy_from_slice(&length.to_le_bytes());
                    if next() % 16 == 0 {
                        descriptor[next() as usize % BYTES] = next() as u8;
                    }
                }
                let length = if next() % 16 == 0 { next() as usize % message.len() } else { count * BYTES };
                // SAFETY: the descriptor may name another file by now. Sending these bytes to any
                // file of this process does not affect the memory of this process.
                #[expect(unsafe_code, reason = "sockets that the library has")]
                let socket = unsafe { BorrowedFd::borrow_raw(socket) };
                sent += u64::from(send(socket, &message[..length], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok());
            }
        }
    }
    println!("{sent} messages were sent that nobody wants");
}

/// The numbers of this process's sockets.
fn sockets() -> Vec<RawFd> {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let is_socket = |path: &std::path::Path| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    let paths = open.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_socket(path));
    paths.filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect()
}
