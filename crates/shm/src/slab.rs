//! The allocator of an arena. It touches no memory: blocks are numbers.
//!
//! An allocation takes the smallest free block that fits, and cuts it to size. A freed block is
//! merged with the free blocks at its sides. Lengths are rounded up to classes that are an eighth
//! apart, so that a freed block soon fits another allocation, and no more than an eighth is lost.

use crate::descriptor::UNIT;
use std::collections::{BTreeMap, BTreeSet};

/// An allocated part of an arena. It cannot be copied: its owner may use it, and frees it once.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    start: u32,
    units: u32,
}

impl Block {
    /// An empty block, which is never freed.
    pub(crate) fn none() -> Self {
        Self { start: 0, units: 0 }
    }

    /// Where it is, in units of [`UNIT`] bytes.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.start
    }

    /// Where it is, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        u64::from(self.start) * UNIT
    }

    /// Its bytes, at least as many as were requested.
    #[must_use]
    pub fn length(&self) -> u64 {
        u64::from(self.units) * UNIT
    }
}

/// No free block is long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the arena is full: there are not {0} bytes in one piece")]
pub struct Full(
    /// The requested length, in bytes.
    pub u64,
);

/// Allocates blocks of one arena.
#[derive(Debug)]
pub struct Slab {
    units: u32,
    /// Free blocks: start and length. No two are adjacent.
    by_start: BTreeMap<u32, u32>,
    /// The same, by length.
    by_length: BTreeSet<(u32, u32)>,
    free: u32,
}

impl Slab {
    /// The slab of an arena of so many bytes, all of it free. Bytes beyond 2^32 units are not used.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX);
        let mut slab = Self { units, by_start: BTreeMap::new(), by_length: BTreeSet::new(), free: 0 };
        if units > 0 {
            slab.insert(0, units);
        }
        slab
    }

    /// Allocates a block of at least so many bytes, and of one unit at least.
    ///
    /// # Errors
    /// If there is no free block of that length.
    pub fn allocate(&mut self, bytes: u64) -> Result<Block, Full> {
        let wanted = u32::try_from(bytes.div_ceil(UNIT).max(1)).map_err(|_| Full(bytes))?;
        // Near the end of an arena, an exact fit is better than none.
        let found = [class(wanted), wanted].into_iter().find_map(|units| {
            let (length, start) = *self.by_length.range((units, 0)..).next()?;
            Some((units, length, start))
        });
        let (units, length, start) = found.ok_or(Full(bytes))?;
        self.remove(start, length);
        if length > units {
            self.insert(start + units, length - units);
        }
        Ok(Block { start, units })
    }

    /// Frees a block.
    pub fn free(&mut self, block: Block) {
        let Block { mut start, mut units } = block;
        if let Some((&before, &length)) = self.by_start.range(..start).next_back()
            && before + length == start
        {
            self.remove(before, length);
            start = before;
            units += length;
        }
        if let Some(&length) = self.by_start.get(&(start + units)) {
            self.remove(start + units, length);
            units += length;
        }
        self.insert(start, units);
    }

    /// Frees the bytes of a block after the first `bytes`.
    pub fn shrink(&mut self, block: &mut Block, bytes: u64) {
        let units = u32::try_from(bytes.div_ceil(UNIT).max(1)).map_or(block.units, class);
        if units < block.units {
            let rest = Block { start: block.start + units, units: block.units - units };
            block.units = units;
            self.free(rest);
        }
    }

    /// Bytes that are not allocated.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        u64::from(self.free) * UNIT
    }

    /// All bytes of the arena.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.units) * UNIT
    }

    fn insert(&mut self, start: u32, units: u32) {
        self.by_start.insert(start, units);
        self.by_length.insert((units, start));
        self.free += units;
    }

    fn remove(&mut self, start: u32, units: u32) {
        self.by_start.remove(&start);
        self.by_length.remove(&(units, start));
        self.free -= units;
    }
}

/// The class of a length: eight to each power of two.
fn class(units: u32) -> u32 {
    let step = 1 << (units.ilog2().saturating_sub(3));
    units.checked_next_multiple_of(step).unwrap_or(units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Allocates so many bytes, shrinks one of those that are there, or frees it.
    #[derive(Clone, Debug)]
    enum Step {
        Allocate(u64),
        Shrink(usize, u64),
        Free(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..9000_u64).prop_map(Step::Allocate),
            1 => (any::<usize>(), 0..9000_u64).prop_map(|(which, bytes)| Step::Shrink(which, bytes)),
            2 => any::<usize>().prop_map(Step::Free),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn no_two_blocks_overlap_and_all_comes_back(bytes in 0..40_000_u64, steps in steps()) {
            let mut slab = Slab::new(bytes);
            let mut blocks: Vec<Block> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(wanted) => match slab.allocate(wanted) {
                        Ok(block) => {
                            prop_assert!(block.length() >= wanted && block.offset() + block.length() <= bytes);
                            let apart = |other: &Block| {
                                other.offset() + other.length() <= block.offset()
                                    || block.offset() + block.length() <= other.offset()
                            };
                            prop_assert!(blocks.iter().all(apart));
                            blocks.push(block);
                        }
                        Err(full) => {
                            prop_assert_eq!(full, Full(wanted));
                            prop_assert!(slab.by_start.values().all(|units| u64::from(*units) * UNIT < wanted.max(1)));
                        }
                    },
                    Step::Shrink(which, wanted) if !blocks.is_empty() => {
                        let which = which % blocks.len();
                        let before = blocks[which].length();
                        slab.shrink(&mut blocks[which], wanted);
                        prop_assert!(blocks[which].length() <= before);
                        prop_assert!(blocks[which].length() >= wanted.min(before));
                    }
                    Step::Free(which) if !blocks.is_empty() => slab.free(blocks.swap_remove(which % blocks.len())),
                    _ => {}
                }
                let held: u64 = blocks.iter().map(Block::length).sum();
                prop_assert_eq!(held + slab.free_bytes(), slab.bytes());
            }
            blocks.into_iter().for_each(|block| slab.free(block));
            prop_assert_eq!(slab.free_bytes(), slab.bytes());
            prop_assert!(slab.by_start.len() <= 1, "free blocks side by side were joined");
        }

        #[test]
        fn no_more_than_an_eighth_is_lost(units in 1..=u32::MAX) {
            let class = class(units);
            prop_assert!(class >= units && u64::from(class - units) * 8 <= u64::from(units));
        }
    }

    /// Messages of many lengths, of which half are always in use. Fragmentation must not keep an
    /// allocation from succeeding.
    #[test]
    fn fragments_do_not_fill_it() {
        let mut slab = Slab::new(16 << 20);
        let mut blocks = std::collections::VecDeque::new();
        let (mut random, mut held) = (1_u64, 0);
        for _ in 0..200_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = 64 << (random >> 61) << ((random >> 50) & 3);
            while held + bytes > 12 << 20 {
                // In another order than that of the allocations.
                let which = usize::try_from(random >> 33).unwrap() % blocks.len();
                let block: Block = blocks.swap_remove_back(which).unwrap();
                held -= block.length();
                slab.free(block);
            }
            let block = slab.allocate(bytes).expect("a quarter is free");
            held += block.length();
            blocks.push_back(block);
        }
    }
}
