//! The first random numbers of a process.

use std::thread;

/// Begins to gather the seed of the process's random numbers, in the background. AWS-LC adds the
/// jitter of the processor to the kernel's random numbers, and needs some 20 ms for that before it
/// returns the first number.
pub(crate) fn gather() {
    // The first caller that needs a number waits for the seed. Without a thread, that caller gathers
    // it.
    let _ = thread::Builder::new().name("leno-random".to_owned()).spawn(|| aws_lc_rs::rand::fill(&mut [0]));
}
