//! Finds the ends of a WebSocket's frames (RFC 6455, 5.2), so that the proxy can insert a close
//! frame after the last one.

use leno_http::body::ClosedBy;

/// The longest header of a frame: two bytes, a length of eight, a mask of four.
const LONGEST_HEADER: usize = 14;

/// Follows the frames of one direction.
#[derive(Debug, Default)]
pub(super) struct Frames {
    header: [u8; LONGEST_HEADER],
    /// Bytes of the header that have passed.
    passed: usize,
    /// Bytes of the payload that are to come.
    left: u64,
}

impl Frames {
    /// Follows bytes that pass.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.left > 0 {
                let skipped = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= skipped as u64;
                bytes = bytes.get(skipped..).unwrap_or_default();
                continue;
            }
            bytes = rest;
            // A header is complete before its place is full.
            if let Some(place) = self.header.get_mut(self.passed) {
                *place = *first;
            }
            self.passed += 1;
            if self.passed >= 2 && self.passed == self.header_length() {
                self.left = self.payload_length();
                self.passed = 0;
            }
        }
    }

    /// Whether the bytes so far end between two frames.
    pub(super) fn is_between(&self) -> bool {
        self.passed == 0 && self.left == 0
    }

    fn header_length(&self) -> usize {
        let length = match self.header[1] & 0x7f {
            127 => 10,
            126 => 4,
            _ => 2,
        };
        length + if self.header[1] & 0x80 == 0 { 0 } else { 4 }
    }

    fn payload_length(&self) -> u64 {
        let [_, short, length @ ..] = self.header;
        match short & 0x7f {
            127 => length.first_chunk().map_or(0, |length| u64::from_be_bytes(*length)),
            126 => length.first_chunk().map_or(0, |length| u16::from_be_bytes(*length).into()),
            short => short.into(),
        }
    }
}

/// The frame that ends a WebSocket. `masked`: the frame goes to a server, to which clients send
/// only masked frames. The mask is zero, because the frame has no content to hide.
pub(super) fn close(by: ClosedBy, masked: bool) -> Vec<u8> {
    let (code, reason) = by.websocket();
    let payload = [&code.to_be_bytes(), reason.as_bytes()].concat();
    // Control frames have at most 125 bytes.
    let length = u8::try_from(payload.len()).unwrap_or(125);
    let mask: &[u8] = if masked { &[0; 4] } else { &[] };
    [&[0x88, length | if masked { 0x80 } else { 0 }], mask, &payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(masked: bool, payload: usize) -> Vec<u8> {
        let mask = if masked { 0x80 } else { 0 };
        let mut frame = match payload {
            0..126 => vec![0x81, mask | payload as u8],
            126..65536 => [&[0x82, mask | 126], &(payload as u16).to_be_bytes()[..]].concat(),
            _ => [&[0x02, mask | 127], &(payload as u64).to_be_bytes()[..]].concat(),
        };
        frame.extend(vec![0xff; payload + if masked { 4 } else { 0 }]);
        frame
    }

    #[test]
    fn frames_of_all_lengths_end_where_they_end_however_they_come() {
        for piece in [1, 2, 3, 7, 1000, usize::MAX] {
            for masked in [false, true] {
                let mut frames = Frames::default();
                for payload in [0, 1, 125, 126, 127, 65535, 65536, 70000] {
                    let frame = frame(masked, payload);
                    assert!(frames.is_between());
                    let (before, last) = frame.split_at(frame.len() - 1);
                    for piece in before.chunks(piece) {
                        frames.pass(piece);
                        assert!(!frames.is_between(), "{payload} {masked} {piece:?}");
                    }
                    frames.pass(last);
                }
                assert!(frames.is_between());
            }
        }
    }

    #[test]
    fn the_last_frame_is_one() {
        let policy: &[u8] = b"\x03\xf0not permitted any more";
        let mesh: &[u8] = b"\x03\xf4ended by the mesh, connect again";
        for (by, payload) in [(ClosedBy::Policy, policy), (ClosedBy::Mesh, mesh), (ClosedBy::Circumstances, mesh)] {
            for masked in [false, true] {
                let mut frames = Frames::default();
                let close = close(by, masked);
                frames.pass(&close);
                assert!(frames.is_between());
                assert!(close.ends_with(payload));
            }
        }
    }

    #[test]
    fn nonsense_is_followed_too() {
        let mut frames = Frames::default();
        frames.pass(&[0xff; 100]);
        frames.pass(&[0; 100]);
        assert!(!frames.is_between());
    }
}
