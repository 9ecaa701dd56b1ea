//! The end of a channel, and of the programs at it.

use super::pair::*;
use crate::networks::may_run;
use leno_ebpf::Channels;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

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
