//! Channels between programs of a chain: the node makes two sockets, one for the caller and one for
//! the callee.
//!
//! On its end, a program sends descriptors of messages in shared memory. The kernel checks each
//! descriptor, counts it, and puts it into the queue of the other end, so neither TCP nor the node
//! takes part. The kernel drops descriptors that are not allowed.

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

/// Most channels at once. The same number as in the eBPF program.
const MOST: u32 = 16_384;
/// Bytes of a message in an arena, before its head.
const FIXED: u32 = 64;

/// One end of a channel. The numbers are those of the eBPF program.
#[derive(Clone, Copy, Debug)]
enum Role {
    Caller = 0,
    Callee = 1,
    /// The end of no channel, which takes messages that are not allowed.
    Nobody = 2,
}

/// `struct end` of the eBPF program.
fn end(channel: u32, role: Role) -> [u8; 8] {
    let mut end = [0; 8];
    let (first, second) = end.split_at_mut(4);
    first.copy_from_slice(&channel.to_ne_bytes());
    second.copy_from_slice(&(role as u32).to_ne_bytes());
    end
}

/// The key of a socket in maps of sockets.
fn number(socket: &Socket) -> [u8; 8] {
    u64::try_from(socket.as_raw_fd()).unwrap_or(u64::MAX).to_ne_bytes()
}

/// The kind of a message that a program may not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChannelViolation {
    /// A message that is not 1 to 8 descriptors, or in which something follows a call.
    Packet,
    /// A descriptor of an unknown kind, of a kind that only the other end sends, or with a nonzero
    /// field that its kind does not use.
    Descriptor,
    /// A call whose number is not one of the 64 after the last, or whose place belongs to a call
    /// that is open or held.
    Number,
    /// A descriptor for a call that is not open, not held, or was never made.
    Stale,
    /// A message that does not lie in the sender's arena, or is too short or long.
    Slot,
}

impl ChannelViolation {
    /// All, in the order of [`Counts`].
    pub const ALL: [Self; 5] = [Self::Packet, Self::Descriptor, Self::Number, Self::Stale, Self::Slot];

    /// Its name in metrics and logs.
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

/// Limits of the messages of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the caller's own arena.
    pub caller_arena: u64,
    /// Bytes of the callee's own arena.
    pub callee_arena: u64,
    /// Most bytes of a head.
    pub head: u32,
}

/// Counters of the messages that passed a channel and of those that did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls.
    pub calls: u64,
    /// Answers with a message.
    pub answers: u64,
    /// Answers without a message: the call failed.
    pub failed: u64,
    /// Calls that the caller no longer waits for.
    pub cancelled: u64,
    /// Answers that the caller no longer reads.
    pub released: u64,
    /// Messages with a call after the channel was closed, and messages to an end that is gone or
    /// does not read.
    pub refused: u64,
    /// Calls without an answer yet.
    pub open: u32,
    /// Answers that the caller has not released.
    pub held: u32,
    /// Messages of the caller that were not allowed, in the order of [`ChannelViolation::ALL`].
    pub caller_violations: [u64; 5],
    /// The same of the callee.
    pub callee_violations: [u64; 5],
}

impl Counts {
    /// Reads `struct channel` of the eBPF program.
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

/// The kernel's maps of a node's channels. There is one for a node.
pub struct Channels {
    identities: MapHandle,
    channels: MapHandle,
    ends: MapHandle,
    /// The number of the last channel. No number is used twice.
    last: AtomicU32,
    /// The number of channels.
    count: AtomicU32,
    /// A socket on which nothing can be sent. Messages that are not allowed are redirected to it.
    _nobody: Socket,
}

impl fmt::Debug for Channels {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Channels").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Channels {
    /// Loads the eBPF program.
    ///
    /// # Errors
    /// Returns the kernel's refusal. A kernel before Linux 6.13 does not count the bytes in the
    /// queue of a socket, so programs could fill its memory.
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

    /// Makes a channel. Its ends are made in these networks, the caller's and the callee's.
    ///
    /// # Errors
    /// There are 16384 channels already, or the kernel has no memory.
    pub fn open(self: &Arc<Self>, networks: [&PrivateNetwork; 2], limits: &Limits) -> Result<OpenChannel, Error> {
        let [caller, callee] = networks;
        let (caller, callee) = (caller.end()?, callee.end()?);
        let given = [caller.try_clone()?, callee.try_clone()?];
        let one_more = |count: u32| (count < MOST).then_some(count + 1);
        if self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Err(io::Error::other(format!("a node has at most {MOST} channels")).into());
        }
        let id = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        // If the kernel refuses one of the next steps, dropping this removes the maps' entries.
        let channel = Channel { channels: self.clone(), id, caller, callee };
        self.channels.update(&id.to_ne_bytes(), &state(limits), MapFlags::NO_EXIST)?;
        for (role, socket) in channel.ends() {
            channel.identify(role, socket, false)?;
            self.ends.update(&end(id, role), &number(socket), MapFlags::NO_EXIST)?;
            // The eBPF program stores the socket's place, and drops this message.
            match socket.send(&[0; 16]) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Err(io::Error::other("the kernel does not look at what is sent").into()),
            }
        }
        let [caller, callee] = given.map(OwnedFd::from);
        Ok(OpenChannel { channel, caller, callee })
    }
}

/// The initial `struct channel` of the eBPF program.
fn state(limits: &Limits) -> Vec<u8> {
    const BYTES: usize = 24 * 8 + 64 * 4;
    let mut state = vec![0; 3 * 8];
    state.extend(limits.caller_arena.to_ne_bytes());
    state.extend(limits.callee_arena.to_ne_bytes());
    state.extend(limits.head.saturating_add(FIXED).to_ne_bytes());
    state.resize(BYTES, 0);
    state
}

/// An open channel.
#[derive(Debug)]
pub struct OpenChannel {
    /// The node's part of it.
    pub channel: Channel,
    /// The caller's end.
    ///
    /// Both ends are streams, and waiting messages are read as one. A blocking read may end with
    /// `EAGAIN` when another event happens to the socket, such as its end (Linux 6.18:
    /// `tcp_bpf_recvmsg`); then the program reads again. A message that is not allowed is not sent,
    /// and the program's write fails with `EINVAL`.
    pub caller: OwnedFd,
    /// The callee's end.
    pub callee: OwnedFd,
}

/// The node's handle of a channel. When this is dropped, both programs see the end of their
/// sockets, and lose the messages that they have not read.
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

    /// Tells the kernel which end of the channel a socket is.
    fn identify(&self, role: Role, socket: &Socket, closed: bool) -> Result<(), Error> {
        let mut identity = end(self.id, role).to_vec();
        identity.extend(u32::from(closed).to_ne_bytes());
        identity.extend([0; 4]);
        Ok(self.channels.identities.update(&socket.as_raw_fd().to_ne_bytes(), &identity, MapFlags::ANY)?)
    }

    /// The counters of the channel so far.
    pub fn counts(&self) -> Counts {
        let channel = self.channels.channels.lookup(&self.id.to_ne_bytes(), MapFlags::LOCK);
        channel.ok().flatten().and_then(|channel| Counts::read(&channel)).unwrap_or_default()
    }

    /// Blocks new calls. Answers, releases and cancels still pass.
    pub fn close(&self) {
        if self.identify(Role::Caller, &self.caller, true).is_err() {
            // The kernel has no memory. An end without identity cannot send at all.
            let _ = self.channels.identities.delete(&self.caller.as_raw_fd().to_ne_bytes());
        }
        // The kernel may be about to judge a call by the old identity. It judges with the socket
        // locked, and this option locks the socket too.
        let _ = self.caller.set_tcp_nodelay(true);
    }

    /// Whether one of the two programs has closed its end, or misuses the socket.
    pub fn has_ended(&self) -> bool {
        [&self.caller, &self.callee].into_iter().any(option::is_shut)
    }

    /// Whether no call is open or held.
    pub fn is_idle(&self) -> bool {
        let counts = self.counts();
        counts.open == 0 && counts.held == 0
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        for (_, socket) in self.ends() {
            // It fails if the program has disconnected the socket, which is fine.
            let _ = socket.shutdown(Shutdown::Both);
        }
        for (role, socket) in self.ends() {
            // They fail if the program has closed the socket, or if the entry was never there.
            let _ = self.channels.ends.delete(&end(self.id, role));
            let _ = self.channels.identities.delete(&socket.as_raw_fd().to_ne_bytes());
        }
        let _ = self.channels.channels.delete(&self.id.to_ne_bytes());
        self.channels.count.fetch_sub(1, Ordering::Relaxed);
    }
}
