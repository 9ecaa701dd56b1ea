//! Reads the guest image: a static x86-64 ELF with at most one segment of each kind, linked to the
//! addresses of the layout.

use super::layout;
use std::ops::Range;

/// An image that follows the layout.
pub(super) struct Guest {
    /// The address at which every run begins.
    pub(super) entry: u64,
    /// Code: address and bytes.
    pub(super) text: Segment,
    /// Constants.
    pub(super) rodata: Segment,
    /// Initial variables; `size` includes those that start as zero.
    pub(super) data: Segment,
}

/// A loadable segment.
#[derive(Default)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) size: u64,
}

impl Segment {
    /// The whole pages that the segment covers.
    pub(super) fn pages(&self) -> Range<u64> {
        let start = self.address & !(layout::PAGE - 1);
        start..(self.address + self.size).next_multiple_of(layout::PAGE)
    }
}

const EXECUTABLE: u32 = 1;
const WRITABLE: u32 = 2;
const LOAD: u32 = 1;

/// Parses `file`, or returns its fault.
pub(super) fn parse(file: &[u8]) -> Result<Guest, &'static str> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01") || number::<2>(file, 18) != Some(62) {
        return Err("not an x86-64 ELF file");
    }
    let header = |at| number::<8>(file, at).ok_or("truncated header");
    let entry = header(24)?;
    let table = header(32)? as usize;
    let count = number::<2>(file, 56).ok_or("truncated header")? as usize;
    let mut guest = Guest { entry, text: Segment::default(), rodata: Segment::default(), data: Segment::default() };
    for index in 0..count {
        let at = table + index * 56;
        let field = |offset| number::<8>(file, at + offset).ok_or("truncated program header");
        let kind_and_flags = field(0)?;
        if kind_and_flags as u32 != LOAD {
            continue;
        }
        let flags = (kind_and_flags >> 32) as u32;
        let (offset, address, in_file, size) = (field(8)? as usize, field(16)?, field(32)? as usize, field(40)?);
        let bytes = offset.checked_add(in_file).and_then(|end| file.get(offset..end)).ok_or("truncated segment")?;
        let area = if flags & WRITABLE != 0 {
            layout::DATA..layout::DATA + layout::DATA_SIZE
        } else {
            layout::IMAGE..layout::IMAGE_END
        };
        if address < area.start || size < in_file as u64 || address.checked_add(size).is_none_or(|end| end > area.end) {
            return Err("a segment lies outside its area");
        }
        let segment = match (flags & EXECUTABLE != 0, flags & WRITABLE != 0) {
            (true, true) => return Err("a segment is both writable and executable"),
            (true, false) => &mut guest.text,
            (false, true) => &mut guest.data,
            (false, false) => &mut guest.rodata,
        };
        if segment.size != 0 {
            return Err("two segments of one kind");
        }
        *segment = Segment { address, bytes: bytes.to_vec(), size };
    }
    if !guest.text.pages().contains(&entry) {
        return Err("the entry point is not code");
    }
    if guest.rodata.size != 0 && guest.rodata.pages().start < guest.text.pages().end {
        return Err("code and constants share a page");
    }
    Ok(guest)
}

fn number<const N: usize>(file: &[u8], at: usize) -> Option<u64> {
    let bytes = file.get(at..at.checked_add(N)?)?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_image_keeps_to_the_layout() {
        let guest = parse(crate::microvm::GUEST).unwrap();
        assert!(guest.text.size > 0 && guest.data.size > 0);
    }

    #[test]
    fn a_file_cut_anywhere_is_refused_or_complete() {
        let file = crate::microvm::GUEST;
        for length in (0..512).chain([file.len() / 2]) {
            assert!(parse(&file[..length]).is_err(), "{length} bytes were accepted");
        }
    }
}
