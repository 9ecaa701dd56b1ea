//! Messages that pass between two programs of a chain, and messages that the kernel refuses.

mod endings;
mod hostile;
mod pair;

use crate::networks::may_run;
use leno_ebpf::{ChannelViolation, Counts};
use pair::*;
use std::io::{IoSlice, Read};

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
