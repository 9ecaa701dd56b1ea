//! Descriptors, which the packets of the socket consist of. A descriptor has 16 bytes, and says
//! where a message is or how a call ended.

/// Bytes of a descriptor.
pub const BYTES: usize = 16;
/// Bytes of the unit in which a slot is counted. Messages begin at a multiple of it.
pub const UNIT: u64 = 64;
/// Most descriptors in one packet.
pub const MOST: usize = 64;

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A call. An instance's call may be to any function, and its message is in the instance's
    /// arena; the node's call is to the instance, and its message is in the node's arena.
    Call = 1,
    /// The answer to the call of that number, which the other end began. A length of 0 means that
    /// the call has failed.
    Answer = 2,
    /// From the instance: it no longer reads the answer of that number.
    Release = 3,
    /// The call of that number, which this end began, has no waiter any more.
    Cancel = 4,
    /// From the node: the message in that slot of the instance's arena, and its body, are no longer
    /// in use.
    Free = 5,
    /// From the instance: another function answers the call of that number. The message is the call
    /// to that function.
    Forward = 6,
    /// From the node: no message will be in the announced arena of that number any more.
    Forget = 7,
    /// From the node: no call may begin on the channel of that number any more.
    Withdraw = 8,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        let of_messages = [Self::Call, Self::Answer, Self::Release, Self::Cancel, Self::Free, Self::Forward];
        of_messages.into_iter().chain([Self::Forget, Self::Withdraw]).find(|kind| *kind as u8 == byte)
    }

    fn has_number(self) -> bool {
        self != Self::Free
    }

    fn has_message(self) -> bool {
        matches!(self, Self::Call | Self::Answer | Self::Forward)
    }
}

/// A descriptor. Fields that its kind does not use are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The kind, which decides the meaning of the other fields.
    pub kind: Kind,
    /// Number of a call, of an arena for [`Kind::Forget`], of a channel for [`Kind::Withdraw`]. Not 0.
    pub number: u32,
    /// Where the message is, in units of [`UNIT`] bytes.
    pub slot: u32,
    /// Bytes of the message's fixed part and head; 0 if the call has failed.
    pub length: u32,
}

/// Why bytes are no descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDescriptor {
    /// There is no such kind.
    #[error("the kind {0} is none: expected 1 to 8")]
    Kind(u8),
    /// A field is set that has to be 0.
    #[error("{0} has to be 0 here")]
    Set(&'static str),
    /// The number is missing.
    #[error("the number 0 is none")]
    NoNumber,
}

impl Descriptor {
    /// A descriptor of a kind that refers to a message.
    #[must_use]
    pub fn message(kind: Kind, number: u32, slot: u32, length: u32) -> Self {
        Self { kind, number, slot, length }
    }

    /// A descriptor of a kind that has only a number.
    #[must_use]
    pub fn number(kind: Kind, number: u32) -> Self {
        Self { kind, number, slot: 0, length: 0 }
    }

    /// [`Kind::Free`].
    #[must_use]
    pub fn free(slot: u32) -> Self {
        Self { kind: Kind::Free, number: 0, slot, length: 0 }
    }

    /// The descriptor's bytes in a packet.
    #[must_use]
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.slot.to_le_bytes());
        bytes[12..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Decodes a descriptor. The result encodes to the same bytes.
    ///
    /// # Errors
    /// If the kind is unknown, a field is set that this kind does not use, or a required field is
    /// 0.
    pub fn decode(bytes: &[u8; BYTES]) -> Result<Self, BadDescriptor> {
        let [kind, zeros @ .., _, _, _, _, _, _, _, _, _, _, _, _] = *bytes;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (number, slot, length) = (word(4), word(8), word(12));
        let kind = Kind::from_byte(kind).ok_or(BadDescriptor::Kind(kind))?;
        if zeros != [0; 3] {
            return Err(BadDescriptor::Set("what follows the kind"));
        }
        match (kind.has_number(), number) {
            (true, 0) => return Err(BadDescriptor::NoNumber),
            (false, 1..) => return Err(BadDescriptor::Set("the number")),
            _ => {}
        }
        if !kind.has_message() && length != 0 {
            return Err(BadDescriptor::Set("the length"));
        }
        let has_slot = kind == Kind::Free || length != 0;
        if !has_slot && slot != 0 {
            return Err(BadDescriptor::Set("the slot"));
        }
        Ok(Self { kind, number, slot, length })
    }
}

/// Whether a number may follow another. Numbers wrap around, and 0 is no number. This is the
/// comparison of RFC 1982.
#[must_use]
pub fn follows(number: u32, last: u32) -> bool {
    let distance = number.wrapping_sub(last);
    number != 0 && distance != 0 && distance < 1 << 31
}

/// The number after this one.
#[must_use]
pub fn next(last: u32) -> u32 {
    match last.wrapping_add(1) {
        0 => 1,
        number => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_is_read_is_written_alike(mut bytes: [u8; BYTES], kind in 0..9_u8, zeros: bool) {
            bytes[0] = kind;
            if zeros {
                bytes[1..4].fill(0);
            }
            if let Ok(descriptor) = Descriptor::decode(&bytes) {
                prop_assert_eq!(descriptor.encode(), bytes);
            }
        }

        #[test]
        fn whatever_is_written_is_read_alike(number in 1_u32.., slot: u32, length in 1_u32..) {
            for kind in [Kind::Call, Kind::Answer, Kind::Forward] {
                let descriptor = Descriptor::message(kind, number, slot, length);
                prop_assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
            }
            for kind in [Kind::Release, Kind::Cancel, Kind::Forget, Kind::Answer] {
                let descriptor = Descriptor::number(kind, number);
                prop_assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
            }
            prop_assert_eq!(Descriptor::decode(&Descriptor::free(slot).encode()), Ok(Descriptor::free(slot)));
        }

        #[test]
        fn a_number_follows_the_one_before(last: u32) {
            prop_assert!(follows(next(last), last));
            prop_assert!(!follows(last, last));
            prop_assert!(!follows(last, next(last)));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let decode = |change: fn(&mut [u8; BYTES])| {
            let mut bytes = Descriptor::message(Kind::Call, 1, 2, 3).encode();
            change(&mut bytes);
            Descriptor::decode(&bytes).map_err(|error| error.to_string())
        };
        assert_eq!(decode(|bytes| bytes[0] = 9), Err("the kind 9 is none: expected 1 to 8".into()));
        assert_eq!(decode(|bytes| bytes[2] = 1), Err("what follows the kind has to be 0 here".into()));
        assert_eq!(decode(|bytes| bytes[4] = 0), Err("the number 0 is none".into()));
        assert_eq!(decode(|bytes| bytes[0] = 5), Err("the number has to be 0 here".into()));
        assert_eq!(decode(|bytes| bytes[0] = 4), Err("the length has to be 0 here".into()));
    }
}
