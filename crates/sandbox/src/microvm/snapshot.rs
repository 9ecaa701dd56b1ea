//! The memory that initialisation left: everything in which two programs differ.

use super::layout;
use super::shell::FinishedShell;
use super::system::HeapClass;

/// The least heap that every program has for its runs. A run that needs more is repeated with the
/// largest heap.
const HEADROOM: u64 = 40 * 1024;
/// Lengths are rounded up to this unit, so that copying is faster.
const GRAIN: usize = 64;

/// Memory of an initialised program. All other memory is zero.
pub(crate) struct Snapshot {
    pub(super) data: Box<[u8]>,
    pub(super) heap: Box<[u8]>,
    pub(super) class: HeapClass,
}

impl Snapshot {
    /// Reads it from a shell in which a program was initialised. `None`: the program leaves no
    /// space on the largest heap.
    pub(super) fn take(spent: &FinishedShell) -> Option<Self> {
        let data = used(spent.memory(layout::DATA, layout::DATA_SIZE));
        let heap = used(spent.memory(layout::HEAP, layout::HEAP_SIZE));
        let class = HeapClass::holding(heap.len() as u64 + HEADROOM)?;
        Some(Self { data: data.into(), heap: heap.into(), class })
    }

    /// Bytes of memory that the snapshot takes.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len() + self.heap.len() + size_of::<Self>()
    }
}

/// `memory` without the zeros at its end.
fn used(memory: &[u8]) -> &[u8] {
    let mut end = memory.len();
    while end >= GRAIN && memory[end - GRAIN..end] == [0; GRAIN] {
        end -= GRAIN;
    }
    &memory[..end]
}

#[cfg(test)]
mod tests {
    use super::used;

    #[test]
    fn zeros_at_the_end_are_left_out_and_no_others() {
        let mut memory = vec![0; 4096];
        assert!(used(&memory).is_empty());
        memory[130] = 1;
        assert_eq!(used(&memory), &memory[..192]);
        memory[4095] = 1;
        assert_eq!(used(&memory), &memory[..]);
    }
}
