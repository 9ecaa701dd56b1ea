//! The portable engine: every run has exclusive use of a WebAssembly instance that is as new, with
//! the memory that the program's initialisation left. It isolates by the checks that the compiler
//! puts into the module's code.

mod compiler;
mod initial;
mod instance;
mod snapshot;

pub(crate) use instance::{FinishedInstance, Instance};
pub(crate) use snapshot::{Changes, Snapshot};

use crate::deadline::{self, Deadline};
use crate::error::{EngineError, LoadError};
use crate::fault::{Access, Fault, printable};
use initial::Initial;
use leno_policy::input::MAX_INPUT;
use leno_policy::outcome::MAX_OUTPUT;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, InstancePre, Linker, Memory, Module, ModuleExport,
    PoolingAllocationConfig, Store, Trap, UpdateDeadline,
};

/// The image that this crate was built with.
pub(crate) const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/leno-guest.wasm"));
/// The same image, compiled by the build script.
const COMPILED_GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/leno-guest.cwasm"));

/// Largest memory of an instance, in bytes: variables, stack and heap together.
const MEMORY: usize = 2 * 1024 * 1024;
/// The memory in which a program is built, not counting the blob.
const INIT_MEMORY: usize = 512 * 1024;
/// The limit of instances in this process at one time, including those that workers keep for their
/// next runs. Each is an address range until it is used.
const INSTANCES: u32 = 1024;
/// Memory of an instance's slot that is kept for the next instance, erased, rather than given back
/// to the kernel.
const RESIDENT: usize = 256 * 1024;
/// A program that takes longer than this to build is refused.
const INIT_DEADLINE: Duration = Duration::from_secs(2);
/// A program that takes longer than this for its first run is refused.
const TRIAL_DEADLINE: Duration = Duration::from_secs(2);
/// Largest encoded program.
const BLOB: usize = 1024 * 1024;
const WASM_PAGE: usize = 65_536;

// The guest's status words, as in its source.
const DONE: u32 = 1;
const REFUSED: u32 = 2;
const PANICKED: u32 = 3;
const OUT_OF_MEMORY: u32 = 4;

/// The engine: the compiled module, with the places of its parts.
pub(crate) struct Wasm {
    engine: Engine,
    ready: InstancePre<()>,
    memory: ModuleExport,
    stack_pointer: ModuleExport,
    run: ModuleExport,
    /// Address of the guest's report.
    report: usize,
    initial: Initial,
}

impl Wasm {
    /// Starts the built-in image. It is compiled now only if this processor lacks a feature that
    /// the compiled image uses.
    pub(crate) fn open() -> Result<Self, EngineError> {
        match precompiled(COMPILED_GUEST) {
            Ok((engine, module)) => Self::start(engine, &module),
            Err(error) => {
                tracing::info!("the guest is compiled at this start, which takes longer: {error:#}");
                Self::compile(GUEST)
            }
        }
    }

    /// Compiles an image and starts it once.
    pub(crate) fn compile(image: &[u8]) -> Result<Self, EngineError> {
        let engine = Engine::new(&config()).map_err(|error| EngineError::Wasm(format!("{error:#}")))?;
        let module = compile_apart(&engine, image)?;
        Self::start(engine, &module)
    }

    fn start(engine: Engine, module: &Module) -> Result<Self, EngineError> {
        let failed = |error: wasmtime::Error| EngineError::Wasm(format!("{error:#}"));
        let ready = Linker::new(&engine).instantiate_pre(module).map_err(failed)?;
        let export = |name| {
            module.get_export_index(name).ok_or_else(|| EngineError::Wasm(format!("the module has no `{name}`")))
        };
        let [memory, stack_pointer, run] = [export("memory")?, export("__stack_pointer")?, export("run")?];
        let mut store = store(&engine);
        store.set_epoch_deadline(u64::MAX / 2);
        let instance = ready.instantiate(&mut store).map_err(failed)?;
        let report = instance
            .get_global(&mut store, "REPORT")
            .and_then(|global| global.get(&mut store).i32())
            .ok_or_else(|| EngineError::Wasm("the module has no `REPORT`".into()))?;
        let initial = Initial::of(&instance, &mut store)
            .ok_or_else(|| EngineError::Wasm("the module has no memory, or no stack".into()))?;
        Ok(Self { engine, ready, memory, stack_pointer, run, report: report as usize, initial })
    }

    /// Initialises a program.
    pub(crate) fn load(&self, program: &[u8]) -> Result<Snapshot, LoadError> {
        if program.len() > BLOB {
            return Err(LoadError::TooLarge { bytes: program.len(), limit: BLOB });
        }
        let failed = |error: wasmtime::Error| EngineError::Wasm(format!("{error:#}"));
        let mut store = store(&self.engine);
        let instance = self.ready.instantiate(&mut store).map_err(failed)?;
        let memory = self.memory(&mut store, &instance)?;
        let growth = INIT_MEMORY.saturating_sub(memory.data_size(&store)).div_ceil(WASM_PAGE);
        memory.grow(&mut store, growth as u64).map_err(failed)?;
        // The blob goes to the end of the memory and is erased before the snapshot is taken.
        let pages = program.len().div_ceil(WASM_PAGE);
        let address = memory.grow(&mut store, pages as u64).map_err(|_| LoadError::OutOfMemory)? as usize * WASM_PAGE;
        memory.data_mut(&mut store)[address..address + program.len()].copy_from_slice(program);
        let init = instance.get_typed_func::<(u32, u32), ()>(&mut store, "init").map_err(failed)?;
        store.set_epoch_deadline(1);
        // The deadline is for all calls of the guest here, including `input`.
        let _deadline = Deadline::for_instance(&self.engine, INIT_DEADLINE).map_err(EngineError::Timer)?;
        let called = init.call(&mut store, (address as u32, program.len() as u32));
        match self.outcome(called, memory.data(&store)) {
            Ok(_) => {}
            Err(Fault::Refused(reason)) => return Err(LoadError::Refused(reason)),
            Err(Fault::OutOfMemory) => return Err(LoadError::OutOfMemory),
            Err(fault) => return Err(LoadError::Fault(fault)),
        }
        let input = instance.get_typed_func::<(), u32>(&mut store, "input").map_err(failed)?;
        let input = input.call(&mut store, ()).map_err(failed)? as usize;
        // No memory above the heap's top is in use.
        let built = &memory.data(&store)[..input.min(address)];
        let needed = (input + MAX_INPUT).next_multiple_of(WASM_PAGE);
        if needed + MAX_OUTPUT > MEMORY {
            return Err(LoadError::OutOfMemory);
        }
        Ok(Snapshot::take(self.initial.memory(), built, input))
    }

    /// Bytes of memory of an instance for an ordinary run of this program.
    fn size(&self, snapshot: &Snapshot) -> usize {
        snapshot.memory().next_multiple_of(WASM_PAGE).max(self.initial.memory().len())
    }

    fn memory(&self, store: &mut Store<()>, instance: &wasmtime::Instance) -> Result<Memory, EngineError> {
        instance
            .get_module_export(store, &self.memory)
            .and_then(wasmtime::Extern::into_memory)
            .ok_or_else(|| EngineError::Wasm("the module's `memory` is none".into()))
    }

    /// The place of the output, or why there is none. The guest's report is not trusted.
    fn outcome(&self, called: Result<(), wasmtime::Error>, memory: &[u8]) -> Result<Range<usize>, Fault> {
        let word = |index: usize| {
            let at = self.report + index * 4;
            memory
                .get(at..at + 4)
                .map_or(0, |bytes| bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)))
        };
        let (status, address, length) = (word(0), word(1) as usize, word(2) as usize);
        let bytes = memory.get(address..address.saturating_add(length));
        let text = || printable(bytes.unwrap_or_default());
        match (called, status) {
            (Err(error), PANICKED) if is_unreachable(&error) => Err(Fault::Panicked(text())),
            (Err(error), OUT_OF_MEMORY) if is_unreachable(&error) => Err(Fault::OutOfMemory),
            (Err(error), _) => Err(trapped(&error)),
            (Ok(()), DONE) if length <= MAX_OUTPUT && bytes.is_some() => Ok(address..address + length),
            (Ok(()), DONE) => Err(Fault::BadLength { length, limit: MAX_OUTPUT }),
            (Ok(()), REFUSED) => Err(Fault::Refused(text())),
            (Ok(()), other) => Err(Fault::Escape(format!("returned with the unknown status {other}"))),
        }
    }
}

/// Runs a program once on the input that `trial` writes, in an instance that is thrown away.
pub(crate) fn try_out(
    engine: &Arc<Wasm>,
    snapshot: &Snapshot,
    trial: impl FnMut(&mut [u8]) -> Result<usize, Fault>,
) -> Result<(), LoadError> {
    let spent = Instance::new(engine, snapshot)?.run(snapshot, TRIAL_DEADLINE, trial);
    match spent.map(|spent| spent.output().err()) {
        Ok(Some(fault)) | Err((_, fault)) => Err(LoadError::Trial(fault)),
        Ok(None) => Ok(()),
    }
}

/// A store whose instance ends when the time of its thread's run is up.
fn store(engine: &Engine) -> Store<()> {
    let mut store = Store::new(engine, ());
    // The epoch belongs to the engine, so the run whose time was up may have been another thread's.
    store.epoch_deadline_callback(|_| {
        Ok(if deadline::is_over() { UpdateDeadline::Interrupt } else { UpdateDeadline::Continue(1) })
    });
    store
}

/// Grows a memory to at least `bytes` bytes.
fn grow(memory: &Memory, store: &mut Store<()>, bytes: usize) -> Result<(), wasmtime::Error> {
    let missing = bytes.saturating_sub(memory.data_size(&*store));
    if missing > 0 {
        memory.grow(store, missing.div_ceil(WASM_PAGE) as u64)?;
    }
    Ok(())
}

/// The engine and the module of an image that the build script compiled. The compiler is not
/// started: its code and its tables would take memory.
#[allow(unsafe_code)]
fn precompiled(image: &[u8]) -> wasmtime::Result<(Engine, Module)> {
    let mut config = config();
    config.enable_compiler(false);
    let engine = Engine::new(&config)?;
    // SAFETY: the build script compiled this code, and it is part of this program, as its other code is. The engine
    // checks that it has the same release and settings, and that the processor has the features.
    let module = unsafe { Module::deserialize(&engine, image) }?;
    Ok((engine, module))
}

/// Compiles on a separate thread: the memory of the compiler, tens of megabytes, goes back to the
/// system when the thread ends.
fn compile_apart(engine: &Engine, image: &[u8]) -> Result<Module, EngineError> {
    let compiled = std::thread::scope(|scope| scope.spawn(|| Module::new(engine, image)).join());
    match compiled {
        Ok(module) => module.map_err(|error| EngineError::Wasm(format!("{error:#}"))),
        Err(_) => Err(EngineError::Wasm("the compiler panicked".into())),
    }
}

fn config() -> Config {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_core_instances(INSTANCES)
        .total_memories(INSTANCES)
        .total_tables(INSTANCES)
        .max_memory_size(MEMORY)
        .linear_memory_keep_resident(RESIDENT)
        .table_elements(1000)
        .table_keep_resident(8 * 1024)
        // Asking the kernel which pages were written takes longer than erasing all of so small a memory.
        .pagemap_scan(Enabled::No);
    tuned(pool)
}

/// The settings that all engines of this kind have in common.
pub(crate) fn tuned(pool: PoolingAllocationConfig) -> Config {
    let mut config = compiler::config();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .wasm_backtrace_max_frames(None)
        // Compiling is rare, and threads kept for it would keep memory too.
        .parallel_compilation(false);
    config
}

fn is_unreachable(error: &wasmtime::Error) -> bool {
    error.downcast_ref::<Trap>() == Some(&Trap::UnreachableCodeReached)
}

/// The fault that corresponds to a trap.
pub(crate) fn trapped(error: &wasmtime::Error) -> Fault {
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => Fault::Deadline,
        Some(Trap::StackOverflow) => Fault::StackOverflow,
        Some(Trap::MemoryOutOfBounds | Trap::HeapMisaligned) => {
            Fault::Memory { at: 0, address: 0, access: Access::Unknown }
        }
        Some(Trap::IntegerDivisionByZero | Trap::IntegerOverflow) => Fault::Arithmetic { at: 0 },
        Some(Trap::UnreachableCodeReached) => Fault::Instruction { at: 0, what: "an undefined instruction" },
        Some(trap) => Fault::Trap(trap.to_string()),
        None => Fault::Host(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::arch::is_x86_feature_detected;

    #[test]
    fn the_image_is_not_compiled_on_a_processor_that_has_its_features() {
        let has_features = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("lzcnt");
        let opened = precompiled(COMPILED_GUEST).map(drop);
        assert_eq!(opened.is_ok(), has_features, "{opened:?}");
    }

    #[test]
    fn code_that_was_compiled_in_another_way_is_refused() {
        let module = wat::parse_str("(module)").unwrap();
        let compile = |config: &Config| Engine::new(config).unwrap().precompile_module(&module).unwrap();
        assert!(precompiled(&compile(&compiler::config())).is_ok());
        // Its runs would not end at their deadline.
        assert!(precompiled(&compile(compiler::config().epoch_interruption(false))).is_err());
        let damaged = compile(&compiler::config()).split_off(100);
        assert!(precompiled(&damaged).is_err());
    }
}
