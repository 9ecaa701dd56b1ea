//! Programs that send what they must not, and that try to reach other sockets.

use super::pair::*;
use crate::networks::may_run;
use leno_ebpf::{Channels, Counts};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::Read;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4};
use std::sync::Arc;

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
