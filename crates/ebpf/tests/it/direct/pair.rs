//! Two programs of a chain: the ends of a channel, and the descriptors that they send.

use leno_ebpf::{Channel, ChannelViolation, Channels, Counts, Limits, OpenChannel, PrivateNetwork};
use socket2::{SockAddr, Socket};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const CALL: u8 = 1;
pub(crate) const ANSWER: u8 = 2;
pub(crate) const RELEASE: u8 = 3;
pub(crate) const CANCEL: u8 = 4;
pub(crate) const HEAD: u32 = 4096;
pub(crate) const LIMITS: Limits = Limits { caller_arena: 1 << 20, callee_arena: 1 << 19, head: HEAD };

pub(crate) type Descriptor = [u8; 16];

pub(crate) fn descriptor(kind: u8, number: u32, slot: u32, length: u32) -> Descriptor {
    let mut bytes = [0; 16];
    bytes[0] = kind;
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..12].copy_from_slice(&slot.to_le_bytes());
    bytes[12..].copy_from_slice(&length.to_le_bytes());
    bytes
}

pub(crate) fn call(number: u32) -> Descriptor {
    descriptor(CALL, number, number % 64, 100)
}

pub(crate) fn answer(number: u32) -> Descriptor {
    descriptor(ANSWER, number, number % 64, 64)
}

pub(crate) fn failed(number: u32) -> Descriptor {
    descriptor(ANSWER, number, 0, 0)
}

pub(crate) fn release(number: u32) -> Descriptor {
    descriptor(RELEASE, number, 0, 0)
}

pub(crate) fn cancel(number: u32) -> Descriptor {
    descriptor(CANCEL, number, 0, 0)
}

/// A program's end.
pub(crate) struct End(pub(crate) Socket);

impl End {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let socket = Socket::from(socket);
        // Makes a broken test end.
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(socket)
    }

    pub(crate) fn send(&self, descriptors: &[Descriptor]) {
        assert_eq!(self.0.send(descriptors.as_flattened()).unwrap(), descriptors.len() * 16);
    }

    pub(crate) fn refused(&self, message: &[u8]) {
        let error = self.0.send(message).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::libc::EINVAL), "{message:?}");
    }

    pub(crate) fn receive(&self, descriptors: &[Descriptor]) {
        let mut found = vec![[0; 16]; descriptors.len()];
        (&self.0).read_exact(found.as_flattened_mut()).unwrap();
        assert_eq!(found, descriptors);
    }

    /// There is nothing to read.
    pub(crate) fn nothing(&self) {
        assert_eq!(self.available(), Vec::<u8>::new());
    }

    /// All bytes that can be read.
    pub(crate) fn available(&self) -> Vec<u8> {
        self.0.set_nonblocking(true).unwrap();
        let mut bytes = Vec::new();
        let ended = (&self.0).read_to_end(&mut bytes);
        self.0.set_nonblocking(false).unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::WouldBlock);
        bytes
    }

    pub(crate) fn ended(&self) {
        // A blocking read may end early.
        let read = || (&self.0).read(&mut [0; 16]);
        let read = std::iter::repeat_with(read).take(10).find(|read| !is_early(read)).unwrap();
        assert_eq!(read.unwrap(), 0);
    }

    /// Disconnects it.
    pub(crate) fn disconnect(&self) {
        let (_, nowhere) = {
            // SAFETY: all zeroes are an address of no family.
            #[expect(unsafe_code, reason = "an address that no crate makes")]
            unsafe {
                SockAddr::try_init(|_, length| {
                    *length = 16;
                    Ok(())
                })
            }
            .unwrap()
        };
        self.0.connect(&nowhere).unwrap();
    }
}

pub(crate) fn is_early<T>(read: &std::io::Result<T>) -> bool {
    read.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// The networks of a caller and of a callee.
pub(crate) fn networks() -> [PrivateNetwork; 2] {
    [PrivateNetwork::new().unwrap(), PrivateNetwork::new().unwrap()]
}

pub(crate) struct Pair {
    pub(crate) channel: Channel,
    pub(crate) caller: End,
    pub(crate) callee: End,
}

impl Pair {
    pub(crate) fn new(channels: &Arc<Channels>, networks: &[PrivateNetwork; 2]) -> Self {
        let OpenChannel { channel, caller, callee } = channels.open(networks.each_ref(), &LIMITS).unwrap();
        Self { channel, caller: End::new(caller), callee: End::new(callee) }
    }

    pub(crate) fn alone() -> Self {
        Self::new(&Arc::new(Channels::load().unwrap()), &networks())
    }

    pub(crate) fn exchange(&self, number: u32) {
        self.caller.send(&[call(number)]);
        self.callee.receive(&[call(number)]);
        self.callee.send(&[answer(number)]);
        self.caller.receive(&[answer(number)]);
        self.caller.send(&[release(number)]);
        self.callee.receive(&[release(number)]);
    }

    /// The kernel refuses a message of the caller, for this reason.
    pub(crate) fn caller_violates(&self, violation: ChannelViolation, message: &[u8]) {
        self.violates(&self.caller, |counts| &mut counts.caller_violations, violation, message);
    }

    pub(crate) fn callee_violates(&self, violation: ChannelViolation, message: &[u8]) {
        self.violates(&self.callee, |counts| &mut counts.callee_violations, violation, message);
    }

    pub(crate) fn violates(
        &self,
        end: &End,
        of: fn(&mut Counts) -> &mut [u64; 5],
        violation: ChannelViolation,
        message: &[u8],
    ) {
        let mut expected = self.channel.counts();
        let place = ChannelViolation::ALL.iter().position(|kind| *kind == violation).unwrap();
        of(&mut expected)[place] += 1;
        end.refused(message);
        assert_eq!(self.channel.counts(), expected, "{violation:?} {message:?}");
        self.caller.nothing();
        self.callee.nothing();
    }
}
