//! Bodies: those that this program writes, and those that it has received.

use crate::arena::Part;
use crate::state::{NODE, Number};
use leno_shm::mapping::Mapping;
use leno_shm::message::Place;
use leno_shm::pool::Pool;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::sync::Arc;

/// Memory for a body, in this program's arena. It holds the bytes of its earlier use.
#[derive(Debug)]
pub struct Buffer {
    part: Part,
    length: usize,
}

/// A body that is complete. Clones are the same memory, so it can be sent to many.
#[derive(Clone, Debug)]
pub struct SharedBody {
    part: Arc<Part>,
    start: usize,
    length: usize,
}

/// A received body, at its original address. It is valid as long as the [`crate::Call`] or
/// [`crate::Answer`] that it came with. As a [`Payload`] it is passed on without a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceivedBody<'a> {
    bytes: &'a [u8],
    place: Place,
    /// The call with which it came on a channel; a body from the node has no number.
    from: Number,
}

/// The body of a message that is sent: none, a [`Buffer`], a [`SharedBody`] one, or one that was [`ReceivedBody`].
#[derive(Debug, Default)]
pub struct Payload<'a>(pub(crate) Kind<'a>);

#[derive(Debug, Default)]
pub(crate) enum Kind<'a> {
    #[default]
    Empty,
    Shared(SharedBody),
    Received(ReceivedBody<'a>),
}

/// The memory that holds a message.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    Own(Arc<Pool>),
    Other(Arc<Mapping>),
    /// The arena of the other end of a channel, for a message that came with this call.
    Direct(Number, Arc<Mapping>),
    /// A part of a message that this program has sent on a channel.
    Kept(Arc<Part>),
}

impl Memory {
    pub(crate) fn mapping(&self) -> &Mapping {
        match self {
            Self::Own(pool) => pool.mapping(),
            Self::Other(mapping) | Self::Direct(_, mapping) => mapping,
            Self::Kept(part) => part.pool().mapping(),
        }
    }

    /// The body at a place that was checked when it was received.
    pub(crate) fn show(&self, place: Place) -> ReceivedBody<'_> {
        // SAFETY: messages are not written to after they were sent: this library does not do so,
        // and the functions of a chain are trusted with it, as the crate's documentation says.
        #[expect(unsafe_code, reason = "see above")]
        let bytes = unsafe { self.mapping().slice(place.offset, place.length) };
        let from = match self {
            Self::Own(_) | Self::Other(_) => Number::default(),
            Self::Direct(from, _) => *from,
            // No other instance knows that it is kept.
            Self::Kept(_) => Number { way: u32::MAX, number: 0 },
        };
        ReceivedBody { bytes: bytes.unwrap_or_default(), place, from }
    }
}

impl Buffer {
    pub(crate) fn new(part: Part, length: usize) -> Self {
        Self { part, length }
    }

    /// Shortens it to `length` bytes, and frees the rest.
    pub fn truncate(&mut self, length: usize) {
        if length < self.length {
            self.length = length;
            self.part.shrink(length as u64);
        }
    }

    /// Makes a body that may be sent several times. It is read-only from then on.
    #[must_use]
    pub fn share(self) -> SharedBody {
        SharedBody { start: 0, length: self.length, part: Arc::new(self.part) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.part.bytes()[..self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.part.bytes_mut()[..self.length]
    }
}

impl SharedBody {
    /// A part of it.
    ///
    /// # Panics
    /// If the range is not within it, as a slice does.
    #[must_use]
    pub fn part(&self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = bounds(&range, self.length);
        let _ = &self[start..end];
        Self { part: self.part.clone(), start: self.start + start, length: end - start }
    }

    pub(crate) fn place(&self) -> Place {
        let offset = self.part.offset() + self.start as u64;
        Place { arena: leno_shm::message::INSTANCE, offset, length: self.length as u64 }
    }

    pub(crate) fn memory(&self) -> &Arc<Part> {
        &self.part
    }
}

impl Deref for SharedBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.part.bytes()[self.start..self.start + self.length]
    }
}

impl<'a> ReceivedBody<'a> {
    /// A part of it.
    ///
    /// # Panics
    /// If the range is not within it, as a slice does.
    #[must_use]
    pub fn part(&self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = bounds(&range, self.bytes.len());
        let bytes = &self.bytes[start..end];
        let place = Place { offset: self.place.offset + start as u64, length: bytes.len() as u64, ..self.place };
        Self { bytes, place, from: self.from }
    }

    pub(crate) fn from(&self) -> Number {
        self.from
    }

    /// Whether the node counts its readers.
    pub(crate) fn is_the_nodes(&self) -> bool {
        self.from.way == NODE
    }

    /// Its bytes, at their original address.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl Deref for ReceivedBody<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl Payload<'_> {
    /// No body.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    pub(crate) fn place(&self) -> Place {
        let place = match &self.0 {
            Kind::Empty => Place::default(),
            Kind::Shared(shared) => shared.place(),
            Kind::Received(received) => received.place,
        };
        if place.length == 0 { Place::default() } else { place }
    }
}

impl From<()> for Payload<'_> {
    fn from((): ()) -> Self {
        Self::none()
    }
}

impl From<Buffer> for Payload<'_> {
    fn from(buffer: Buffer) -> Self {
        Self(Kind::Shared(buffer.share()))
    }
}

impl From<SharedBody> for Payload<'_> {
    fn from(shared: SharedBody) -> Self {
        Self(Kind::Shared(shared))
    }
}

impl From<&SharedBody> for Payload<'_> {
    fn from(shared: &SharedBody) -> Self {
        Self(Kind::Shared(shared.clone()))
    }
}

impl<'a> From<ReceivedBody<'a>> for Payload<'a> {
    fn from(received: ReceivedBody<'a>) -> Self {
        Self(Kind::Received(received))
    }
}

fn bounds(range: &impl RangeBounds<usize>, length: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last + 1,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => length,
    };
    (start, end)
}
