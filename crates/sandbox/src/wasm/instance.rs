//! An instance, not specific to a program, reused. An [`Instance`] is as new: its memory and its
//! stack pointer have their initial values, and the guest has no other lasting state (a test reads
//! the image). Running one makes it a [`FinishedInstance`], and only [`FinishedInstance::reset`] makes that an instance
//! again. If a run failed or took more memory, the instance is dropped instead, and the engine
//! makes another one.

use super::{Snapshot, Wasm, grow};
use crate::deadline::Deadline;
use crate::error::EngineError;
use crate::fault::Fault;
use leno_policy::input::MAX_INPUT;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::{Extern, Global, Memory, Store, TypedFunc, Val};

/// An instance in its initial state.
pub(crate) struct Instance(Box<Parts>);

struct Parts {
    engine: Arc<Wasm>,
    store: Store<()>,
    memory: Memory,
    stack_pointer: Global,
    run: TypedFunc<u32, ()>,
    /// Bytes of its memory, before a run grows it.
    size: usize,
}

/// An instance after a run.
pub(crate) struct FinishedInstance {
    parts: Box<Parts>,
    /// The place of the output, or why there is none.
    outcome: Result<Range<usize>, Fault>,
}

impl Instance {
    /// A new instance, with the memory that this program needs for an ordinary run.
    pub(crate) fn new(engine: &Arc<Wasm>, snapshot: &Snapshot) -> Result<Self, EngineError> {
        let failed = |error: wasmtime::Error| EngineError::Wasm(format!("{error:#}"));
        let missing = |what| EngineError::Wasm(format!("the module's `{what}` is none"));
        let mut store = super::store(&engine.engine);
        store.set_epoch_deadline(1);
        let instance = engine.ready.instantiate(&mut store).map_err(failed)?;
        let memory = engine.memory(&mut store, &instance)?;
        let stack_pointer = instance.get_module_export(&mut store, &engine.stack_pointer).and_then(Extern::into_global);
        let run = instance.get_module_export(&mut store, &engine.run).and_then(Extern::into_func);
        let run = run.ok_or_else(|| missing("run"))?.typed(&store).map_err(failed)?;
        grow(&memory, &mut store, snapshot.memory()).map_err(failed)?;
        let size = memory.data_size(&store);
        let stack_pointer = stack_pointer.ok_or_else(|| missing("__stack_pointer"))?;
        Ok(Self(Box::new(Parts { engine: Arc::clone(engine), store, memory, stack_pointer, run, size })))
    }

    /// Whether it is of this engine, with as much memory as a new one for this program would have.
    pub(crate) fn suits(&self, engine: &Arc<Wasm>, snapshot: &Snapshot) -> bool {
        Arc::ptr_eq(&self.0.engine, engine) && self.0.size == engine.size(snapshot)
    }

    /// Bytes of its memory.
    pub(crate) fn size(&self) -> usize {
        self.0.size
    }

    /// Runs the program of `snapshot` once. `write` puts the input into its area and returns the
    /// length; it may be called again, with a larger area.
    pub(crate) fn run<E>(
        self,
        snapshot: &Snapshot,
        deadline: Duration,
        write: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<FinishedInstance, (Option<Self>, E)> {
        let mut parts = self.0;
        match parts.run(snapshot, deadline, write) {
            Ok(outcome) => Ok(FinishedInstance { parts, outcome }),
            Err(error) => Err((parts.erased(), error)),
        }
    }
}

impl FinishedInstance {
    /// The output, or why there is none.
    pub(crate) fn output(&self) -> Result<&[u8], Fault> {
        let range = self.outcome.clone()?;
        Ok(&self.parts.memory.data(&self.parts.store)[range])
    }

    /// Makes it as new, or drops it.
    pub(crate) fn reset(self) -> Option<Instance> {
        self.outcome.ok()?;
        self.parts.erased()
    }
}

impl Parts {
    fn run<E>(
        &mut self,
        snapshot: &Snapshot,
        deadline: Duration,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Result<Range<usize>, Fault>, E> {
        let Self { engine, store, memory, run, .. } = self;
        let data = memory.data_mut(&mut *store);
        snapshot.restore(data);
        let whole = snapshot.input + MAX_INPUT;
        let end = data.len().min(whole);
        let length = match write(&mut data[snapshot.input..end]) {
            // Few inputs are that long. If the memory were kept, all runs would have to erase it.
            Err(_) if end < whole => {
                if let Err(error) = grow(memory, store, whole) {
                    return Ok(Err(Fault::Host(error.to_string())));
                }
                write(&mut memory.data_mut(&mut *store)[snapshot.input..whole])?
            }
            written => written?,
        };
        store.set_epoch_deadline(1);
        let deadline = match Deadline::for_instance(&engine.engine, deadline) {
            Ok(deadline) => deadline,
            Err(error) => return Ok(Err(Fault::Host(format!("no timer for the deadline: {error}")))),
        };
        let called = run.call(&mut *store, length as u32);
        drop(deadline);
        Ok(engine.outcome(called, memory.data(&*store)))
    }

    /// Makes it as new, unless its memory has grown.
    fn erased(mut self: Box<Self>) -> Option<Instance> {
        let memory = self.memory.data_mut(&mut self.store);
        if memory.len() != self.size {
            return None;
        }
        self.engine.initial.erase(memory);
        self.stack_pointer.set(&mut self.store, Val::I32(self.engine.initial.stack_pointer())).ok()?;
        Some(Instance(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extension::is_unrestorable;
    use crate::wasm::GUEST;
    use std::convert::Infallible;
    use wasmparser::{Parser, Payload};

    #[test]
    fn nothing_else_of_the_image_lasts() {
        let (mut mutable, mut memories, mut functions) = (0, 0, 0);
        for payload in Parser::new(0).parse_all(GUEST) {
            match payload.unwrap() {
                Payload::ImportSection(imports) => assert_eq!(imports.count(), 0, "something outside may last"),
                Payload::MemorySection(section) => memories += section.count(),
                Payload::GlobalSection(globals) => {
                    mutable += globals.into_iter().filter(|global| global.as_ref().unwrap().ty.mutable).count();
                }
                Payload::CodeSectionEntry(body) => {
                    functions += 1;
                    for operator in body.get_operators_reader().unwrap() {
                        let operator = operator.unwrap();
                        assert!(!is_unrestorable(&operator), "{operator:?} cannot be undone");
                    }
                }
                _ => {}
            }
        }
        assert_eq!((mutable, memories), (1, 1), "the stack pointer and the memory are erased, nothing else");
        assert!(functions > 10, "the image was read");
    }

    #[test]
    fn an_instance_that_was_reset_is_as_new() {
        let engine = Arc::new(Wasm::compile(GUEST).unwrap());
        // A program of noise: the guest traps. Otherwise the instance would be dropped; this test
        // is about the data that it leaves.
        let noise: Vec<u8> = engine.initial.memory().iter().map(|_| 0xee).collect();
        let snapshot = Snapshot::take(engine.initial.memory(), &noise, noise.len());
        let fresh = Instance::new(&engine, &snapshot).unwrap();
        let (size, start) = (fresh.size(), fresh.0.memory.data(&fresh.0.store).to_vec());
        let spent = fresh.run(&snapshot, Duration::from_secs(10), |area| {
            area.fill(0xdd);
            Ok::<_, Infallible>(area.len())
        });
        let spent = spent.unwrap_or_else(|(_, never)| match never {});
        assert!(spent.parts.memory.data(&spent.parts.store) != start);
        let reset = spent.parts.erased().expect("no memory was added");
        assert_eq!(reset.size(), size);
        let mut parts = reset.0;
        assert!(parts.memory.data(&parts.store) == start);
        assert_eq!(parts.stack_pointer.get(&mut parts.store).i32(), Some(engine.initial.stack_pointer()));
    }
}
