//! Conditions of a pattern on the bytes before and after a place in the text.

use regex_automata::util::look::Look;

/// A byte, as far as those conditions look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Neighbour {
    /// There is no byte: the text begins or ends here.
    Edge,
    Lf,
    Cr,
    /// A letter, a digit or `_`.
    Word,
    Other,
}

impl Neighbour {
    /// All that are bytes.
    pub(super) const BYTES: [Self; 4] = [Self::Lf, Self::Cr, Self::Word, Self::Other];

    /// The bytes that are this.
    pub(super) fn ranges(self) -> &'static [(u8, u8)] {
        match self {
            Self::Edge => &[],
            Self::Lf => &[(b'\n', b'\n')],
            Self::Cr => &[(b'\r', b'\r')],
            Self::Word => &[(b'0', b'9'), (b'A', b'Z'), (b'_', b'_'), (b'a', b'z')],
            Self::Other => &[(0, 9), (11, 12), (14, b'/'), (b':', b'@'), (b'[', b'^'), (b'`', b'`'), (b'{', 255)],
        }
    }

    pub(super) fn of(byte: u8) -> Self {
        match byte {
            b'\n' => Self::Lf,
            b'\r' => Self::Cr,
            b'0'..=b'9' | b'A'..=b'Z' | b'_' | b'a'..=b'z' => Self::Word,
            _ => Self::Other,
        }
    }
}

/// Whether a condition holds between two neighbours.
pub(super) fn holds(look: Look, before: Neighbour, after: Neighbour) -> bool {
    use Neighbour::{Cr, Edge, Lf, Word};
    match look {
        Look::Start => before == Edge,
        Look::End => after == Edge,
        Look::StartLF => matches!(before, Edge | Lf),
        Look::EndLF => matches!(after, Edge | Lf),
        Look::StartCRLF => matches!(before, Edge | Lf) || (before == Cr && after != Lf),
        Look::EndCRLF => matches!(after, Edge | Cr) || (after == Lf && before != Cr),
        Look::WordAscii | Look::WordUnicode => (before == Word) != (after == Word),
        Look::WordAsciiNegate | Look::WordUnicodeNegate => (before == Word) == (after == Word),
        Look::WordStartAscii | Look::WordStartUnicode => before != Word && after == Word,
        Look::WordEndAscii | Look::WordEndUnicode => before == Word && after != Word,
        Look::WordStartHalfAscii | Look::WordStartHalfUnicode => before != Word,
        Look::WordEndHalfAscii | Look::WordEndHalfUnicode => after != Word,
    }
}
