//! The memory that initialisation left: everything in which two programs differ.

use std::ops::Range;

/// Unchanged stretches shorter than this are copied too, because a longer copy takes less time than
/// another one.
const GAP: usize = 128;
/// Bytes of input, heap and output of an ordinary run. If a run needs more, the memory grows.
const ORDINARY: usize = 24 * 1024;

/// Differences between an initialised program's memory and a new instance's.
pub(crate) struct Snapshot {
    changes: Changes,
    /// The address of inputs.
    pub(super) input: usize,
}

/// The differences between two memories.
pub(crate) struct Changes {
    /// Address, and end in `bytes`, of each changed stretch, in order.
    stretches: Box<[(u32, u32)]>,
    bytes: Box<[u8]>,
}

impl Snapshot {
    /// Compares the memory of an initialised program with that of a new instance, which is shorter
    /// or as long.
    pub(super) fn take(pristine: &[u8], built: &[u8], input: usize) -> Self {
        Self { changes: Changes::between(pristine, built), input }
    }

    /// Writes the changes into the memory of a new instance of at least [`Snapshot::memory`] bytes.
    pub(super) fn restore(&self, memory: &mut [u8]) {
        self.changes.apply(memory);
    }

    /// The memory that an instance needs for this program and an ordinary run.
    pub(super) fn memory(&self) -> usize {
        self.input + ORDINARY
    }

    /// Bytes of memory that the snapshot takes.
    pub(crate) fn bytes(&self) -> usize {
        self.changes.bytes() + size_of::<Self>()
    }
}

impl Changes {
    /// Compares a memory with its earlier content, which was shorter or as long.
    pub(crate) fn between(pristine: &[u8], built: &[u8]) -> Self {
        let changed = |at: &usize| built[*at] != pristine.get(*at).copied().unwrap_or(0);
        let mut stretches = Vec::new();
        let mut bytes: Vec<u8> = Vec::new();
        // Most blocks are unchanged, which a comparison finds at once.
        let blocks = (0..built.len()).step_by(GAP).map(|start| start..built.len().min(start + GAP));
        let touched = blocks.filter(|block| !is_as_before(pristine, built, block));
        let mut changes = touched.flatten().filter(changed).peekable();
        while let Some(start) = changes.next() {
            let mut end = start + 1;
            while let Some(next) = changes.next_if(|next| next - end < GAP) {
                end = next + 1;
            }
            bytes.extend_from_slice(&built[start..end]);
            stretches.push((start as u32, bytes.len() as u32));
        }
        Self { stretches: stretches.into(), bytes: bytes.into() }
    }

    /// Writes the changes into a memory with the earlier content, as long as the one in which they
    /// were found.
    pub(crate) fn apply(&self, memory: &mut [u8]) {
        let mut from = 0;
        for (address, end) in &self.stretches {
            let stretch = &self.bytes[from..*end as usize];
            memory[*address as usize..][..stretch.len()].copy_from_slice(stretch);
            from = *end as usize;
        }
    }

    /// Bytes of memory that the changes take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.stretches)
    }
}

/// Whether a block is unchanged; memory beyond the earlier end was zero.
fn is_as_before(pristine: &[u8], built: &[u8], block: &Range<usize>) -> bool {
    let known = &pristine[block.start.min(pristine.len())..block.end.min(pristine.len())];
    let (old, new) = built[block.clone()].split_at(known.len());
    old == known && *new == [0; GAP][..new.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restoring_gives_the_memory_that_was_taken() {
        let pristine: Vec<u8> = (0..5000).map(|at| if at < 1000 { (at % 251) as u8 } else { 0 }).collect();
        let mut built = pristine.clone();
        built.resize(9000, 0);
        for at in [0, 7, 500, 999, 1000, 1001, 4999, 5000, 5127, 5129, 6000, 8999] {
            built[at] = built[at].wrapping_add(1);
        }
        let snapshot = Snapshot::take(&pristine, &built, 9000);
        let mut memory = pristine.clone();
        memory.resize(9000, 0);
        snapshot.restore(&mut memory);
        assert!(memory == built);
        assert!(snapshot.bytes() < 2000, "only what changed is kept");
    }

    #[test]
    fn a_program_that_changes_nothing_keeps_nothing() {
        let pristine = vec![3; 4096];
        assert!(Changes::between(&pristine, &pristine).bytes.is_empty());
    }
}
