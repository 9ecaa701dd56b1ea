//! The engine of components. A process has one.

use super::cache::CompiledComponents;
use super::failure::CompileError;
use super::host::Host;
use super::program::Component;
use crate::clock::Clock;
use crate::error::EngineError;
use crate::wasm::tuned;
use std::fmt;
use std::sync::Arc;
use wasmtime::component::Linker;
use wasmtime::{Config, Enabled, Engine, PoolingAllocationConfig};

/// The limit of instances in this process at one time.
const INSTANCES: u32 = 1000;
/// The limit of core modules of a component. Python's components have some dozens.
const CORES: u32 = 100;
/// The limits of memories and of tables of a component.
const MEMORIES: u32 = 4;
const TABLES: u32 = 20;
/// The limit of elements of a table. JavaScript's engine has some ten thousand functions.
const TABLE: usize = 100_000;
/// The largest memory that settings can give.
const LARGEST_MEMORY: usize = 512 * 1024 * 1024;
/// Memory of an instance's slot that is kept for the next instance, rather than given back to the
/// kernel.
const RESIDENT: usize = 2 * 1024 * 1024;

/// Compiles and runs components. Cloning is cheap.
#[derive(Clone)]
pub struct Components(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub engine: Engine,
    pub linker: Linker<Host>,
    pub clock: Clock,
    pub cache: Option<CompiledComponents>,
}

impl Components {
    /// An engine with its own thread that counts turns. `cache`: where compiled components are kept
    /// for the next process.
    pub fn new(cache: Option<CompiledComponents>) -> Result<Self, EngineError> {
        let failed = |error: wasmtime::Error| EngineError::Wasm(format!("{error:#}"));
        let engine = Engine::new(&config()).map_err(failed)?;
        let mut linker = Linker::new(&engine);
        // All of WASI is linked, because the standard libraries of languages import it whether they
        // use it or not. Calls that an instance may not make return an error.
        wasmtime_wasi::p2::add_to_linker_async(&mut linker).map_err(failed)?;
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker).map_err(failed)?;
        let clock = Clock::start(&engine).map_err(|error| EngineError::Wasm(error.to_string()))?;
        Ok(Self(Arc::new(Inner { engine, linker, clock, cache })))
    }

    /// Compiles a component, and checks that this engine can run it. Takes some hundred
    /// milliseconds for one made from Rust, and many seconds for an interpreter's.
    pub fn compile(&self, component: &[u8]) -> Result<Component, CompileError> {
        Component::compile(self, component)
    }
}

fn config() -> Config {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(INSTANCES)
        .total_core_instances(INSTANCES * CORES)
        .total_memories(INSTANCES)
        .total_tables(INSTANCES * 4)
        .total_stacks(INSTANCES)
        .max_core_instances_per_component(CORES)
        .max_memories_per_component(MEMORIES)
        .max_tables_per_component(TABLES)
        .max_memory_size(LARGEST_MEMORY)
        .linear_memory_keep_resident(RESIDENT)
        .table_elements(TABLE)
        .table_keep_resident(8 * 1024)
        // Of a megabyte of stack, a run may have used two pages: where the kernel can tell, only
        // those are erased.
        .pagemap_scan(Enabled::Auto);
    let mut config = tuned(pool);
    config.wasm_component_model(true);
    // An interpreter is a hundred times as large as an extension.
    config.parallel_compilation(true);
    config
}

impl fmt::Debug for Components {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Components")
    }
}
