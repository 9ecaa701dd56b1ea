//! Messages that pass between two programs of a chain, and messages that the kernel refuses.

use crate::networks::may_run;
use leno_ebpf::{Channel, ChannelViolation, Channels, Counts, Limits, OpenChannel, PrivateNetwork};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

const CALL: u8 = 1;
const ANSWER: u8 = 2;
const RELEASE: u8 = 3;
const CANCEL: u8 = 4;
const HEAD: u32 = 4096;
const LIMITS: Limits = Limits { caller_arena: 1 << 20, callee_arena: 1 << 19, head: HEAD };

type Descriptor = [u8; 16];

fn descriptor(kind: u8, number: u32, slot: u32, length: u32) -> Descriptor {
    let mut bytes = [0; 16];
    bytes[0] = kind;
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..12].copy_from_slice(&slot.to_le_bytes());
    bytes[12..].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn call(number: u32) -> Descriptor {
    descriptor(CALL, number, number % 64, 100)
}

fn answer(number: u32) -> Descriptor {
    descriptor(ANSWER, number, number % 64, 64)
}

fn failed(number: u32) -> Descriptor {
    descriptor(ANSWER, number, 0, 0)
}

fn release(number: u32) -> Descriptor {
    descriptor(RELEASE, number, 0, 0)
}

fn cancel(number: u32) -> Descriptor {
    descriptor(CANCEL, number, 0, 0)
}

/// A program's end.
struct End(Socket);

impl End {
    fn new(socket: OwnedFd) -> Self {
        let socket = Socket::from(socket);
        // Makes a broken test end.
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(socket)
    }

    fn send(&self, descriptors: &[Descriptor]) {
        assert_eq!(self.0.send(descriptors.as_flattened()).unwrap(), descriptors.len() * 16);
    }

    fn refused(&self, message: &[u8]) {
        let error = self.0.send(message).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::libc::EINVAL), "{message:?}");
    }

    fn receive(&self, descriptors: &[Descriptor]) {
        let mut found = vec![[0; 16]; descriptors.len()];
        (&self.0).read_exact(found.as_flattened_mut()).unwrap();
        assert_eq!(found, descriptors);
    }

    /// There is nothing to read.
    fn nothing(&self) {
        assert_eq!(self.available(), Vec::<u8>::new());
    }

    /// All bytes that can be read.
    fn available(&self) -> Vec<u8> {
        self.0.set_nonblocking(true).unwrap();
        let mut bytes = Vec::new();
        let ended = (&self.0).read_to_end(&mut bytes);
        self.0.set_nonblocking(false).unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::WouldBlock);
        bytes
    }

    fn ended(&self) {
        // A blocking read may end early.
        let read = || (&self.0).read(&mut [0; 16]);
        let read = std::iter::repeat_with(read).take(10).find(|read| !is_early(read)).unwrap();
        assert_eq!(read.unwrap(), 0);
    }

    /// Disconnects it.
    fn disconnect(&self) {
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

fn is_early<T>(read: &std::io::Result<T>) -> bool {
    read.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// The networks of a caller and of a callee.
fn networks() -> [PrivateNetwork; 2] {
    [PrivateNetwork::new().unwrap(), PrivateNetwork::new().unwrap()]
}

struct Pair {
    channel: Channel,
    caller: End,
    callee: End,
}

impl Pair {
    fn new(channels: &Arc<Channels>, networks: &[PrivateNetwork; 2]) -> Self {
        let OpenChannel { channel, caller, callee } = channels.open(networks.each_ref(), &LIMITS).unwrap();
        Self { channel, caller: End::new(caller), callee: End::new(callee) }
    }

    fn alone() -> Self {
        Self::new(&Arc::new(Channels::load().unwrap()), &networks())
    }

    fn exchange(&self, number: u32) {
        self.caller.send(&[call(number)]);
        self.callee.receive(&[call(number)]);
        self.callee.send(&[answer(number)]);
        self.caller.receive(&[answer(number)]);
        self.caller.send(&[release(number)]);
        self.callee.receive(&[release(number)]);
    }

    /// The kernel refuses a message of the caller, for this reason.
    fn caller_violates(&self, violation: ChannelViolation, message: &[u8]) {
        self.violates(&self.caller, |counts| &mut counts.caller_violations, violation, message);
    }

    fn callee_violates(&self, violation: ChannelViolation, message: &[u8]) {
        self.violates(&self.callee, |counts| &mut counts.callee_violations, violation, message);
    }

    fn violates(&self, end: &End, of: fn(&mut Counts) -> &mut [u64; 5], violation: ChannelViolation, message: &[u8]) {
        let mut expected = self.channel.counts();
        let place = ChannelViolation::ALL.iter().position(|kind| *kind == violation).unwrap();
        of(&mut expected)[place] += 1;
        end.refused(message);
        assert_eq!(self.channel.counts(), expected, "{violation:?} {message:?}");
        self.caller.nothing();
        self.callee.nothing();
    }
}

#[test]
fn a_call_its_answer_and_its_release_arrive_and_are_counted() {
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    assert_eq!(pair.channel.counts(), Counts::default());
    assert!(pair.channel.is_idle());
    let sent = descriptor(CALL, 1, 16_383 - 1, 128);
    pair.caller.send(&[sent]);
    pair.callee.receive(&[sent]);
    assert_eq!(pair.channel.counts(), Counts { calls: 1, open: 1, ..Counts::default() });
    assert!(!pair.channel.is_idle());
    let answered = descriptor(ANSWER, 1, 0, 64 + HEAD);
    pair.callee.send(&[answered]);
    pair.caller.receive(&[answered]);
    assert_eq!(pair.channel.counts(), Counts { calls: 1, answers: 1, held: 1, ..Counts::default() });
    assert!(!pair.channel.is_idle());
    pair.caller.send(&[release(1)]);
    pair.callee.receive(&[release(1)]);
    let all = Counts { calls: 1, answers: 1, released: 1, ..Counts::default() };
    assert_eq!(pair.channel.counts(), all);
    assert!(pair.channel.is_idle());
}

#[test]
fn a_call_that_fails_is_released_at_once() {
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    pair.caller.send(&[call(1)]);
    pair.callee.receive(&[call(1)]);
    pair.callee.send(&[failed(1)]);
    pair.caller.receive(&[failed(1)]);
    assert_eq!(pair.channel.counts(), Counts { calls: 1, failed: 1, ..Counts::default() });
    pair.caller_violates(ChannelViolation::Stale, &release(1));
    // The place of the call is free again.
    pair.caller.send(&[call(65)]);
    pair.callee.receive(&[call(65)]);
}

#[test]
fn a_message_has_several_descriptors_and_they_are_read_as_a_stream() {
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    for number in 1..=7 {
        pair.caller.send(&[call(number)]);
    }
    pair.callee.receive(&[1, 2, 3, 4, 5, 6, 7].map(call));
    // Eight descriptors in one message: a later one takes a place that earlier ones free.
    pair.callee.send(&[1, 2, 3, 4, 5, 6, 7].map(answer));
    let mut message = [1, 2, 3, 4, 5, 6, 7].map(release).to_vec();
    message.push(call(65));
    pair.caller.send(&message);
    assert_eq!(pair.callee.available(), message.as_flattened());
    assert_eq!(pair.caller.available(), [1, 2, 3, 4, 5, 6, 7].map(answer).as_flattened());
    let counts = Counts { calls: 8, answers: 7, released: 7, open: 1, ..Counts::default() };
    assert_eq!(pair.channel.counts(), counts);
    // A message written in several pieces is one message.
    let sent = pair.callee.0.send_vectored(&[IoSlice::new(&answer(65)[..5]), IoSlice::new(&answer(65)[5..])]);
    assert_eq!(sent.unwrap(), 16);
    pair.caller.receive(&[answer(65)]);
}

#[test]
fn what_is_not_allowed_goes_nowhere_and_what_is_allowed_still_passes() {
    use ChannelViolation::{Descriptor, Number, Packet, Slot, Stale};
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    pair.exchange(1);
    let mut number = 1;
    let mut still_passes = || {
        number += 1;
        pair.exchange(number);
    };
    let (mut one, mut other) = (call(2), call(2));
    one[1] = 1;
    other[3] = 1;
    for message in [
        &descriptor(0, 2, 0, 64),
        &descriptor(5, 2, 0, 64),
        &descriptor(255, 2, 0, 64),
        &answer(1),
        &descriptor(RELEASE, 1, 1, 0),
        &descriptor(RELEASE, 1, 0, 64),
        &descriptor(CANCEL, 1, 1, 0),
        &one,
        &other,
    ] {
        pair.caller_violates(Descriptor, message);
    }
    for message in [&call(2), &release(1), &cancel(1), &descriptor(0, 1, 0, 0), &descriptor(6, 1, 0, 64)] {
        pair.callee_violates(Descriptor, message);
    }
    still_passes();
    for end in [Pair::caller_violates, Pair::callee_violates] {
        for size in [1, 15, 17, 9 * 16, 1024, 1 << 18] {
            end(&pair, Packet, &vec![1; size]);
        }
    }
    // A call must be the last and only call of a message.
    pair.caller_violates(Packet, [call(3), call(4)].as_flattened());
    pair.caller_violates(Packet, [call(3), cancel(1)].as_flattened());
    still_passes();
    for far in [0, 1, 3, 3 + 65, 1 << 31, u32::MAX] {
        pair.caller_violates(Number, &call(far));
    }
    still_passes();
    for message in [&release(4), &release(5), &release(0), &release(68), &cancel(0), &cancel(5)] {
        pair.caller_violates(Stale, message);
    }
    for message in [&answer(4), &answer(5), &failed(4), &failed(0), &answer(68)] {
        pair.callee_violates(Stale, message);
    }
    still_passes();
    let outside = [(0, 63), (0, 0), (0, 64 + HEAD + 1), (16_384, 64), (16_383, 65), (u32::MAX, 64), (0, u32::MAX)];
    for (slot, length) in outside {
        pair.caller_violates(Slot, &descriptor(CALL, 6, slot, length));
    }
    still_passes();
    pair.caller.send(&[call(7)]);
    pair.callee.receive(&[call(7)]);
    for (slot, length) in [(0, 63), (1, 0), (0, 64 + HEAD + 1), (8192, 64), (8191, 65), (u32::MAX, u32::MAX)] {
        pair.callee_violates(Slot, &descriptor(ANSWER, 7, slot, length));
    }
    pair.callee.send(&[descriptor(ANSWER, 7, 8191, 64)]);
    let counts = pair.channel.counts();
    assert_eq!(counts.caller_violations, [8, 9, 6, 6, 7]);
    assert_eq!(counts.callee_violations, [6, 5, 0, 5, 6]);
}

#[test]
fn a_message_with_one_descriptor_that_is_not_allowed_has_no_effect() {
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    for number in 1..=2 {
        pair.caller.send(&[call(number)]);
        pair.callee.receive(&[call(number)]);
    }
    // The same call twice.
    pair.callee_violates(ChannelViolation::Stale, [answer(1), answer(1)].as_flattened());
    pair.callee_violates(ChannelViolation::Stale, [answer(1), failed(2), answer(3)].as_flattened());
    pair.callee.send(&[answer(1), failed(2)]);
    pair.caller.receive(&[answer(1), failed(2)]);
    pair.caller_violates(ChannelViolation::Stale, [release(1), release(1)].as_flattened());
    pair.caller_violates(ChannelViolation::Slot, [release(1), descriptor(CALL, 3, 0, 1)].as_flattened());
    pair.caller_violates(ChannelViolation::Stale, [release(1), release(2), call(3)].as_flattened());
    pair.caller.send(&[release(1), call(3)]);
    pair.callee.receive(&[release(1), call(3)]);
}

#[test]
fn nobody_calls_again_or_answers_for_another_or_releases_what_is_not_held() {
    use ChannelViolation::{Number, Stale};
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    pair.caller.send(&[call(1)]);
    pair.callee.receive(&[call(1)]);
    pair.caller_violates(Number, &call(1));
    pair.caller_violates(Stale, &release(1));
    pair.callee_violates(Stale, &answer(2));
    // The same place.
    pair.callee_violates(Stale, &answer(65));
    pair.caller_violates(Number, &call(65));
    pair.callee.send(&[answer(1)]);
    pair.caller.receive(&[answer(1)]);
    pair.callee_violates(Stale, &answer(1));
    pair.caller_violates(Stale, &release(65));
    // The answer is held.
    pair.caller_violates(Number, &call(65));
    pair.caller_violates(Number, &call(1));
    pair.caller.send(&[release(1)]);
    pair.callee.receive(&[release(1)]);
    pair.caller_violates(Stale, &release(1));
    pair.caller.send(&[call(65)]);
    pair.callee.receive(&[call(65)]);
}

#[test]
fn a_cancel_passes_also_when_the_answer_was_faster() {
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    pair.caller.send(&[call(1)]);
    pair.caller.send(&[cancel(1)]);
    pair.callee.receive(&[call(1), cancel(1)]);
    pair.callee.send(&[answer(1)]);
    pair.caller.receive(&[answer(1)]);
    pair.caller.send(&[cancel(1), release(1)]);
    pair.callee.receive(&[cancel(1), release(1)]);
    pair.caller.send(&[cancel(1)]);
    pair.callee.receive(&[cancel(1)]);
    pair.caller_violates(ChannelViolation::Stale, &cancel(2));
    let counts = pair.channel.counts();
    assert_eq!((counts.cancelled, counts.released, counts.open, counts.held), (3, 1, 0, 0));
}

#[test]
fn numbers_may_be_skipped() {
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    let mut last = 0;
    for step in [64, 1, 63, 64, 2] {
        last += step;
        pair.exchange(last);
    }
    assert_eq!(pair.channel.counts().calls, 5);
}

#[test]
fn there_are_64_open_calls_at_most() {
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    let calls: Vec<_> = (1..=64).map(call).collect();
    for one in &calls {
        pair.caller.send(&[*one]);
    }
    pair.callee.receive(&calls);
    assert_eq!(pair.channel.counts().open, 64);
    pair.caller_violates(ChannelViolation::Number, &call(65));
    pair.caller_violates(ChannelViolation::Number, &call(66));
    pair.callee.send(&[answer(2)]);
    pair.caller.receive(&[answer(2)]);
    pair.caller.send(&[release(2), call(66)]);
    pair.callee.receive(&[release(2), call(66)]);
}

#[test]
fn a_closed_channel_ends_what_has_begun() {
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    for number in 1..=3 {
        pair.caller.send(&[call(number)]);
        pair.callee.receive(&[call(number)]);
    }
    pair.callee.send(&[answer(1)]);
    pair.caller.receive(&[answer(1)]);
    pair.channel.close();
    let refused = |count| {
        assert_eq!(pair.channel.counts().refused, count);
        pair.callee.nothing();
    };
    pair.caller.refused(&call(4));
    refused(1);
    // The whole message is refused.
    pair.caller.refused([release(1), call(4)].as_flattened());
    refused(2);
    assert_eq!(pair.channel.counts().held, 1);
    pair.caller.send(&[release(1), cancel(3)]);
    pair.callee.receive(&[release(1), cancel(3)]);
    pair.callee.send(&[answer(2), failed(3)]);
    pair.caller.receive(&[answer(2), failed(3)]);
    assert!(!pair.channel.is_idle());
    pair.caller.send(&[release(2)]);
    assert!(pair.channel.is_idle());
    let counts = pair.channel.counts();
    assert_eq!((counts.caller_violations, counts.callee_violations), ([0; 5], [0; 5]));
}

#[test]
fn the_node_knows_when_a_program_has_ended_its_end() {
    if !may_run() {
        return;
    }
    let channels = Arc::new(Channels::load().unwrap());
    let network = networks();
    for of_caller in [true, false] {
        let pair = Pair::new(&channels, &network);
        pair.exchange(1);
        assert!(!pair.channel.has_ended());
        let end = if of_caller { &pair.caller } else { &pair.callee };
        end.0.shutdown(std::net::Shutdown::Write).unwrap();
        while !pair.channel.has_ended() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn both_programs_see_the_end() {
    if !may_run() {
        return;
    }
    let channels = Arc::new(Channels::load().unwrap());
    let network = networks();
    let Pair { channel, caller, callee } = Pair::new(&channels, &network);
    let other = Pair::new(&channels, &network);
    std::thread::scope(|scope| {
        // One read that is already blocked, and one that comes later.
        scope.spawn(|| caller.ended());
        drop(channel);
    });
    callee.ended();
    assert!(caller.0.send(&call(1)).is_err());
    assert!(callee.0.send(&answer(1)).is_err());
    other.exchange(1);
    // The same for many, one after another.
    for _ in 0..200 {
        Pair::new(&channels, &network).exchange(1);
    }
}

#[test]
fn an_end_may_be_given_to_another_program() {
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    let (from, to) = UnixStream::pair().unwrap();
    let sockets = [pair.callee.0.as_raw_fd()];
    sendmsg::<()>(
        from.as_raw_fd(),
        &[IoSlice::new(b"x")],
        &[ControlMessage::ScmRights(&sockets)],
        MsgFlags::empty(),
        None,
    )
    .unwrap();
    let mut byte = [0];
    let mut pieces = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!([i32; 1]);
    let received = recvmsg::<()>(to.as_raw_fd(), &mut pieces, Some(&mut space), MsgFlags::empty()).unwrap();
    let Some(ControlMessageOwned::ScmRights(given)) = received.cmsgs().unwrap().next() else { panic!("no socket") };
    // SAFETY: the kernel has just made the descriptor for this process, and no other code has it.
    #[expect(unsafe_code, reason = "descriptors that come with a message are numbers")]
    let given = End::new(unsafe { OwnedFd::from_raw_fd(given[0]) });
    let Pair { channel, caller, callee } = pair;
    drop(callee);
    caller.send(&[call(1)]);
    given.receive(&[call(1)]);
    given.send(&[answer(1)]);
    caller.receive(&[answer(1)]);
    assert_eq!(channel.counts().answers, 1);
}

#[test]
fn one_may_wait_for_an_end_with_others() {
    use nix::libc;
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    let ready = |end: &End, patience| {
        let mut asked = libc::pollfd { fd: end.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: it is one `pollfd`, and outlives the call.
        #[expect(unsafe_code, reason = "a system call")]
        unsafe {
            libc::poll(&raw mut asked, 1, patience)
        };
        asked.revents & libc::POLLIN != 0
    };
    assert!(!ready(&pair.callee, 0));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| ready(&pair.callee, 60_000));
        pair.caller.send(&[call(1)]);
        assert!(waits.join().unwrap());
    });
    pair.callee.receive(&[call(1)]);
    assert!(!ready(&pair.callee, 0));
    let Pair { channel, caller, callee } = pair;
    drop(channel);
    assert!(ready(&callee, 60_000) && ready(&caller, 60_000));
}

/// Numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Less than this.
    fn below(&mut self, end: u32) -> u32 {
        (self.next() >> 32) as u32 % end
    }
}

#[test]
fn a_hostile_caller_sends_nothing_but_valid_descriptors() {
    if !may_run() {
        return;
    }
    let channels = Arc::new(Channels::load().unwrap());
    let network = networks();
    let (hostile, other) = (Pair::new(&channels, &network), Pair::new(&channels, &network));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut passed, mut violated, mut last, mut quiet) = (0_u64, 0, 0, 0);
    for round in 0..100_000 {
        let mut message = [0; 16];
        if random.below(2) == 0 {
            message[..8].copy_from_slice(&random.next().to_ne_bytes());
            message[8..].copy_from_slice(&random.next().to_ne_bytes());
        } else {
            // An almost valid descriptor.
            let (kind, number) = (random.below(6) as u8, last + random.below(70));
            message = descriptor(kind, number, random.below(20_000), 60 + random.below(5000));
            if random.below(2) == 0 {
                message[8..].fill(0);
            }
        }
        let number = u32::from_le_bytes(*message[4..].first_chunk().unwrap());
        let slot = u32::from_le_bytes(*message[8..].first_chunk().unwrap());
        let length = u32::from_le_bytes(*message[12..].first_chunk().unwrap());
        if hostile.caller.0.send(&message).is_ok() {
            passed += 1;
            hostile.callee.receive(&[message]);
            assert_eq!(message[1..4], [0; 3]);
            match message[0] {
                CALL => {
                    assert!(number > last && number <= last + 64, "{number} after {last}");
                    assert!((64..=64 + HEAD).contains(&length));
                    assert!(u64::from(slot) * 64 + u64::from(length) <= LIMITS.caller_arena);
                    last = number;
                    // Keeps the places from being used up.
                    hostile.callee.send(&[failed(number)]);
                    hostile.caller.receive(&[failed(number)]);
                }
                CANCEL => assert!(last.wrapping_sub(number) < 1 << 31 && (slot, length) == (0, 0)),
                kind => panic!("{kind} passed"),
            }
        } else {
            violated += 1;
        }
        if round % 1000 == 0 {
            quiet += 1;
            other.exchange(quiet);
        }
    }
    hostile.callee.nothing();
    let counts = hostile.channel.counts();
    assert_eq!(counts.caller_violations.iter().sum::<u64>(), violated);
    assert_eq!(counts.calls + counts.cancelled, passed);
    assert!(counts.calls > 100 && violated > 50_000, "{counts:?}");
    let quiet = u64::from(quiet);
    let undisturbed = Counts { calls: quiet, answers: quiet, released: quiet, ..Counts::default() };
    assert_eq!(other.channel.counts(), undisturbed);
    other.callee.nothing();
}

#[test]
fn what_nobody_reads_does_not_fill_the_memory() {
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    // The callee answers calls that it has not read.
    let sent = (1..10_000).find(|number| {
        let sent = pair.caller.0.send(&call(*number)).is_ok();
        if sent {
            pair.callee.send(&[failed(*number)]);
        }
        pair.caller.available();
        !sent
    });
    assert_eq!(sent, Some(1025));
    let counts = pair.channel.counts();
    assert_eq!((counts.refused, counts.caller_violations), (1, [0; 5]));
    // When it reads, calls pass again.
    assert_eq!(pair.callee.available().len(), 1024 * 16);
    pair.caller.send(&[call(1025)]);
    pair.callee.receive(&[call(1025)]);
}

/// A hostile program tries to reach another socket with its end, in all ways in which TCP can open
/// a connection.
fn tries_to_reach(end: &End, address: SocketAddr) {
    let address = SockAddr::from(address);
    // A started attempt has no answer, and never will.
    end.0.set_nonblocking(true).unwrap();
    for _ in 0..3 {
        let _ = end.0.connect(&address).map(|()| panic!("connected to {address:?}"));
        end.disconnect();
    }
    // With data in the connection's first packet.
    for flags in [nix::libc::MSG_FASTOPEN, 0, nix::libc::MSG_OOB] {
        assert!(end.0.send_to_with_flags(b"hello", &address, flags | nix::libc::MSG_NOSIGNAL).is_err());
        end.disconnect();
    }
}

#[test]
fn an_end_that_is_disconnected_reaches_no_other_socket() {
    if !may_run() {
        return;
    }
    let channels = Arc::new(Channels::load().unwrap());
    let (own, others) = (networks(), networks());
    let (hostile, other) = (Pair::new(&channels, &own), Pair::new(&channels, &others));
    other.exchange(1);
    // A hostile program has both ends, and another channel between the same two instances.
    let same = Pair::new(&channels, &own);
    let address = |end: &End| end.0.local_addr().unwrap().as_socket().unwrap();
    let mut addresses: Vec<_> =
        [&other.caller, &other.callee, &hostile.callee, &same.caller, &same.callee].map(address).to_vec();
    // The node listens, too.
    let node = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    addresses.push(node.local_addr().unwrap());
    // So do the hostile programs, on a port that the kernel chooses and on an agreed one.
    let any: SocketAddr = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0).into();
    let agreed: SocketAddr = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 4711).into();
    for (end, at) in [(&hostile.callee, any), (&same.callee, agreed)] {
        end.disconnect();
        let _ = end.0.set_reuse_address(true);
        let _ = end.0.bind(&at.into());
        let _ = end.0.listen(16);
        addresses.push((Ipv4Addr::LOCALHOST, address(end).port()).into());
    }
    hostile.caller.disconnect();
    for address in addresses {
        tries_to_reach(&hostile.caller, address);
    }
    for end in [&hostile.callee, &same.callee] {
        end.0.set_nonblocking(true).unwrap();
        assert!(end.0.accept().is_err());
    }
    // Both connect at once, each to the other's address.
    let port = |number| SocketAddr::from((Ipv4Addr::LOCALHOST, number));
    same.caller.disconnect();
    same.callee.disconnect();
    let _ = same.caller.0.bind(&port(4801).into());
    let _ = same.callee.0.bind(&port(4802).into());
    for end in [&same.caller, &same.callee] {
        end.0.set_nonblocking(true).unwrap();
    }
    for _ in 0..100 {
        assert!(same.caller.0.connect(&port(4802).into()).is_err());
        assert!(same.callee.0.connect(&port(4801).into()).is_err());
    }
    for end in [&same.caller, &same.callee, &hostile.caller] {
        assert!(end.0.send_with_flags(b"hello", nix::libc::MSG_NOSIGNAL).is_err());
    }
    other.exchange(2);
}

#[test]
fn two_instances_do_not_see_each_others_addresses() {
    if !may_run() {
        return;
    }
    let pair = Pair::alone();
    let cookie = |end: &End| leno_ebpf::Network::of(&end.0).unwrap();
    assert_ne!(cookie(&pair.caller), cookie(&pair.callee));
    // If programs could see whether an address is taken, that would be a message.
    let at: SocketAddr = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 4711).into();
    for end in [&pair.caller, &pair.callee] {
        end.disconnect();
        end.0.bind(&at.into()).unwrap();
    }
}

#[test]
fn a_channel_that_is_withdrawn_carries_nothing_whatever_its_ends_do() {
    type Trick = fn(&End);
    if !may_run() {
        return;
    }
    let disconnect: Trick = End::disconnect;
    let listen: Trick = |end| {
        end.disconnect();
        let _ = end.0.listen(16);
    };
    let connect: Trick = |end| {
        end.disconnect();
        end.0.set_nonblocking(true).unwrap();
        let _ = end.0.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, 4711)).into());
    };
    let shut: Trick = |end| drop(end.0.shutdown(Shutdown::Write));
    let nothing: Trick = |_| {};
    let channels = Arc::new(Channels::load().unwrap());
    let networks = networks();
    for before in [nothing, disconnect, listen, connect, shut] {
        for after in [nothing, disconnect, listen, connect, shut] {
            let Pair { channel, caller, callee } = Pair::new(&channels, &networks);
            let copies = [&caller, &callee].map(|end| End(end.0.try_clone().unwrap()));
            before(&caller);
            before(&callee);
            drop(channel);
            after(&caller);
            after(&callee);
            for end in [&caller, &callee].into_iter().chain(&copies) {
                end.0.set_nonblocking(true).unwrap();
                assert!(end.0.send_with_flags(b"hello", nix::libc::MSG_NOSIGNAL).is_err());
                assert!(end.0.accept().is_err());
                // The end of the stream, or an error.
                assert_eq!((&end.0).read(&mut [0; 16]).unwrap_or_default(), 0);
            }
        }
    }
    Pair::new(&channels, &networks).exchange(1);
}

#[test]
fn an_end_that_is_shut_down_or_closed_disturbs_nobody_else() {
    if !may_run() {
        return;
    }
    let channels = Arc::new(Channels::load().unwrap());
    let network = networks();
    let (pair, other) = (Pair::new(&channels, &network), Pair::new(&channels, &network));
    pair.exchange(1);
    pair.callee.0.shutdown(Shutdown::Both).unwrap();
    let _ = pair.caller.0.send(&call(2));
    other.exchange(1);
    pair.caller.disconnect();
    assert!(pair.caller.0.send(&call(3)).is_err());
    drop(pair);
    other.exchange(2);
}

#[test]
fn a_network_is_not_the_calling_threads() {
    if !may_run() {
        return;
    }
    let own = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let before = own();
    let pair = Pair::alone();
    assert_eq!(own(), before);
    let cookie = |socket: &Socket| leno_ebpf::Network::of(socket).unwrap();
    let here = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    assert_ne!(cookie(&here), cookie(&pair.caller.0));
}

#[test]
fn two_programs_exchange_a_hundred_thousand_calls() {
    if !may_run() {
        return;
    }
    const EXCHANGES: u32 = 100_000;
    let pair = Pair::alone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut found = [[0; 16]; 2];
            for number in 1..=EXCHANGES {
                let length = if number == 1 { 1 } else { 2 };
                (&pair.callee.0).read_exact(found[..length].as_flattened_mut()).unwrap();
                assert_eq!(found[length - 1], call(number));
                pair.callee.send(&[answer(number)]);
            }
        });
        for number in 1..=EXCHANGES {
            match number {
                1 => pair.caller.send(&[call(number)]),
                _ => pair.caller.send(&[release(number - 1), call(number)]),
            }
            pair.caller.receive(&[answer(number)]);
        }
    });
    let all = u64::from(EXCHANGES);
    let counts = Counts { calls: all, answers: all, released: all - 1, held: 1, ..Counts::default() };
    assert_eq!(pair.channel.counts(), counts);
}

#[test]
fn both_ends_send_at_the_same_time() {
    if !may_run() {
        return;
    }
    const CALLS: u32 = 100_000;
    let pair = Pair::alone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut waiting = Vec::new();
            let mut answered = 0;
            while answered < CALLS {
                let mut bytes = [0; 16 * 64];
                let length = (&pair.callee.0).read(&mut bytes).unwrap();
                waiting.extend_from_slice(&bytes[..length]);
                let whole = waiting.len() / 16 * 16;
                for found in waiting.drain(..whole).as_slice().chunks(16).filter(|found| found[0] == CALL) {
                    pair.callee.send(&[answer(u32::from_le_bytes(*found[4..].first_chunk().unwrap()))]);
                    answered += 1;
                }
            }
        });
        let mut released = 0;
        for number in 1..=CALLS {
            // Up to 64 at once.
            if number - released > 64 {
                released += 1;
                pair.caller.receive(&[answer(released)]);
                pair.caller.send(&[release(released), call(number)]);
            } else {
                pair.caller.send(&[call(number)]);
            }
        }
        for number in released + 1..=CALLS {
            pair.caller.receive(&[answer(number)]);
            pair.caller.send(&[release(number)]);
        }
    });
    let all = u64::from(CALLS);
    let counts = Counts { calls: all, answers: all, released: all, ..Counts::default() };
    assert_eq!(pair.channel.counts(), counts);
}

#[test]
fn kinds_of_violations_have_names() {
    let names = ChannelViolation::ALL.map(ChannelViolation::name);
    assert_eq!(names, ["packet", "descriptor", "number", "stale", "slot"]);
}
