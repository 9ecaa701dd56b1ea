//! Bodies: reference-counted parts of arenas. A body stays readable until its last clone is
//! dropped, even if its producer has ended.

use crate::domain::Domain;
use crate::mapping::{Mapping, OutOfBounds};
use crate::pool::{Allocation, Pool};
use crate::slab::Full;
use bytes::Bytes;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// An arena as the node sees it.
pub(crate) struct Arena {
    /// The id of the arena, unique for the life of this process.
    id: u64,
    domain: Domain,
    /// The file that readers get. It is open for reading only.
    file: OwnedFd,
    memory: Memory,
    /// The links to which the arena was announced, and its number there.
    readers: Mutex<Vec<(Weak<dyn Reader>, u32)>>,
}

enum Memory {
    /// An instance writes to it.
    Instance(Mapping),
    /// The node writes to it.
    Node(Arc<Pool>),
}

/// A link to which arenas are announced.
pub(crate) trait Reader: Send + Sync {
    /// The arena of that number is gone.
    fn forget(&self, number: u32);
}

/// A link whose instance writes messages.
pub(crate) trait Producer: Send + Sync {
    /// The message in that slot, and its body, are no longer in use.
    fn free(&self, slot: u32);
}

impl Arena {
    pub(crate) fn of_instance(domain: Domain, file: OwnedFd, mapping: Mapping) -> Arc<Self> {
        Self::new(domain, file, Memory::Instance(mapping))
    }

    pub(crate) fn of_node(domain: Domain, file: OwnedFd, pool: Arc<Pool>) -> Arc<Self> {
        Self::new(domain, file, Memory::Node(pool))
    }

    fn new(domain: Domain, file: OwnedFd, memory: Memory) -> Arc<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = LAST.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, domain, file, memory, readers: Mutex::default() })
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        match &self.memory {
            Memory::Instance(mapping) => mapping,
            Memory::Node(pool) => pool.mapping(),
        }
    }

    /// Registers a reader to which the arena was announced. It is notified when the arena is gone.
    pub(crate) fn shown_to(&self, reader: Weak<dyn Reader>, number: u32) {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|(reader, _)| reader.strong_count() > 0);
        readers.push((reader, number));
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for (reader, number) in self.readers.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Some(reader) = reader.upgrade() {
                reader.forget(number);
            }
        }
    }
}

/// A body, or a part of one. It has at least one byte. Clones are cheap, and so are parts.
///
/// It must not be dropped while a lock is held that its link's handler takes: dropping the last
/// clone notifies the link of its producer.
#[derive(Clone)]
pub struct Body {
    source: Arc<Source>,
    offset: u64,
    length: u64,
}

struct Source {
    arena: Arc<Arena>,
    origin: Origin,
}

enum Origin {
    Instance {
        producer: Weak<dyn Producer>,
        slot: u32,
    },
    /// Given back on drop.
    Node {
        _allocation: Allocation,
    },
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Origin::Instance { producer, slot } = &self.origin
            && let Some(producer) = producer.upgrade()
        {
            producer.free(*slot);
        }
    }
}

impl Body {
    /// A body that an instance has written. The range is within its arena.
    pub(crate) fn of_instance(arena: Arc<Arena>, producer: Weak<dyn Producer>, slot: u32, range: Range<u64>) -> Self {
        let origin = Origin::Instance { producer, slot };
        let source = Arc::new(Source { arena, origin });
        Self { source, offset: range.start, length: range.end - range.start }
    }

    /// Its length in bytes. Never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// The chain whose instances may receive it.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.source.arena.domain
    }

    /// A part of it; `None`: the range is empty, or not within the body.
    #[must_use]
    pub fn part(&self, range: Range<u64>) -> Option<Self> {
        let length = range.end.checked_sub(range.start).filter(|length| *length > 0)?;
        (range.end <= self.length).then(|| Self { offset: self.offset + range.start, length, ..self.clone() })
    }

    /// Copies bytes from the offset `at`, as many as `into` has. The producer might still change
    /// them, so two copies may differ.
    ///
    /// # Errors
    /// If it does not have as many bytes there.
    pub fn copy_to(&self, at: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let wanted = into.len() as u64;
        if at.checked_add(wanted).is_none_or(|end| end > self.length) {
            return Err(OutOfBounds { offset: at, length: wanted, arena: self.length });
        }
        self.source.arena.mapping().read(self.offset + at, into)?;
        self.domain().statistics().copied_out(into.len());
        Ok(())
    }

    /// A copy of at most so many bytes from the offset `at`; `None`: the body ends before it.
    #[must_use]
    pub fn chunk(&self, at: u64, most: usize) -> Option<Bytes> {
        let left = self.length.checked_sub(at).filter(|left| *left > 0 && most > 0)?;
        let mut chunk = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(most)];
        self.copy_to(at, &mut chunk).ok()?;
        Some(chunk.into())
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.source.arena
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("offset", &self.offset).field("length", &self.length).finish_non_exhaustive()
    }
}

/// Writes a body into the node's arena for an instance, piece by piece.
pub struct Writer {
    arena: Arc<Arena>,
    allocation: Allocation,
    most: u64,
    written: u64,
}

impl Writer {
    /// A writer for at most so many bytes.
    pub(crate) fn new(arena: &Arc<Arena>, most: u64) -> Result<Self, Full> {
        let Memory::Node(pool) = &arena.memory else { return Err(Full(most)) };
        Ok(Self { allocation: pool.allocate(most)?, arena: arena.clone(), most, written: 0 })
    }

    /// How many bytes may follow.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.most - self.written
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If they are more than may follow; then none is written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let after = self.written + bytes.len() as u64;
        if after > self.most {
            return Err(Full(after));
        }
        // Within the allocation, whose length is a `usize`.
        self.allocation.bytes_mut()[self.written as usize..after as usize].copy_from_slice(bytes);
        self.written = after;
        self.arena.domain.statistics().copied_in(bytes.len());
        Ok(())
    }

    /// The body; `None`: nothing was written. The rest of the space is given back.
    #[must_use]
    pub fn commit(mut self) -> Option<Body> {
        if self.written == 0 {
            return None;
        }
        self.allocation.shrink(self.written);
        let (offset, length) = (self.allocation.offset(), self.written);
        let source = Source { arena: self.arena, origin: Origin::Node { _allocation: self.allocation } };
        Some(Body { source: Arc::new(source), offset, length })
    }
}
