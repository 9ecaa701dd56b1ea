//! Channels: sockets on which descriptors go to another function's instance, and come from it, without the node. The kernel lets nothing else through.

use crate::arena::Part;
use leno_chain::descriptor::{self, BYTES, Descriptor, Kind};
use leno_chain::handshake::{End, Offer};
use leno_chain::mapping::Mapping;
use leno_chain::socket;
use rustix::net::SendFlags;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Calls that can be open or unreleased at a time. The place of a call is its number modulo this.
const PLACES: u32 = 64;
/// Most descriptors in one message.
const MOST: usize = 8;

/// One end of a channel.
pub(crate) struct Channel {
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) end: End,
    /// Where the other instance writes.
    pub(crate) peer: Arc<Mapping>,
    /// How long a call may take.
    pub(crate) timeout: Option<Duration>,
    /// Names of the callee, or what `x-forwarded-client-cert` is to say.
    text: String,
    /// No call may begin any more.
    pub(crate) withdrawn: bool,
    /// At a caller's end, the calls that take a place.
    places: [u32; PLACES as usize],
    last: u32,
    /// What the other instance may be reading, by the call's number.
    pub(crate) sent: HashMap<u32, Sent>,
    /// Answers that are not read any more, and of which the callee was not told.
    later: Vec<u32>,
}

/// A message and its body.
pub(crate) struct Sent {
    pub(crate) _message: Part,
    pub(crate) body: Option<Arc<Part>>,
}

/// Why a call did not begin.
pub(crate) enum Unsent {
    /// The channel is not to be used for it.
    Refused,
    /// The channel has ended.
    Ended,
}

impl Channel {
    pub(crate) fn new(offer: &Offer, socket: OwnedFd, peer: Arc<Mapping>) -> io::Result<Self> {
        let timeout = (offer.timeout_ms > 0).then(|| Duration::from_millis(offer.timeout_ms.into()));
        if offer.end == End::Caller {
            // Whoever reads looks now and then whether a call has taken too long.
            rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, timeout)?;
        }
        let (places, sent, later) = ([0; PLACES as usize], HashMap::new(), Vec::new());
        let (end, text, socket) = (offer.end, offer.text.clone(), Arc::new(socket));
        Ok(Self { socket, end, peer, timeout, text, withdrawn: false, places, last: 0, sent, later })
    }

    /// Whether calls to this name go here.
    pub(crate) fn leads_to(&self, name: &str) -> bool {
        self.end == End::Caller && !self.withdrawn && self.text.split(',').any(|known| known.eq_ignore_ascii_case(name))
    }

    /// What the callee is told of who calls.
    pub(crate) fn caller(&self) -> &str {
        &self.text
    }

    /// Calls that take a place.
    pub(crate) fn load(&self) -> usize {
        self.places.iter().filter(|number| **number != 0).count()
    }

    fn place(&mut self, number: u32) -> &mut u32 {
        &mut self.places[(number % PLACES) as usize]
    }

    fn next_number(&mut self) -> Option<u32> {
        let mut number = self.last;
        for _ in 0..PLACES {
            number = descriptor::next(number);
            if *self.place(number) == 0 {
                return Some(number);
            }
        }
        None
    }

    /// Begins a call. Returns its number.
    pub(crate) fn call(&mut self, slot: u32, length: u32) -> Result<u32, Unsent> {
        self.tell_later(MOST - 1)?;
        let number = self.next_number().ok_or(Unsent::Refused)?;
        self.send(Some(Descriptor::message(Kind::Call, number, slot, length)))?;
        self.last = number;
        *self.place(number) = number;
        Ok(number)
    }

    /// Sends something else than a call.
    pub(crate) fn tell(&mut self, descriptor: Descriptor) -> Result<(), Unsent> {
        self.tell_later(MOST - 1)?;
        self.send(Some(descriptor))
    }

    /// The call is answered. Without an answer its place is free.
    pub(crate) fn answered(&mut self, descriptor: &Descriptor) -> Option<Sent> {
        if descriptor.length == 0 {
            *self.place(descriptor.number) = 0;
        }
        self.sent.remove(&descriptor.number)
    }

    /// An answer is not read any more.
    pub(crate) fn release(&mut self, number: u32) {
        self.later.push(number);
    }

    /// Sends what was left for later, but for so many that go along with something else.
    pub(crate) fn tell_later(&mut self, most: usize) -> Result<(), Unsent> {
        while self.later.len() > most {
            self.send(None)?;
        }
        Ok(())
    }

    /// Sends releases, and then this.
    fn send(&mut self, last: Option<Descriptor>) -> Result<(), Unsent> {
        let count = self.later.len().min(MOST - usize::from(last.is_some()));
        let releases = self.later[..count].iter().map(|number| Descriptor::number(Kind::Release, *number));
        let (mut message, mut length) = ([0; BYTES * MOST], 0);
        for (descriptor, bytes) in releases.chain(last).zip(message.chunks_exact_mut(BYTES)) {
            bytes.copy_from_slice(&descriptor.encode());
            length += BYTES;
        }
        socket::send(&self.socket, &message[..length], &[], SendFlags::empty()).map_err(|error| {
            match error.kind() {
                // So the kernel says that it does not let something through.
                io::ErrorKind::InvalidInput if last.is_some_and(|last| last.kind == Kind::Call) => Unsent::Refused,
                _ => Unsent::Ended,
            }
        })?;
        for number in self.later.drain(..count).collect::<Vec<_>>() {
            *self.place(number) = 0;
        }
        Ok(())
    }
}
