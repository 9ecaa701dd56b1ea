//! An instance that sends arbitrary packets.

use crate::node::{Node, call, pair, to};
use crate::{PATIENCE, none, settings};
use leno_sdk::{ResponseHead, StatusCode};
use leno_shm::descriptor::{BYTES, Descriptor, Kind, MOST, UNIT};
use leno_shm::handshake::{MOST_BYTES, Ready, Welcome};
use leno_shm::mapping::Mapping;
use leno_shm::message::{self, INSTANCE, Message, NODE, Place};
use leno_shm::{End, Link, Settings, Violation, socket};
use leno_testkit::eventually_async;
use rustix::net::{RecvFlags, SendFlags, Shutdown, send, shutdown};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The instance's end of a link, without the library.
struct Instance {
    socket: OwnedFd,
    arena: Mapping,
}

impl Instance {
    async fn open(node: &Arc<Node>, name: &str, settings: &Settings) -> (Self, Link) {
        let (ours, theirs) = pair();
        let begin = tokio::task::spawn_blocking(move || {
            let mut packet = [0; MOST_BYTES];
            let received = socket::receive(&theirs, &mut packet, RecvFlags::empty()).unwrap();
            let welcome = Welcome::decode(&packet[..received.bytes]).unwrap();
            let arena = Mapping::writable(&received.files[0], welcome.instance).unwrap();
            socket::send(&theirs, &Ready { takes_channels: false }.encode(), &[], SendFlags::empty()).unwrap();
            Self { socket: theirs, arena }
        });
        let link = node.welcome(name, ours, settings).await;
        (begin.await.unwrap(), link)
    }

    /// Writes a message: a fixed part, and a head.
    fn write(&self, slot: u32, message: &Message, head: &[u8]) -> u32 {
        let bytes = [&message.encode()[..], head].concat();
        // SAFETY: this process has no other writer to this memory.
        #[expect(unsafe_code, reason = "a test")]
        let memory = unsafe { self.arena.slice_mut(u64::from(slot) * UNIT, bytes.len() as u64) }.unwrap();
        memory.copy_from_slice(&bytes);
        bytes.len() as u32
    }

    /// A call to an unknown function, with this body.
    fn write_call(&self, slot: u32, body: Place) -> u32 {
        let mut head = Vec::new();
        to("nobody", "/").encode(&mut head);
        self.write(slot, &Message { head: head.len() as u32, parent: 0, body }, &head)
    }

    fn say(&self, descriptor: Descriptor) {
        self.say_bytes(&descriptor.encode());
    }

    fn say_bytes(&self, packet: &[u8]) {
        socket::send(&self.socket, packet, &[], SendFlags::empty()).unwrap();
    }

    /// The node's next packet.
    async fn hear(&self) -> Vec<Descriptor> {
        let socket = self.socket.try_clone().unwrap();
        let heard = tokio::task::spawn_blocking(move || {
            let mut packet = [0; BYTES * MOST];
            let received = socket::receive(&socket, &mut packet, RecvFlags::empty()).unwrap();
            packet[..received.bytes].as_chunks().0.iter().map(|bytes| Descriptor::decode(bytes).unwrap()).collect()
        });
        heard.await.unwrap()
    }
}

const BODY: Place = Place { arena: INSTANCE, offset: 32 << 10, length: 1000 };

#[tokio::test]
async fn what_an_instance_must_not_say_is_refused_and_counted() {
    let node = Node::new();
    let small = Settings { instance_arena: 64 << 10, ..settings() };
    let (_other, other) = node.start("other", "", &small).await;
    let (instance, link) = Instance::open(&node, "instance", &small).await;
    let refused = |violation: Violation, before: u64| {
        let link = link.clone();
        async move {
            eventually_async(violation.name(), || link.violations().get(violation) > before).await;
            assert_eq!(link.violations().get(violation), before + 1, "{}", violation.name());
        }
    };
    let call = |number, slot, length| Descriptor::message(Kind::Call, number, slot, length);
    let length = instance.write_call(0, BODY);
    let good = call(10, 0, length);

    // A packet that is no sequence of descriptors, or with a file.
    instance.say_bytes(&good.encode()[..15]);
    refused(Violation::Packet, 0).await;
    let file = [instance.socket.as_fd()];
    socket::send(&instance.socket, &good.encode(), &file, SendFlags::empty()).unwrap();
    refused(Violation::Packet, 1).await;
    instance.say_bytes(&[0; BYTES * (MOST + 1)]);
    refused(Violation::Packet, 2).await;
    // Unknown kinds, and those that only the node sends.
    instance.say_bytes(&[9; BYTES]);
    refused(Violation::Descriptor, 0).await;
    instance.say(Descriptor::free(3));
    refused(Violation::Descriptor, 1).await;
    // A message at a place outside of the arena, or an invalid one.
    instance.say(call(11, 1023, 65));
    refused(Violation::Slot, 0).await;
    instance.say(call(11, u32::MAX, length));
    refused(Violation::Slot, 1).await;
    instance.say(call(11, 500, length));
    refused(Violation::Message, 0).await;
    instance.say(call(11, 0, length - 1));
    refused(Violation::Message, 1).await;
    instance.say(call(11, 0, 63));
    refused(Violation::Message, 2).await;
    instance.say(call(11, 0, u32::MAX));
    refused(Violation::Head, 0).await;
    let bad = instance.write(8, &Message { head: 3, parent: 0, body: Place::default() }, b"abc");
    instance.say(call(11, 8, bad));
    refused(Violation::Head, 1).await;
    // Bodies that the instance does not hold: in the node's arena, in one that was never announced,
    // beyond the end of its own.
    let elsewhere = |arena, offset| instance.write_call(8, Place { arena, offset, length: 64 });
    instance.say(call(11, 8, elsewhere(NODE, 0)));
    refused(Violation::NotHeld, 0).await;
    instance.say(call(11, 8, elsewhere(2, 0)));
    refused(Violation::Arena, 0).await;
    instance.say(call(11, 8, elsewhere(INSTANCE, (64 << 10) - 63)));
    refused(Violation::Bounds, 0).await;
    // Answers, and other descriptors of calls that do not exist.
    for kind in [Kind::Answer, Kind::Forward] {
        let before = link.violations().get(Violation::Stale);
        instance.say(Descriptor::message(kind, 1, 0, length));
        if kind == Kind::Answer {
            // Its head is that of a call.
            eventually_async("it is refused", || link.violations().total() > 15).await;
        }
        refused(Violation::Stale, before).await;
    }
    instance.say(Descriptor::number(Kind::Release, 1));
    refused(Violation::Stale, 2).await;
    instance.say(Descriptor::number(Kind::Cancel, 1));
    refused(Violation::Stale, 3).await;

    // A valid call: no function is called `nobody`, so the node answers it and gives its memory
    // back.
    instance.say(good);
    let mut heard = Vec::new();
    while heard.len() < 2 {
        heard.extend(instance.hear().await);
    }
    assert!(heard.contains(&Descriptor::free(0)), "{heard:?}");
    assert!(heard.iter().any(|heard| (heard.kind, heard.number) == (Kind::Answer, 10)), "{heard:?}");
    // The same call once more.
    instance.say(good);
    refused(Violation::Number, 0).await;
    instance.say(Descriptor::number(Kind::Release, 10));
    instance.say(Descriptor::number(Kind::Release, 10));
    refused(Violation::Stale, 4).await;

    // While a function holds the message, its slot must not be used.
    let mut head = Vec::new();
    to("other", "/keep").encode(&mut head);
    let length = instance.write(0, &Message { head: head.len() as u32, parent: 0, body: BODY }, &head);
    instance.say(call(12, 0, length));
    eventually_async("it is held", || other.open_calls() == 1).await;
    instance.say(call(13, 0, length));
    refused(Violation::Held, 0).await;
    none(other.violations());
}

#[tokio::test]
async fn an_answer_that_breaks_the_rules_is_a_failure() {
    let node = Node::new();
    let (instance, link) = Instance::open(&node, "instance", &settings()).await;
    let asked = call(&link, "/", b"secret");
    let answers = async {
        let heard = instance.hear().await;
        let mut head = Vec::new();
        ResponseHead::new(StatusCode::OK).encode(&mut head);
        // More of the node's arena than the instance was given.
        let body = Place { arena: NODE, offset: 0, length: 1 << 20 };
        let length = instance.write(0, &Message { head: head.len() as u32, parent: 0, body }, &head);
        instance.say(Descriptor::message(Kind::Answer, heard[0].number, 0, length));
    };
    let (answer, ()) = tokio::join!(asked, answers);
    assert_eq!(answer.unwrap_err(), leno_shm::CallError::Invalid);
    assert_eq!(link.violations().get(Violation::NotHeld), 1);
    assert_eq!(link.open_calls(), 0);
}

#[tokio::test]
async fn a_body_is_passed_on_by_who_holds_it_only() {
    let node = Node::new();
    let (instance, link) = Instance::open(&node, "instance", &settings()).await;
    let mut writer = link.writer(100).unwrap();
    writer.write(&[1; 100]).unwrap();
    let body = writer.commit().unwrap();
    let asked = link.call(&to("instance", "/"), Some(&body), None).unwrap();
    let heard = instance.hear().await;
    assert_eq!(heard[0].number, asked.number());
    let answer = |place: Place| {
        let mut head = Vec::new();
        ResponseHead::new(StatusCode::OK).encode(&mut head);
        instance.write(0, &Message { head: head.len() as u32, parent: 0, body: place }, &head)
    };
    // A valid place: the message is the second block of the node's arena.
    let length = answer(Place { arena: NODE, offset: 10, length: 80 });
    instance.say(Descriptor::message(Kind::Answer, asked.number(), 0, length));
    let answered = asked.await.unwrap();
    assert_eq!(answered.body.unwrap().len(), 80);
    none(link.violations());
    // The instance has answered, and does not hold the body any more.
    let length = instance.write_call(0, Place { arena: NODE, offset: 10, length: 80 });
    instance.say(Descriptor::message(Kind::Call, 1, 0, length));
    eventually_async("it is refused", || link.violations().get(Violation::NotHeld) == 1).await;
}

#[tokio::test]
async fn an_instance_that_talks_nonsense_is_cut_off() {
    let node = Node::new();
    let (instance, link) = Instance::open(&node, "instance", &settings()).await;
    let flood = tokio::task::spawn_blocking(move || {
        let mut random = fastrand::Rng::with_seed(1);
        let mut packet = [0; BYTES * MOST];
        loop {
            random.fill(&mut packet);
            for descriptor in packet.chunks_exact_mut(BYTES) {
                descriptor[0] %= 9;
                if random.bool() {
                    descriptor[1..4].fill(0);
                    descriptor[5..8].fill(0);
                }
            }
            if send(&instance.socket, &packet, SendFlags::NOSIGNAL).is_err() {
                break;
            }
        }
    });
    assert_eq!(link.ended().await, End::Violations);
    flood.await.unwrap();
    let total = link.violations().total();
    assert!((1001..1001 + MOST as u64).contains(&total), "{total}");
    assert_eq!(node.domain.statistics().violations().total(), total);
    assert_eq!(link.open_calls(), 0);
}

#[tokio::test]
async fn an_instance_that_reads_nothing_makes_nobody_wait() {
    let node = Node::new();
    let small = Settings { queue: 100, open_calls: 100_000, ..settings() };
    let (_instance, link) = Instance::open(&node, "instance", &small).await;
    let mut asked = Vec::new();
    let refused = loop {
        match link.call(&to("instance", "/"), None, None) {
            Ok(call) => asked.push(call),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, leno_shm::SendError::Ended(End::Stuck));
    assert_eq!(link.ended().await, End::Stuck);
    for call in asked {
        assert_eq!(call.await.unwrap_err(), leno_shm::CallError::Ended(End::Stuck));
    }
}

// No packets are read between the calls of this test that do not wait.
#[tokio::test]
async fn an_answer_counts_although_its_instance_has_ended_and_left_calls_unread() {
    let node = Node::new();
    let (instance, link) = Instance::open(&node, "instance", &settings()).await;
    let ask = || link.call(&to("instance", "/"), None, None).unwrap();
    let (answered, unread) = (ask(), ask());
    assert_eq!(instance.hear().await[0].number, answered.number());
    let mut head = Vec::new();
    ResponseHead::new(StatusCode::OK).encode(&mut head);
    let none = Place { arena: INSTANCE, offset: 0, length: 0 };
    let length = instance.write(0, &Message { head: head.len() as u32, parent: 0, body: none }, &head);
    instance.say(Descriptor::message(Kind::Answer, answered.number(), 0, length));
    drop(instance);
    let late = ask();
    assert_eq!(answered.await.unwrap().head.status, StatusCode::OK);
    for call in [unread, late] {
        assert_eq!(call.await.unwrap_err(), leno_shm::CallError::Ended(End::Closed));
    }
    assert_eq!(link.ended().await, End::Closed);
}

#[tokio::test]
async fn an_instance_that_still_writes_and_does_not_want_to_read_is_cut_off() {
    let node = Node::new();
    let (instance, link) = Instance::open(&node, "instance", &settings()).await;
    shutdown(&instance.socket, Shutdown::Read).unwrap();
    let asked = link.call(&to("instance", "/"), None, None).unwrap();
    let answered = tokio::time::timeout(PATIENCE, asked).await.expect("nobody waits for it");
    assert_eq!(answered.unwrap_err(), leno_shm::CallError::Ended(End::Closed));
    assert_eq!(link.ended().await, End::Closed);
}

// The instance of this test waits until the node has read its packets.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_goes_on_once_the_socket_is_not_full_any_more() {
    let node = Node::new();
    let (instance, link) = Instance::open(&node, "instance", &settings()).await;
    let asked: Vec<_> = (0..1000).map(|_| link.call(&to("instance", "/"), None, None).unwrap()).collect();
    let mut heard = 0;
    while heard < asked.len() {
        for descriptor in instance.hear().await {
            instance.say(Descriptor::number(Kind::Answer, descriptor.number));
            heard += 1;
        }
    }
    for call in asked {
        assert_eq!(call.await.unwrap_err(), leno_shm::CallError::Failed);
    }
    assert_eq!(message::BYTES, 64);
    none(link.violations());
}
