//! Socket options that no crate has.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `SO_MEMINFO`: an array of `u32`, the first of which is the memory of what was received and not read.
pub(crate) const MEMORY: libc::c_int = 55;
/// `SO_NETNS_COOKIE`: the number of the socket's network, an `u64`.
pub(crate) const NETWORK: libc::c_int = 71;

/// Something that any bytes are a value of.
///
/// # Safety
/// Every pattern of bits is one.
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

/// Has a TCP socket refuse to send anything (`TCP_REPAIR`): whoever tries is told `EINVAL`.
#[expect(unsafe_code, reason = "a system call")]
pub(crate) fn repair(socket: impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&on)).unwrap_or_default();
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `length` bytes of `on`, which has as many and outlives the call.
    let failed =
        unsafe { libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, (&raw const on).cast(), length) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether one of the directions of a connection has ended.
#[expect(unsafe_code, reason = "a system call")]
pub(crate) fn is_shut(socket: impl AsFd) -> bool {
    let events = libc::POLLRDHUP;
    let mut polled = libc::pollfd { fd: socket.as_fd().as_raw_fd(), events, revents: 0 };
    // SAFETY: the kernel reads and writes this one structure, which outlives the call, and does not wait.
    let count = unsafe { libc::poll(&raw mut polled, 1, 0) };
    count > 0 && polled.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}
