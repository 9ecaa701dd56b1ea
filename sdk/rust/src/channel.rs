//! Channels: sockets between this instance and another function's instance, on which descriptors
//! pass without the node. The node attaches an eBPF program that rejects all other data.

use crate::arena::Part;
use leno_shm::descriptor::{self, BYTES, Descriptor, Kind};
use leno_shm::handshake::{End, Offer};
use leno_shm::mapping::Mapping;
use leno_shm::socket;
use rustix::event::epoll;
use rustix::net::SendFlags;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The limit of calls that are open or unreleased at a time. The place of a call is its number
/// modulo this.
const PLACES: u32 = 64;
/// The limit of descriptors in one message.
const MOST: usize = 8;

/// One end of a channel.
pub(crate) struct Channel {
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) end: End,
    /// The other instance's arena, read-only, and its number.
    pub(crate) peer: Arc<Mapping>,
    pub(crate) arena: u32,
    /// The epoll instances that watch it.
    watched_by: Vec<Arc<OwnedFd>>,
    /// How long a call may take.
    pub(crate) timeout: Option<Duration>,
    /// The callee's names.
    names: Vec<String>,
    /// At a callee's end, the value for `x-forwarded-client-cert`.
    caller: String,
    /// The channel takes no new calls.
    pub(crate) withdrawn: bool,
    /// The calls that occupy a place: at a caller's end until the answer is released, at a callee's
    /// until it is sent.
    places: [u32; PLACES as usize],
    last: u32,
    /// Messages that the other instance may still read, by the call's number.
    pub(crate) sent: HashMap<u32, SentMessage>,
    /// Answers that are not read any more, but whose release has not been sent to the callee yet.
    later: Vec<u32>,
}

/// A message and its body.
pub(crate) struct SentMessage {
    pub(crate) _message: Part,
    pub(crate) body: Option<Arc<Part>>,
}

/// Why a call did not begin.
pub(crate) enum Unsent {
    /// The channel must not be used for it.
    Refused,
    /// The channel has ended.
    Ended,
}

impl Channel {
    /// At a callee's end, the epoll instance `calls` watches the socket.
    pub(crate) fn new(offer: &Offer, socket: OwnedFd, peer: Arc<Mapping>, calls: &Arc<OwnedFd>) -> io::Result<Self> {
        let timeout = (offer.timeout_ms > 0).then(|| Duration::from_millis(offer.timeout_ms.into()));
        if offer.end == End::Caller {
            // A reader checks now and then whether a call has exceeded its timeout.
            rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, timeout)?;
        }
        let (names, caller) = offer.text.split_once('\n').unwrap_or((&offer.text, ""));
        let (names, caller) = (names.split(',').map(str::to_owned).collect(), caller.to_owned());
        let (places, sent, later, watched_by) = ([0; PLACES as usize], HashMap::new(), Vec::new(), Vec::new());
        let (end, arena, socket, withdrawn, last) = (offer.end, offer.arena, Arc::new(socket), false, 0);
        let mut channel =
            Self { socket, end, peer, arena, watched_by, timeout, names, caller, withdrawn, places, last, sent, later };
        if offer.end == End::Callee {
            channel.watch(offer.number, calls)?;
        }
        Ok(channel)
    }

    /// Adds the socket to an epoll instance.
    pub(crate) fn watch(&mut self, way: u32, by: &Arc<OwnedFd>) -> io::Result<()> {
        epoll::add(by, &self.socket, epoll::EventData::new_u64(way.into()), epoll::EventFlags::IN)?;
        self.watched_by.push(by.clone());
        Ok(())
    }

    pub(crate) fn watch_no_more(&mut self, by: &Arc<OwnedFd>) {
        if let Some(place) = self.watched_by.iter().position(|known| Arc::ptr_eq(known, by)) {
            // The socket is about to be closed.
            let _ = epoll::delete(self.watched_by.swap_remove(place), &self.socket);
        }
    }

    /// Whether calls to this name go over this channel.
    pub(crate) fn leads_to(&self, name: &str) -> bool {
        self.end == End::Caller && !self.withdrawn && self.is_named(name)
    }

    /// Whether this is a name of the callee.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// The caller's identity, as it is shown to the callee.
    pub(crate) fn caller(&self) -> &str {
        &self.caller
    }

    /// The number of calls that occupy a place.
    pub(crate) fn load(&self) -> usize {
        self.places.iter().filter(|number| **number != 0).count()
    }

    /// A call has arrived.
    pub(crate) fn take_place(&mut self, number: u32) {
        *self.place(number) = number;
    }

    /// An incoming call is answered.
    pub(crate) fn free_place(&mut self, number: u32) {
        let place = self.place(number);
        if *place == number {
            *place = 0;
        }
    }

    /// Whether an incoming call is open.
    pub(crate) fn has(&mut self, number: u32) -> bool {
        *self.place(number) == number
    }

    /// Whether a withdrawn channel has no open calls any more.
    pub(crate) fn is_done(&self) -> bool {
        self.withdrawn && self.load() == 0
    }

    /// Stops watching and reading the channel.
    pub(crate) fn end(&self) {
        for by in &self.watched_by {
            // The node holds the socket, too, so it would be watched for ever.
            let _ = epoll::delete(by, &self.socket);
        }
        // This wakes a thread that reads it.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
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

    /// Sends a descriptor of another kind than a call.
    pub(crate) fn tell(&mut self, descriptor: Descriptor) -> Result<(), Unsent> {
        self.tell_later(MOST - 1)?;
        self.send(Some(descriptor))
    }

    /// Ends a call that was answered. If it has no answer to release, its place is free.
    pub(crate) fn answered(&mut self, descriptor: &Descriptor) -> Option<SentMessage> {
        if descriptor.length == 0 {
            *self.place(descriptor.number) = 0;
        }
        self.sent.remove(&descriptor.number)
    }

    /// Schedules the release of an answer.
    pub(crate) fn release(&mut self, number: u32) {
        self.later.push(number);
    }

    /// Sends the delayed releases, except for `most`, which are sent together with another
    /// descriptor.
    pub(crate) fn tell_later(&mut self, most: usize) -> Result<(), Unsent> {
        while self.later.len() > most {
            self.send(None)?;
        }
        Ok(())
    }

    /// Sends delayed releases, and then `last`.
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
                // The kernel reports by this error that it does not let the call pass.
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
