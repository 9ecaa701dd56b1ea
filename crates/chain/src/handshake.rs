//! Packets that come with file descriptors: those with which a link begins, and the announcement of an arena.

/// Version of all that goes over a link.
pub const VERSION: u32 = 1;
/// Bytes of the longest one of these packets.
pub const MOST_BYTES: usize = 40;

const WELCOME: &[u8; 8] = b"LENOWELC";
const READY: &[u8; 8] = b"LENOREDY";
const ARENA: &[u8; 8] = b"LENOAREN";

/// From the node, with the instance's arena to be mapped for writing, and the node's for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Bytes of the instance's arena.
    pub instance: u64,
    /// Bytes of the node's.
    pub node: u64,
    /// Most bytes of a head.
    pub head: u32,
}

/// From the instance: it has mapped its arena for writing, and nobody will do so any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready;

/// From the node, with an arena of another function's instance, or of the node's for one. Messages may refer to it from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Its number on this link, greater than [`crate::message::NODE`].
    pub number: u32,
    /// Its bytes.
    pub size: u64,
}

/// Why a packet is not the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPacket {
    /// It is another one, or none.
    #[error("expected a packet `{0}`")]
    Other(&'static str),
    /// The other end speaks another version.
    #[error("the other end speaks version {0}, and this one {VERSION}")]
    Version(u32),
}

impl Welcome {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(WELCOME, VERSION);
        bytes.extend(self.instance.to_le_bytes());
        bytes.extend(self.node.to_le_bytes());
        bytes.extend(self.head.to_le_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// If it is another packet, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadPacket> {
        let mut rest = after(bytes, WELCOME, 36, "LENOWELC")?;
        match word(&mut rest) {
            VERSION => Ok(Self { instance: long(&mut rest), node: long(&mut rest), head: word(&mut rest) }),
            other => Err(BadPacket::Version(other)),
        }
    }
}

impl Ready {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(READY, VERSION);
        bytes.extend([0; 4]);
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// If it is another packet, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadPacket> {
        match word(&mut after(bytes, READY, 16, "LENOREDY")?) {
            VERSION => Ok(Self),
            other => Err(BadPacket::Version(other)),
        }
    }
}

impl Announcement {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(ARENA, self.number);
        bytes.extend([0; 4]);
        bytes.extend(self.size.to_le_bytes());
        bytes
    }

    /// Whether a packet is one, and not descriptors.
    #[must_use]
    pub fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(ARENA)
    }

    /// Reads one.
    ///
    /// # Errors
    /// If it is another packet.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadPacket> {
        let mut rest = after(bytes, ARENA, 24, "LENOAREN")?;
        let (number, _) = (word(&mut rest), word(&mut rest));
        Ok(Self { number, size: long(&mut rest) })
    }
}

fn begin(magic: &[u8; 8], word: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MOST_BYTES);
    bytes.extend(magic);
    bytes.extend(word.to_le_bytes());
    bytes
}

fn after<'a>(bytes: &'a [u8], magic: &[u8; 8], length: usize, name: &'static str) -> Result<&'a [u8], BadPacket> {
    match bytes.strip_prefix(magic) {
        Some(rest) if bytes.len() == length => Ok(rest),
        _ => Err(BadPacket::Other(name)),
    }
}

/// Takes four bytes. The length was checked.
fn word(bytes: &mut &[u8]) -> u32 {
    let Some((word, rest)) = bytes.split_first_chunk() else { return 0 };
    *bytes = rest;
    u32::from_le_bytes(*word)
}

fn long(bytes: &mut &[u8]) -> u64 {
    u64::from(word(bytes)) | u64::from(word(bytes)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_is_written_is_read_alike(instance: u64, node: u64, head: u32) {
            let welcome = Welcome { instance, node, head };
            prop_assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
            let announcement = Announcement { number: head, size: node };
            prop_assert_eq!(Announcement::decode(&announcement.encode()), Ok(announcement));
            prop_assert_eq!(Ready::decode(&Ready.encode()), Ok(Ready));
        }

        #[test]
        fn any_bytes_are_read_or_refused(which in 0..3_usize, bytes: Vec<u8>) {
            let bytes = [&[WELCOME, READY, ARENA][which][..], &bytes].concat();
            let _ = (Welcome::decode(&bytes), Ready::decode(&bytes), Announcement::decode(&bytes));
        }
    }

    #[test]
    fn another_version_is_said() {
        let mut bytes = Ready.encode();
        bytes[8] = 2;
        assert_eq!(Ready::decode(&bytes).unwrap_err().to_string(), "the other end speaks version 2, and this one 1");
    }
}
