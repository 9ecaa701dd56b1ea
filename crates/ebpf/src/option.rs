//! Socket options that no other crate offers.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `SO_MEMINFO`: an array of `u32`. The first is the memory of the bytes that were received and not
/// read.
pub(crate) const MEMORY: libc::c_int = 55;
/// `SO_NETNS_COOKIE`: the number of the socket's network, an `u64`.
pub(crate) const NETWORK: libc::c_int = 71;

/// A type of which any bytes are a value.
///
/// # Safety
/// Every pattern of bits is a value.
#[expect(unsafe_code, reason = "what it promises the compiler cannot see")]
pub(crate) unsafe trait Plain: Copy {
    const ZERO: Self;
}

#[expect(unsafe_code, reason = "integers")]
// SAFETY: any 64 bits are a number.
unsafe impl Plain for u64 {
    const ZERO: Self = 0;
}

#[expect(unsafe_code, reason = "integers")]
// SAFETY: any 32 bits are a number.
unsafe impl<const N: usize> Plain for [u32; N] {
    const ZERO: Self = [0; N];
}

/// Reads an option of the level `SOL_SOCKET`.
#[expect(unsafe_code, reason = "a system call")]
pub(crate) fn get<T: Plain>(socket: impl AsFd, option: libc::c_int) -> io::Result<T> {
    let mut value = T::ZERO;
    let mut length = libc::socklen_t::try_from(size_of::<T>()).unwrap_or_default();
    // SAFETY: the kernel writes at most `length` bytes to `value`, which has as many and may be any bytes; both outlive the call.
    let failed = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length)
    };
    if failed == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// `TCP_REPAIR`: on, off, and off without a packet that asks the other end for its window.
const ON: libc::c_int = 1;
const OFF_WITHOUT_PROBE: libc::c_int = -1;

/// Makes a TCP socket refuse to send: each attempt fails with `EINVAL`. It connects without the
/// other end.
pub(crate) fn repair(socket: impl AsFd) -> io::Result<()> {
    set_repair(socket, ON)
}

/// Takes [`repair`] back.
pub(crate) fn repaired(socket: impl AsFd) -> io::Result<()> {
    set_repair(socket, OFF_WITHOUT_PROBE)
}

#[expect(unsafe_code, reason = "a system call")]
fn set_repair(socket: impl AsFd, value: libc::c_int) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or_default();
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `length` bytes of `value`, which has as many and outlives the call.
    let failed =
        unsafe { libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, (&raw const value).cast(), length) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether a TCP connection has changed since it was made: one of its directions has ended, or it
/// is disconnected.
#[expect(unsafe_code, reason = "system calls")]
pub(crate) fn is_shut(socket: impl AsFd) -> bool {
    /// `TCP_ESTABLISHED`, the first byte of `TCP_INFO`.
    const ESTABLISHED: u8 = 1;
    let socket = socket.as_fd().as_raw_fd();
    let mut polled = libc::pollfd { fd: socket, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: the kernel reads and writes this one structure, which outlives the call, and does not wait.
    let count = unsafe { libc::poll(&raw mut polled, 1, 0) };
    if count > 0 && polled.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0 {
        return true;
    }
    let (mut state, mut length) = (0_u8, 1);
    // SAFETY: the kernel writes at most `length` bytes to `state`, which has as many and may be any byte; both outlive the call.
    let failed = unsafe {
        libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &raw mut length)
    };
    failed != 0 || state != ESTABLISHED
}
