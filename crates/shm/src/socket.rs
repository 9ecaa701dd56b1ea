//! Packets of a socket (`SOCK_SEQPACKET`), with and without file descriptors.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Most file descriptors in one packet.
const MOST_FILES: usize = 2;

/// Sends a packet as a whole. With `flags` that say so, it fails instead of blocking.
///
/// # Errors
/// The error of `sendmsg(2)`, such as [`io::ErrorKind::WouldBlock`].
pub fn send(socket: impl AsFd, packet: &[u8], files: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(packet)], &mut ancillary, flags))?;
    Ok(())
}

/// A received packet.
#[derive(Debug, Default)]
pub struct Packet {
    /// Bytes of the packet; 0: the other end is closed.
    pub bytes: usize,
    /// The files that came with it. They are closed on exec.
    pub files: Vec<OwnedFd>,
    /// The packet was longer than the buffer, or came with too many files.
    pub cut: bool,
}

/// Receives a packet.
///
/// # Errors
/// The error of `recvmsg(2)`, such as [`io::ErrorKind::WouldBlock`].
pub fn receive(socket: impl AsFd, into: &mut [u8], flags: RecvFlags) -> io::Result<Packet> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    receive_with(socket, into, flags, &mut RecvAncillaryBuffer::new(&mut space))
}

/// Receives a packet without files: the kernel closes those that come.
///
/// # Errors
/// As for [`receive`].
pub fn receive_bytes(socket: impl AsFd, into: &mut [u8], flags: RecvFlags) -> io::Result<Packet> {
    receive_with(socket, into, flags, &mut RecvAncillaryBuffer::default())
}

fn receive_with(
    socket: impl AsFd,
    into: &mut [u8],
    flags: RecvFlags,
    ancillary: &mut RecvAncillaryBuffer<'_>,
) -> io::Result<Packet> {
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut into = [IoSliceMut::new(into)];
    let message = loop {
        match recvmsg(&socket, &mut into, ancillary, flags) {
            // The other end closed and left packets unread. The kernel reports this once, before
            // the packets that had arrived earlier.
            Err(Errno::CONNRESET | Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut received = Packet { bytes: message.bytes, ..Packet::default() };
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            received.files.extend(files);
        }
    }
    received.cut = message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn what_was_sent_before_a_hasty_end_arrives() {
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        send(&near, b"never read", &[], SendFlags::empty()).unwrap();
        send(&far, b"answer", &[], SendFlags::empty()).unwrap();
        drop(far);
        let mut into = [0; 16];
        assert_eq!(receive(&near, &mut into, RecvFlags::DONTWAIT).unwrap().bytes, 6);
        assert_eq!(&into[..6], b"answer");
        assert_eq!(receive_bytes(&near, &mut into, RecvFlags::DONTWAIT).unwrap().bytes, 0, "the other end is closed");
    }
}
