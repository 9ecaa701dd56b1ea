//! Channels between programs of a chain: two sockets that the node makes for a caller and a callee.
//!
//! What a program sends on its end are descriptors of messages in shared memory. The kernel looks at each, counts it, and puts it into the queue of the
//! other end, so neither TCP nor the node has anything to do with it. What is not allowed goes nowhere.

crate::skeleton!("/direct.skel.rs");

use crate::{Error, PrivateNetwork, option, queue};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use skeleton::DirectSkelBuilder;
use socket2::Socket;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Channels that there can be at once. The same as in the kernel's part.
const MOST: u32 = 16_384;
/// Bytes of a message in an arena, before its head.
const FIXED: u32 = 64;

/// One end of a channel. The numbers are those of the kernel's part.
#[derive(Clone, Copy, Debug)]
enum Role {
    Caller = 0,
    Callee = 1,
    /// Of no channel: takes what is not allowed.
    Nobody = 2,
}

/// `struct end` of the kernel's part.
fn end(channel: u32, role: Role) -> [u8; 8] {
    let mut end = [0; 8];
    let (first, second) = end.split_at_mut(4);
    first.copy_from_slice(&channel.to_ne_bytes());
    second.copy_from_slice(&(role as u32).to_ne_bytes());
    end
}

/// How maps of sockets are told of one.
fn number(socket: &Socket) -> [u8; 8] {
    u64::try_from(socket.as_raw_fd()).unwrap_or(u64::MAX).to_ne_bytes()
}

/// A kind of what a program may not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChannelViolation {
    /// A message that is not 1 to 8 descriptors, or with something after a call.
    Packet,
    /// A descriptor of no kind, of one that is the other end's, or with something where there is nothing.
    Descriptor,
    /// A call whose number is not one of the 64 after the last, or whose place is taken by one that is open or held.
    Number,
    /// About a call that is not open, not held, or was never made.
    Stale,
    /// A message that does not lie in the sender's arena, or is too short or long.
    Slot,
}

impl ChannelViolation {
    /// All, in the order in which [`Counts`] has them.
    pub const ALL: [Self; 5] = [Self::Packet, Self::Descriptor, Self::Number, Self::Stale, Self::Slot];

    /// What it is called in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Descriptor => "descriptor",
            Self::Number => "number",
            Self::Stale => "stale",
            Self::Slot => "slot",
        }
    }
}

/// What both ends may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the caller's own arena.
    pub caller_arena: u64,
    /// Bytes of the callee's own arena.
    pub callee_arena: u64,
    /// Most bytes of a head.
    pub head: u32,
}

/// What went through a channel, and what did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls.
    pub calls: u64,
    /// Answers with a message.
    pub answers: u64,
    /// Answers without one: the call failed.
    pub failed: u64,
    /// Calls that nobody waits for any more.
    pub cancelled: u64,
    /// Answers that are not read any more.
    pub released: u64,
    /// Messages with a call after the channel was closed, and those to an end that is gone or does not read.
    pub refused: u64,
    /// Calls that are not answered.
    pub open: u32,
    /// Answers that are not released.
    pub held: u32,
    /// Messages of the caller that were not allowed, in the order of [`ChannelViolation::ALL`].
    pub caller_violations: [u64; 5],
    /// The same of the callee.
    pub callee_violations: [u64; 5],
}

impl Counts {
    /// Reads `struct channel` of the kernel's part.
    fn read(channel: &[u8]) -> Option<Self> {
        let word = |place: usize| Some(u64::from_ne_bytes(*channel.get(place * 8..)?.first_chunk()?));
        let words = |first: usize| -> Option<[u64; 5]> {
            let mut words = [0; 5];
            for (place, found) in (first..).zip(&mut words) {
                *found = word(place)?;
            }
            Some(words)
        };
        Some(Self {
            open: word(1)?.count_ones(),
            held: word(2)?.count_ones(),
            calls: word(8)?,
            answers: word(9)?,
            failed: word(10)?,
            cancelled: word(11)?,
            released: word(12)?,
            refused: word(13)?,
            caller_violations: words(14)?,
            callee_violations: words(19)?,
        })
    }
}

/// What the kernel knows of a node's channels. There is one for a node.
pub struct Channels {
    identities: MapHandle,
    channels: MapHandle,
    ends: MapHandle,
    /// The number of the last channel. None is used twice.
    last: AtomicU32,
    /// How many there are.
    count: AtomicU32,
    /// A socket on which nothing can be sent. Messages that are not allowed go there.
    _nobody: Socket,
}

impl fmt::Debug for Channels {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Channels").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Channels {
    /// Loads the kernel's part.
    ///
    /// # Errors
    /// Says what the kernel refuses. One before Linux 6.13 does not count what is in the queue of a socket, so programs could fill its memory.
    pub fn load() -> Result<Self, Error> {
        if !queue::is_counted()? {
            let needed = "this kernel does not count what is in the queue of a socket (Linux 6.13 does)";
            return Err(io::Error::new(io::ErrorKind::Unsupported, needed).into());
        }
        let nobody = PrivateNetwork::new()?.end()?;
        let mut place = MaybeUninit::uninit();
        let skeleton = DirectSkelBuilder::default().open(&mut place)?.load()?;
        let maps = &skeleton.maps;
        skeleton.progs.judge.attach_sockmap(maps.ends.as_fd().as_raw_fd())?;
        option::repair(&nobody)?;
        maps.ends.update(&end(0, Role::Nobody), &number(&nobody), MapFlags::ANY)?;
        Ok(Self {
            identities: MapHandle::try_from(&maps.identities)?,
            channels: MapHandle::try_from(&maps.channels)?,
            ends: MapHandle::try_from(&maps.ends)?,
            last: AtomicU32::new(0),
            count: AtomicU32::new(0),
            _nobody: nobody,
        })
    }

    /// Makes a channel. Its ends are made in these networks: the caller's and the callee's.
    ///
    /// # Errors
    /// There are 16384 already, or the kernel has no memory.
    pub fn open(self: &Arc<Self>, networks: [&PrivateNetwork; 2], limits: &Limits) -> Result<Opened, Error> {
        let [caller, callee] = networks;
        let (caller, callee) = (caller.end()?, callee.end()?);
        let given = [caller.try_clone()?, callee.try_clone()?];
        let one_more = |count: u32| (count < MOST).then_some(count + 1);
        if self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Err(io::Error::other(format!("a node has at most {MOST} channels")).into());
        }
        let id = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        // If the kernel refuses something, this is dropped, and removes what there is.
        let channel = Channel { channels: self.clone(), id, caller, callee };
        self.channels.update(&id.to_ne_bytes(), &state(limits), MapFlags::NO_EXIST)?;
        for (role, socket) in channel.ends() {
            channel.identify(role, socket, false)?;
            self.ends.update(&end(id, role), &number(socket), MapFlags::NO_EXIST)?;
            // The kernel's part takes note of where the socket is, and has this go nowhere.
            match socket.send(&[0; 16]) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Err(io::Error::other("the kernel does not look at what is sent").into()),
            }
        }
        let [caller, callee] = given.map(OwnedFd::from);
        Ok(Opened { channel, caller, callee })
    }
}

/// `struct channel` of the kernel's part, as it is in the beginning.
fn state(limits: &Limits) -> Vec<u8> {
    const BYTES: usize = 24 * 8 + 64 * 4;
    let mut state = vec![0; 3 * 8];
    state.extend(limits.caller_arena.to_ne_bytes());
    state.extend(limits.callee_arena.to_ne_bytes());
    state.extend(limits.head.saturating_add(FIXED).to_ne_bytes());
    state.resize(BYTES, 0);
    state
}

/// A channel that has begun.
#[derive(Debug)]
pub struct Opened {
    /// The node's part of it.
    pub channel: Channel,
    /// The caller's end.
    ///
    /// Both are streams, and messages that wait are read as one. A read that waits may end with `EAGAIN` although nobody asked not to wait, when
    /// something else happens to the socket (Linux 6.18: `tcp_bpf_recvmsg`), such as its end; then the program reads again. What is not allowed
    /// is not sent, and the program is told `EINVAL`.
    pub caller: OwnedFd,
    /// The callee's end.
    pub callee: OwnedFd,
}

/// A channel, as the node has it. When this is dropped, both programs see the end of their sockets, and what they have not read is lost.
#[derive(Debug)]
pub struct Channel {
    channels: Arc<Channels>,
    id: u32,
    caller: Socket,
    callee: Socket,
}

impl Channel {
    fn ends(&self) -> [(Role, &Socket); 2] {
        [(Role::Caller, &self.caller), (Role::Callee, &self.callee)]
    }

    /// Says whose end a socket is.
    fn identify(&self, role: Role, socket: &Socket, closed: bool) -> Result<(), Error> {
        let mut identity = end(self.id, role).to_vec();
        identity.extend(u32::from(closed).to_ne_bytes());
        identity.extend([0; 4]);
        Ok(self.channels.identities.update(&socket.as_raw_fd().to_ne_bytes(), &identity, MapFlags::ANY)?)
    }

    /// What went through it so far.
    pub fn counts(&self) -> Counts {
        let channel = self.channels.channels.lookup(&self.id.to_ne_bytes(), MapFlags::LOCK);
        channel.ok().flatten().and_then(|channel| Counts::read(&channel)).unwrap_or_default()
    }

    /// Lets no new calls through. Answers, releases and cancels still pass.
    pub fn close(&self) {
        if self.identify(Role::Caller, &self.caller, true).is_err() {
            // The kernel has no memory. An end without identity sends nothing at all.
            let _ = self.channels.identities.delete(&self.caller.as_raw_fd().to_ne_bytes());
        }
        // A call may be about to be judged by what was known before. The kernel judges with the socket locked, and locks it for this, too.
        let _ = self.caller.set_tcp_nodelay(true);
    }

    /// Whether one of the two programs has ended its end, or uses the socket otherwise.
    pub fn has_ended(&self) -> bool {
        [&self.caller, &self.callee].into_iter().any(option::is_shut)
    }

    /// Whether nothing is open or held.
    pub fn is_idle(&self) -> bool {
        let counts = self.counts();
        counts.open == 0 && counts.held == 0
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        for (_, socket) in self.ends() {
            // It fails if the program has disconnected it, which is fine.
            let _ = socket.shutdown(Shutdown::Both);
        }
        for (role, socket) in self.ends() {
            // They fail if the program has closed it, or if it was never there.
            let _ = self.channels.ends.delete(&end(self.id, role));
            let _ = self.channels.identities.delete(&socket.as_raw_fd().to_ne_bytes());
        }
        let _ = self.channels.channels.delete(&self.id.to_ne_bytes());
        self.channels.count.fetch_sub(1, Ordering::Relaxed);
    }
}
