//! The fixed part of a message in an arena: the length of the head that follows it, and the place
//! of the body.

/// Bytes of the fixed part. The head follows.
pub const BYTES: usize = 64;
/// The arena of the instance at this end of the socket.
pub const INSTANCE: u32 = 0;
/// The arena in which the node writes for the instance.
pub const NODE: u32 = 1;

const MAGIC: [u8; 4] = *b"LNM1";

/// Where a body is. In messages of both directions, arenas are numbered as the instance sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// [`INSTANCE`], [`NODE`], or the number of an arena that was announced.
    pub arena: u32,
    /// Bytes from the arena's beginning.
    pub offset: u64,
    /// Bytes. 0: there is no body.
    pub length: u64,
}

/// The fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Bytes of the head.
    pub head: u32,
    /// Number of the call that is being handled, and for which this one is made; 0: none.
    pub parent: u32,
    /// Where the body is.
    pub body: Place,
}

/// Why bytes are no fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// The message does not begin with the magic number.
    #[error("a message begins with `LNM1`")]
    Magic,
    /// A reserved byte is not 0.
    #[error("bytes 32 to 63 of a message have to be 0")]
    Reserved,
    /// The sum of the body's offset and length overflows.
    #[error("the body is longer than any arena")]
    Body,
    /// The body is empty, but has a place.
    #[error("a message without a body says where it is")]
    NoBody,
}

impl Message {
    /// As it is in the arena.
    #[must_use]
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.head.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.parent.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.body.arena.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.body.offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.body.length.to_le_bytes());
        bytes
    }

    /// Decodes the fixed part. The result encodes to the same bytes, and the sum of the body's
    /// offset and length does not overflow.
    ///
    /// # Errors
    /// If it does not begin with the magic number, or its body cannot be in any arena.
    pub fn decode(bytes: &[u8; BYTES]) -> Result<Self, BadMessage> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if bytes[..4] != MAGIC {
            return Err(BadMessage::Magic);
        }
        if bytes[32..].iter().any(|byte| *byte != 0) {
            return Err(BadMessage::Reserved);
        }
        let body = Place { arena: word(12), offset: long(16), length: long(24) };
        if body.offset.checked_add(body.length).is_none() {
            return Err(BadMessage::Body);
        }
        if body.length == 0 && body != Place::default() {
            return Err(BadMessage::NoBody);
        }
        Ok(Self { head: word(4), parent: word(8), body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_is_read_is_written_alike(mut bytes in prop::array::uniform32(any::<u8>()), reserved in 0..2_u8) {
            bytes[..4].copy_from_slice(&MAGIC);
            let mut whole = [0; BYTES];
            whole[..32].copy_from_slice(&bytes);
            whole[63] = reserved;
            if let Ok(message) = Message::decode(&whole) {
                prop_assert_eq!(message.encode(), whole);
                prop_assert!(message.body.offset.checked_add(message.body.length).is_some());
            }
        }

        #[test]
        fn whatever_is_written_is_read_alike(head: u32, parent: u32, arena: u32, offset: u32, length in 1_u64..1 << 40) {
            let body = Place { arena, offset: offset.into(), length };
            let message = Message { head, parent, body };
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
            let empty = Message { body: Place::default(), ..message };
            prop_assert_eq!(Message::decode(&empty.encode()), Ok(empty));
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let body = Place { arena: 0, offset: u64::MAX, length: 1 };
        assert_eq!(Message::decode(&Message { head: 0, parent: 0, body }.encode()), Err(BadMessage::Body));
        let body = Place { arena: 2, offset: 0, length: 0 };
        assert_eq!(Message::decode(&Message { head: 0, parent: 0, body }.encode()), Err(BadMessage::NoBody));
        assert_eq!(Message::decode(&[0; BYTES]), Err(BadMessage::Magic));
    }
}
