//! A module with a configuration, started once. What its start left behind is what each of its instances begins with.

use super::engine::Inner;
use super::failure::{Failure, StartError};
use super::head::Given;
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

/// Most memory that an instance can be given, in bytes.
pub const LARGEST_MEMORY: usize = 64 * 1024 * 1024;
/// Least memory that makes sense: a page.
pub const SMALLEST_MEMORY: usize = WASM_PAGE;
/// Starting may take longer than a request: it is done once, where nobody waits.
const START_DEADLINE: Duration = Duration::from_secs(2);
const WASM_PAGE: usize = 65_536;

/// What one extension is given.
#[derive(Debug, Default)]
pub struct Settings {
    /// `namespace/name` of the function.
    pub function: String,
    /// `<policy>/extensions/<name>`.
    pub name: String,
    /// The plugin's configuration, as written.
    pub configuration: Vec<u8>,
    /// Bytes of memory of an instance.
    pub memory: usize,
    /// Longest run, in processor time; the response's run has the same time again.
    pub deadline: Duration,
    /// Whether it is one of the caller's or of the callee's.
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

/// A module, configured and known to start. Cloning is cheap.
#[derive(Clone)]
pub struct Plugin {
    pub(super) module: Module,
    pub(super) settings: Arc<Settings>,
    start: Arc<Start>,
}

/// How an instance comes to be ready for a request.
enum Start {
    /// By starting it, because its start depends on the time or on chance, or because it cannot be copied.
    Anew,
    /// By copying what the start left.
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
        // Nothing of this start is a request's: its time has not begun, and what it shares is gone after it.
        store.data_mut().given = Some(Given { now_ms: 0, random: 0, shared: Arc::new(SharedData::default()) });
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

    /// Longest run.
    pub fn deadline(&self) -> Duration {
        self.settings.deadline
    }

    /// Whether instances begin with a copy of what one start left, rather than with a start of their own.
    pub fn is_copied(&self) -> bool {
        matches!(&*self.start, Start::Copy { .. })
    }

    /// Bytes of memory that it costs while it is loaded, without its module's code.
    pub fn bytes(&self) -> usize {
        match &*self.start {
            Start::Anew => 0,
            Start::Copy { changes, globals, .. } => changes.bytes() + size_of_val(&**globals),
        }
    }

    /// A new instance that has been started.
    pub(super) fn instance(&self, given: Given, deadline: Duration) -> Result<(Store<Host>, Instance), Failure> {
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

/// Bit for bit.
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
