//! The queue of packets to the instance. Sending never waits for the instance to read.

use super::End;
use crate::descriptor::{BYTES, Descriptor, MOST};
use crate::socket;
use rustix::net::{SendFlags, Shutdown};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// With so many deferred descriptors, they are sent at once.
const MOST_LATER: usize = 32;

#[derive(Default)]
pub(super) struct Outbound {
    queue: VecDeque<Item>,
    /// Descriptors that are sent along with the next packet, or after a while, because they alone
    /// are not worth waking the instance.
    later: Vec<Descriptor>,
    /// The reading task knows that there are deferred descriptors, or that the socket is full.
    knows: bool,
    full: bool,
}

enum Item {
    Descriptor(Descriptor),
    /// A packet that comes with a file.
    Packet(Vec<u8>, OwnedFd),
}

impl Outbound {
    pub(super) fn push(&mut self, descriptor: Descriptor) {
        self.push_all_later();
        self.queue.push_back(Item::Descriptor(descriptor));
    }

    pub(super) fn push_packet(&mut self, packet: Vec<u8>, file: OwnedFd) {
        self.push_all_later();
        self.queue.push_back(Item::Packet(packet, file));
    }

    pub(super) fn push_later(&mut self, descriptor: Descriptor) {
        self.later.push(descriptor);
        if self.later.len() >= MOST_LATER {
            self.push_all_later();
        }
    }

    pub(super) fn push_all_later(&mut self) {
        self.queue.extend(self.later.drain(..).map(Item::Descriptor));
    }

    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn has_later(&self) -> bool {
        !self.later.is_empty()
    }

    /// Whether the reading task must be woken because there is something to send.
    pub(super) fn takes_wake(&mut self) -> bool {
        let wake = !self.knows && (self.full || self.has_later());
        self.knows |= wake;
        wake
    }

    /// Records whether the reading task knows about the pending descriptors.
    pub(super) fn set_known(&mut self, knows: bool) {
        self.knows = knows;
    }

    /// Sends as much as the socket takes. If more than `most` descriptors remain, the instance
    /// counts as stuck.
    pub(super) fn send(&mut self, socket: &OwnedFd, most: usize) -> Result<(), End> {
        self.full = false;
        while let Some(first) = self.queue.front() {
            let (sent, count) = match first {
                Item::Packet(packet, file) => (socket::send(socket, packet, &[file.as_fd()], SendFlags::DONTWAIT), 1),
                Item::Descriptor(_) => {
                    let mut packet = [0; BYTES * MOST];
                    let mut count = 0;
                    for (item, bytes) in self.queue.iter().zip(packet.chunks_exact_mut(BYTES)) {
                        let Item::Descriptor(descriptor) = item else { break };
                        bytes.copy_from_slice(&descriptor.encode());
                        count += 1;
                    }
                    (socket::send(socket, &packet[..count * BYTES], &[], SendFlags::DONTWAIT), count)
                }
            };
            match sent {
                Ok(()) => drop(self.queue.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.full = true;
                    return if self.queue.len() > most { Err(End::Stuck) } else { Ok(()) };
                }
                // The other end reads no more. Packets that it sent before may be unread here: the
                // reading task finds the end of the socket after them.
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    self.queue.clear();
                    // The other end may have closed one direction only. Without this call, the
                    // reading task would find no end.
                    rustix::net::shutdown(socket, Shutdown::Both).map_err(|error| End::Socket(error.kind()))?;
                    return Ok(());
                }
                Err(error) => return Err(End::Socket(error.kind())),
            }
        }
        Ok(())
    }
}
