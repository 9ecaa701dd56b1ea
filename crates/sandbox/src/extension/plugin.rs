//! A module with a configuration, started once. The state after that start is the initial state of
//! each of its instances.

use super::engine::Inner;
use super::failure::{Failure, StartError};
use super::head::RunInputs;
use super::host::{self, Host};
use super::logging::Budget;
use super::module::Module;
use super::run::Instance;
use super::shared::SharedData;
use crate::wasm::Changes;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::{Store, Val};

/// The largest memory limit of an instance, in bytes.
pub const LARGEST_MEMORY: usize = 64 * 1024 * 1024;
/// The smallest useful memory limit: a page.
pub const SMALLEST_MEMORY: usize = WASM_PAGE;
/// Starting may take longer than a request: it is done once, while no request waits.
const START_DEADLINE: Duration = Duration::from_secs(2);
const WASM_PAGE: usize = 65_536;

/// The settings of one extension.
#[derive(Debug, Default)]
pub struct Settings {
    /// `namespace/name` of the function.
    pub function: String,
    /// `<policy>/extensions/<name>`.
    pub name: String,
    /// The plugin's configuration, as written.
    pub configuration: Vec<u8>,
    /// The memory limit of an instance, in bytes.
    pub memory: usize,
    /// The longest run, in processor time; the response's run has the same time again.
    pub deadline: Duration,
    /// `true`: it is an extension of the caller; `false`: of the callee.
    pub outbound: bool,
    #[doc(hidden)]
    pub(super) logged: Budget,
}

impl Settings {
    /// The settings of an extension.
    pub fn new(function: &str, name: &str, configuration: Vec<u8>, memory: usize, deadline: Duration) -> Self {
        let (function, name) = (function.to_owned(), name.to_owned());
        Self { function, name, configuration, memory, deadline, outbound: false, logged: Budget::default() }
    }
}

/// A module with a configuration, known to start. Cloning is cheap.
#[derive(Clone)]
pub struct Plugin {
    pub(super) module: Module,
    pub(super) settings: Arc<Settings>,
    start: Arc<Start>,
}

/// How an instance is prepared for a request.
enum Start {
    /// By starting it, because its start depends on the time or on random numbers, or because it
    /// cannot be copied.
    Anew,
    /// By copying the state after the start.
    Copy { memory: usize, changes: Changes, globals: Vec<(usize, Val)> },
}

impl Plugin {
    /// Starts the module with this configuration.
    pub fn start(module: &Module, settings: Settings) -> Result<Self, StartError> {
        let compiled = &module.0;
        if compiled.first_memory > settings.memory as u64 {
            return Err(StartError::Memory { needed: compiled.first_memory, limit: settings.memory as u64 });
        }
        let settings = Arc::new(settings);
        let engine = compiled.engine.clone();
        let mut store = engine.store(Host::new(settings.clone()), START_DEADLINE);
        // This start is not for a request: its time is zero, and its shared data is discarded
        // afterwards.
        store.data_mut().given = Some(RunInputs { now_ms: 0, random: 0, shared: Arc::new(SharedData::default()) });
        let _counting = engine.clock.count();
        let mut instance = Instance::new(module, &mut store).map_err(StartError::Failed)?;
        let before = instance.memory.data(&store).to_vec();
        let globals_before = instance.globals(module, &mut store);
        instance.start(module, &mut store)?;
        let start = match (instance.globals(module, &mut store), globals_before) {
            (Some(after), Some(before_globals)) if !store.data().impure => {
                let memory = instance.memory.data(&store);
                let pairs = after.into_iter().zip(before_globals).enumerate();
                let changed = pairs.filter(|(_, (after, before))| !same(after, before));
                let globals = changed.map(|(index, (after, _))| (index, after)).collect();
                Start::Copy { memory: memory.len(), changes: Changes::between(&before, memory), globals }
            }
            _ => Start::Anew,
        };
        Ok(Self { module: module.clone(), settings, start: Arc::new(start) })
    }

    /// The longest run.
    pub fn deadline(&self) -> Duration {
        self.settings.deadline
    }

    /// Whether instances begin with a copy of the state after one start, rather than being started
    /// themselves.
    pub fn is_copied(&self) -> bool {
        matches!(&*self.start, Start::Copy { .. })
    }

    /// Bytes of memory that it takes while it is loaded, without its module's code.
    pub fn bytes(&self) -> usize {
        match &*self.start {
            Start::Anew => 0,
            Start::Copy { changes, globals, .. } => changes.bytes() + size_of_val(&**globals),
        }
    }

    /// A new instance that has been started.
    pub(super) fn instance(&self, given: RunInputs, deadline: Duration) -> Result<(Store<Host>, Instance), Failure> {
        let engine: &Inner = &self.module.0.engine;
        let mut host = Host::new(self.settings.clone());
        host.take(given);
        let mut store = engine.store(host, deadline);
        let mut instance = Instance::new(&self.module, &mut store)?;
        match &*self.start {
            Start::Anew => instance.start(&self.module, &mut store).map_err(|error| match error {
                StartError::Failed(failure) => failure,
                other => Failure::Call(other.to_string()),
            })?,
            Start::Copy { memory, changes, globals } => {
                let missing = memory.saturating_sub(instance.memory.data_size(&store));
                let failed = |error: wasmtime::Error, store: &Store<Host>| host::failure(&error, store.data());
                if missing > 0 {
                    let grown = instance.memory.grow(&mut store, missing.div_ceil(WASM_PAGE) as u64);
                    grown.map_err(|error| failed(error, &store))?;
                }
                changes.apply(instance.memory.data_mut(&mut store));
                instance.set_globals(&self.module, &mut store, globals).map_err(|error| failed(error, &store))?;
            }
        }
        Ok((store, instance))
    }
}

/// Compares two values bit for bit.
fn same(one: &Val, other: &Val) -> bool {
    match (one, other) {
        (Val::I32(one), Val::I32(other)) => one == other,
        (Val::I64(one), Val::I64(other)) => one == other,
        (Val::F32(one), Val::F32(other)) => one == other,
        (Val::F64(one), Val::F64(other)) => one == other,
        (Val::V128(one), Val::V128(other)) => one.as_u128() == other.as_u128(),
        _ => false,
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Plugin").field("name", &self.settings.name).finish_non_exhaustive()
    }
}
