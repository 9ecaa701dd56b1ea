//! Packets that carry file descriptors: the handshake of a link, the announcement of an arena, and
//! the offer of a channel.

/// Version of the protocol of a link.
pub const VERSION: u32 = 1;
/// Bytes of the longest one of these packets.
pub const MOST_BYTES: usize = 40;

const WELCOME: &[u8; 8] = b"LENOWELC";
const READY: &[u8; 8] = b"LENOREDY";
const ARENA: &[u8; 8] = b"LENOAREN";
const CHANNEL: &[u8; 8] = b"LENOCHAN";
/// Bytes of an offer before its text.
const OFFER: usize = 24;
/// Most bytes of its text.
pub const MOST_TEXT: usize = 900;
/// In [`Welcome`]: the instance is to ask the kernel for large pages.
const LARGE_PAGES: u32 = 1;
/// In [`Ready`]: the instance takes channels.
const TAKES_CHANNELS: u32 = 1;

/// From the node, with the instance's arena to be mapped for writing, and the node's for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Bytes of the instance's arena.
    pub instance: u64,
    /// Bytes of the node's arena.
    pub node: u64,
    /// Most bytes of a head.
    pub head: u32,
    /// The instance is to ask the kernel for large pages: the kernel allocates a page for the
    /// process that writes to it first.
    pub large_pages: bool,
}

/// From the instance: it has mapped its arena for writing, and no further writable mapping will be
/// made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The instance can handle an [`Offer`].
    pub takes_channels: bool,
}

/// From the node, with an arena of another function's instance, or with one that the node writes
/// for such an instance. Messages may refer to it from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The arena's number on this link, greater than [`crate::message::NODE`].
    pub number: u32,
    /// The arena's size in bytes.
    pub size: u64,
}

/// At which end of a channel an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The instance makes calls over the channel.
    Caller,
    /// The instance receives calls over the channel.
    Callee,
}

/// From the node, with one end of a channel to another instance: a connected TCP socket whose bytes are descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The channel's number on this link, greater than all before.
    pub number: u32,
    /// The end that this instance gets.
    pub end: End,
    /// Number of the announced arena in which the other instance writes.
    pub arena: u32,
    /// How long a call may take, in milliseconds; 0: for ever.
    pub timeout_ms: u32,
    /// The names of the callee, separated by commas. For a callee, a line feed and the value of
    /// `x-forwarded-client-cert` follow.
    pub text: String,
}

/// Why a packet is not the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPacket {
    /// The packet is of another kind, or of no known kind.
    #[error("expected a packet `{0}`")]
    Other(&'static str),
    /// The other end speaks another version.
    #[error("the other end speaks version {0}, and this one {VERSION}")]
    Version(u32),
}

impl Welcome {
    /// The packet's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(WELCOME, VERSION);
        bytes.extend(self.instance.to_le_bytes());
        bytes.extend(self.node.to_le_bytes());
        bytes.extend(self.head.to_le_bytes());
        bytes.extend(if self.large_pages { LARGE_PAGES } else { 0 }.to_le_bytes());
        bytes
    }

    /// Decodes the packet.
    ///
    /// # Errors
    /// If it is another packet, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadPacket> {
        let mut rest = after(bytes, WELCOME, 36, "LENOWELC")?;
        match word(&mut rest) {
            VERSION => Ok(Self {
                instance: long(&mut rest),
                node: long(&mut rest),
                head: word(&mut rest),
                large_pages: word(&mut rest) & LARGE_PAGES != 0,
            }),
            other => Err(BadPacket::Version(other)),
        }
    }
}

impl Ready {
    /// The packet's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(READY, VERSION);
        bytes.extend(if self.takes_channels { TAKES_CHANNELS } else { 0 }.to_le_bytes());
        bytes
    }

    /// Decodes the packet.
    ///
    /// # Errors
    /// If it is another packet, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadPacket> {
        let mut rest = after(bytes, READY, 16, "LENOREDY")?;
        match word(&mut rest) {
            VERSION => Ok(Self { takes_channels: word(&mut rest) & TAKES_CHANNELS != 0 }),
            other => Err(BadPacket::Version(other)),
        }
    }
}

impl Announcement {
    /// The packet's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(ARENA, self.number);
        bytes.extend([0; 4]);
        bytes.extend(self.size.to_le_bytes());
        bytes
    }

    /// Whether a packet is an announcement, and not descriptors.
    #[must_use]
    pub fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(ARENA)
    }

    /// Decodes the packet.
    ///
    /// # Errors
    /// If it is another packet.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadPacket> {
        let mut rest = after(bytes, ARENA, 24, "LENOAREN")?;
        let (number, _) = (word(&mut rest), word(&mut rest));
        Ok(Self { number, size: long(&mut rest) })
    }
}

impl Offer {
    /// The packet's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(CHANNEL, self.number);
        let end = match self.end {
            End::Caller => 1_u32,
            End::Callee => 2,
        };
        bytes.extend([end, self.arena, self.timeout_ms].into_iter().flat_map(u32::to_le_bytes));
        bytes.extend(self.text.as_bytes());
        bytes
    }

    /// Whether a packet is an offer, and not descriptors.
    #[must_use]
    pub fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(CHANNEL)
    }

    /// Decodes the packet.
    ///
    /// # Errors
    /// If it is another packet, or its text is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadPacket> {
        const EXPECTED: BadPacket = BadPacket::Other("LENOCHAN");
        let (fixed, text) = bytes.split_at_checked(OFFER).ok_or(EXPECTED)?;
        let mut rest = after(fixed, CHANNEL, OFFER, "LENOCHAN")?;
        let number = word(&mut rest);
        let end = match word(&mut rest) {
            1 => End::Caller,
            2 => End::Callee,
            _ => return Err(EXPECTED),
        };
        let (arena, timeout_ms) = (word(&mut rest), word(&mut rest));
        let text = str::from_utf8(text).ok().filter(|text| text.len() <= MOST_TEXT).ok_or(EXPECTED)?.to_owned();
        Ok(Self { number, end, arena, timeout_ms, text })
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
            let welcome = Welcome { instance, node, head, large_pages: head % 2 == 0 };
            prop_assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
            let announcement = Announcement { number: head, size: node };
            prop_assert_eq!(Announcement::decode(&announcement.encode()), Ok(announcement));
            let ready = Ready { takes_channels: head % 2 == 0 };
            prop_assert_eq!(Ready::decode(&ready.encode()), Ok(ready));
            let end = if head % 3 == 0 { End::Caller } else { End::Callee };
            let offer = Offer { number: head, end, arena: node as u32, timeout_ms: instance as u32, text: "a,b".to_owned() };
            prop_assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
        }

        #[test]
        fn any_bytes_are_read_or_refused(which in 0..4_usize, bytes: Vec<u8>) {
            let bytes = [&[WELCOME, READY, ARENA, CHANNEL][which][..], &bytes].concat();
            let _ = Offer::decode(&bytes);
            let _ = (Welcome::decode(&bytes), Ready::decode(&bytes), Announcement::decode(&bytes));
        }
    }

    #[test]
    fn another_version_is_said() {
        let mut bytes = Ready { takes_channels: true }.encode();
        bytes[8] = 2;
        assert_eq!(Ready::decode(&bytes).unwrap_err().to_string(), "the other end speaks version 2, and this one 1");
    }
}
