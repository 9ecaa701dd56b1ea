//! The engine of extensions. A process has one.

use super::calls;
use super::failure::CompileError;
use super::host::{Host, MOST_TABLE};
use super::module::Module;
use super::plugin::LARGEST_MEMORY;
use crate::clock::Clock;
use crate::cpu_time::Limit;
use crate::error::EngineError;
use crate::wasm::tuned;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::{Config, Enabled, Engine, Linker, PoolingAllocationConfig, Store, UpdateDeadline};

/// The limit of instances in this process at one time, including those that wait for responses.
pub const MOST_INSTANCES: u32 = 1128;
/// Memory of an instance's slot that is kept for the next instance, erased, rather than given back
/// to the kernel.
const RESIDENT: usize = 256 * 1024;

/// Compiles and runs extensions. Cloning is cheap.
#[derive(Clone)]
pub struct Extensions(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub engine: Engine,
    pub linker: Linker<Host>,
    pub clock: Clock,
}

impl Extensions {
    /// An engine with its own thread that counts deadlines.
    pub fn new() -> Result<Self, EngineError> {
        let failed = |error: wasmtime::Error| EngineError::Wasm(format!("{error:#}"));
        let engine = Engine::new(&config()).map_err(failed)?;
        let mut linker = Linker::new(&engine);
        calls::link(&mut linker).map_err(failed)?;
        let clock = Clock::start(&engine).map_err(|error| EngineError::Wasm(error.to_string()))?;
        Ok(Self(Arc::new(Inner { engine, linker, clock })))
    }

    /// Compiles a module, and checks that this engine can run it. Takes some tens of milliseconds
    /// for a usual one.
    pub fn compile(&self, module: &[u8]) -> Result<Module, CompileError> {
        Module::compile(self, module)
    }
}

impl Inner {
    /// A store whose instance is ended when this thread has used `deadline` of processor time.
    pub(super) fn store(&self, mut host: Host, deadline: Duration) -> Store<Host> {
        host.limit = Limit::after(deadline);
        let mut store = Store::new(&self.engine, host);
        store.limiter(|host| host);
        self.clock.hurry_for(deadline);
        store.set_epoch_deadline(Clock::ticks(deadline));
        store.epoch_deadline_callback(|mut store| {
            let left = store.data_mut().limit.left();
            Ok(if left.is_zero() { UpdateDeadline::Interrupt } else { UpdateDeadline::Continue(Clock::ticks(left)) })
        });
        store
    }

    /// Gives more time to an instance that continues.
    pub(super) fn extend(store: &mut Store<Host>, deadline: Duration) {
        store.data_mut().limit = Limit::after(deadline);
        store.set_epoch_deadline(Clock::ticks(deadline));
    }
}

fn config() -> Config {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_core_instances(MOST_INSTANCES)
        .total_memories(MOST_INSTANCES)
        .total_tables(MOST_INSTANCES)
        .max_memories_per_module(1)
        .max_tables_per_module(1)
        .max_memory_size(LARGEST_MEMORY)
        .linear_memory_keep_resident(RESIDENT)
        .table_elements(MOST_TABLE)
        .table_keep_resident(8 * 1024)
        // Asking the kernel which pages were written takes longer than erasing those that are kept.
        .pagemap_scan(Enabled::No);
    let mut config = tuned(pool);
    // The SDKs' compilers do not use these features, and each would need another thing to be
    // restored.
    config.wasm_memory64(false).wasm_multi_memory(false);
    config
}

impl fmt::Debug for Extensions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Extensions")
    }
}
