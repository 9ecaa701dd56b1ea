//! The initial state of an instance: to find the changes of a program's initialisation, and to make
//! an instance as new.

use std::ops::Range;
use wasmtime::{Instance, Store};

/// Memory and stack pointer: the only lasting state of an instance of the guest.
pub(super) struct Initial {
    memory: Box<[u8]>,
    /// All memory outside of this range is zero.
    filled: Range<usize>,
    stack_pointer: i32,
}

impl Initial {
    /// Reads it from a new instance. `None`: the instance lacks these exports.
    pub(super) fn of(instance: &Instance, store: &mut Store<()>) -> Option<Self> {
        let stack_pointer = instance.get_global(&mut *store, "__stack_pointer")?.get(&mut *store).i32()?;
        let memory: Box<[u8]> = instance.get_memory(&mut *store, "memory")?.data(&*store).into();
        let written = |byte: &u8| *byte != 0;
        let start = memory.iter().position(written).unwrap_or(0);
        let end = memory.iter().rposition(written).map_or(0, |last| last + 1);
        Some(Self { memory, filled: start..end, stack_pointer })
    }

    pub(super) fn memory(&self) -> &[u8] {
        &self.memory
    }

    pub(super) fn stack_pointer(&self) -> i32 {
        self.stack_pointer
    }

    /// Resets a memory, of at least the first size, to its initial state.
    pub(super) fn erase(&self, memory: &mut [u8]) {
        let Range { start, end } = self.filled;
        memory[..start].fill(0);
        memory[start..end].copy_from_slice(&self.memory[start..end]);
        memory[end..].fill(0);
    }
}
