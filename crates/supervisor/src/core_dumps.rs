//! Core dumps of instances, which the machine's handler would receive.

use std::fs;

/// Keeps the memory of instances from the machine's handler of core dumps, which runs as root.
pub(crate) fn forbid() {
    const PATTERN: &str = "/proc/sys/kernel/core_pattern";
    let may_be_dumped = "a program that crashes may be given to the machine's handler of core dumps";
    if let Err(error) = leno_jail::forbid_core_dumps() {
        tracing::warn!(%error, "{may_be_dumped}");
    }
    if fs::read_to_string(PATTERN).is_ok_and(|pattern| pattern.starts_with('@')) {
        tracing::warn!("{may_be_dumped}: {PATTERN} names a socket, which no limit keeps the kernel from");
    }
}
