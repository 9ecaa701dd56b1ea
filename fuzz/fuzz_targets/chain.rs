//! Packets of an instance of a chain: descriptors, the fixed part of messages, heads, and the
//! packets with which a link begins. A decoded value encodes to the same bytes.
#![no_main]

use leno_shm::descriptor::{self, Descriptor};
use leno_shm::handshake::{Announcement, Offer, Ready, Welcome};
use leno_shm::head::{RequestHead, ResponseHead};
use leno_shm::message::{self, Message};
use libfuzzer_sys::fuzz_target;

// The kind of packet, and the bytes.
fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 4 {
        0 => {
            for bytes in bytes.as_chunks::<{ descriptor::BYTES }>().0 {
                if let Ok(descriptor) = Descriptor::decode(bytes) {
                    assert_eq!(&descriptor.encode(), bytes);
                }
            }
        }
        1 => {
            if let Some(fixed) = bytes.first_chunk::<{ message::BYTES }>()
                && let Ok(message) = Message::decode(fixed)
            {
                assert_eq!(&message.encode(), fixed);
                assert!(message.body.offset.checked_add(message.body.length).is_some());
            }
        }
        2 => {
            let (mut request, mut response) = (Vec::new(), Vec::new());
            if let Ok(head) = RequestHead::decode(bytes.to_vec().into()) {
                head.encode(&mut request);
                let again = RequestHead::decode(request.into()).expect("what was written can be read");
                assert_eq!(again, head);
                assert_eq!(again.check(1), head.check(1));
            }
            if let Ok(head) = ResponseHead::decode(bytes.to_vec().into()) {
                head.encode(&mut response);
                assert_eq!(ResponseHead::decode(response.into()).expect("what was written can be read"), head);
            }
        }
        _ => {
            if let Ok(welcome) = Welcome::decode(bytes) {
                assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
            }
            if let Ok(offer) = Offer::decode(bytes) {
                assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
            }
            if let Ok(announcement) = Announcement::decode(bytes) {
                assert_eq!(Announcement::decode(&announcement.encode()), Ok(announcement));
            }
            let _ = Ready::decode(bytes);
        }
    }
});
