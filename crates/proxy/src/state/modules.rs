//! The modules and components of this node, each compiled once and named by its hash.

use aws_lc_rs::digest::{SHA256, digest};
use leno_model::ModuleHash;
use leno_sandbox::EngineError;
pub use leno_sandbox::component::CompiledComponents;
use leno_sandbox::component::{self, Component, Components};
use leno_sandbox::extension::{self, Extensions, Module};
use std::collections::HashMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The first bytes of a component, in the current version of the format.
const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

/// The hash of a module.
pub(crate) fn module_hash(module: &[u8]) -> ModuleHash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, module).as_ref());
    hash.into()
}

/// Compiled modules and components. Each engine starts when it is first needed.
#[derive(Debug, Default)]
pub struct Modules {
    extensions: Mutex<Option<Extensions>>,
    components: Mutex<Option<Components>>,
    cache: Option<CompiledComponents>,
    compiled: Mutex<HashMap<ModuleHash, Result<CompiledModule, ModuleError>>>,
}

/// Why a module or a component cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ModuleError {
    /// The bytes are not the named ones.
    #[error("the module is not the one with the hash {0}")]
    WrongHash(ModuleHash),
    /// The module was not added.
    #[error("the module {0} is not here yet")]
    Missing(ModuleHash),
    /// The module is of the other kind.
    #[error("{0} is a component, not a proxy-wasm module")]
    IsComponent(ModuleHash),
    /// The module is of the other kind.
    #[error("{0} is a plain module, not a component")]
    IsModule(ModuleHash),
    /// The component does not compile.
    #[error(transparent)]
    Component(Arc<component::CompileError>),
    /// The module does not compile.
    #[error(transparent)]
    Extension(Arc<extension::CompileError>),
    /// The engine cannot be started.
    #[error(transparent)]
    Engine(Arc<EngineError>),
}

#[derive(Clone, Debug)]
enum CompiledModule {
    Extension(Module),
    Component(Component),
}

impl Modules {
    /// No modules yet. `cache`: where compiled components are kept for the next process.
    pub fn new(cache: Option<CompiledComponents>) -> Self {
        Self { cache, ..Self::default() }
    }

    /// Compiles a module or a component, unless its hash is known. Takes some tens of milliseconds,
    /// or seconds for an interpreter, and does not belong on a worker thread.
    ///
    /// # Errors
    /// The bytes have another hash, or cannot run here; this result is cached. Or the engine cannot
    /// be started; this may pass, so it is not cached.
    pub fn add(&self, hash: ModuleHash, bytes: &[u8]) -> Result<(), ModuleError> {
        if let Some(known) = self.lock().get(&hash) {
            return known.as_ref().map(drop).map_err(Clone::clone);
        }
        let compiled =
            if module_hash(bytes) == hash { self.compile(bytes)? } else { Err(ModuleError::WrongHash(hash)) };
        let result = compiled.as_ref().map(drop).map_err(Clone::clone);
        self.lock().insert(hash, compiled);
        result
    }

    /// Compiles the bytes. The outer error says why the engine could not be started; the inner one
    /// is the engine's error about the bytes.
    fn compile(&self, bytes: &[u8]) -> Result<Result<CompiledModule, ModuleError>, ModuleError> {
        if bytes.starts_with(COMPONENT) {
            let engine = engine(&self.components, || Components::new(self.cache.clone()))?;
            let component = with_progress(bytes.len(), || engine.compile(bytes));
            return Ok(component
                .map(CompiledModule::Component)
                .map_err(|error| ModuleError::Component(Arc::new(error))));
        }
        let module = engine(&self.extensions, Extensions::new)?.compile(bytes);
        Ok(module.map(CompiledModule::Extension).map_err(|error| ModuleError::Extension(Arc::new(error))))
    }

    /// Forgets a module. Plugins and programs that were made from it stay valid.
    pub fn remove(&self, hash: &ModuleHash) {
        self.lock().remove(hash);
    }

    /// Whether a module with this hash was added, be it usable or not.
    pub fn knows(&self, hash: &ModuleHash) -> bool {
        self.lock().contains_key(hash)
    }

    /// The module for an extension, or why there is none.
    pub(crate) fn module(&self, hash: &ModuleHash) -> Result<Module, ModuleError> {
        match self.named(hash)? {
            CompiledModule::Extension(module) => Ok(module),
            CompiledModule::Component(_) => Err(ModuleError::IsComponent(*hash)),
        }
    }

    /// The component, or why there is none.
    pub(crate) fn component(&self, hash: &ModuleHash) -> Result<Component, ModuleError> {
        match self.named(hash)? {
            CompiledModule::Component(component) => Ok(component),
            CompiledModule::Extension(_) => Err(ModuleError::IsModule(*hash)),
        }
    }

    fn named(&self, hash: &ModuleHash) -> Result<CompiledModule, ModuleError> {
        self.lock().get(hash).cloned().unwrap_or(Err(ModuleError::Missing(*hash)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ModuleHash, Result<CompiledModule, ModuleError>>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs that a component of this size is still compiled, after a second and then less and less
/// often.
fn with_progress<T>(bytes: usize, compile: impl FnOnce() -> T) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (begin, mut pause) = (Instant::now(), Duration::from_secs(1));
            while let Err(RecvTimeoutError::Timeout) = is_done.recv_timeout(pause) {
                let (kilobytes, seconds) = (bytes / 1000, begin.elapsed().as_secs());
                tracing::info!("compiling a component of {kilobytes} kB for {seconds} s");
                pause = (pause * 2).min(Duration::from_secs(10));
            }
        });
        let result = compile();
        drop(done);
        result
    })
}

/// The engine, started on first use.
fn engine<E: Clone>(
    engine: &Mutex<Option<E>>,
    start: impl FnOnce() -> Result<E, EngineError>,
) -> Result<E, ModuleError> {
    let mut engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(engine) = &*engine {
        return Ok(engine.clone());
    }
    let started = start().map_err(|error| ModuleError::Engine(Arc::new(error)))?;
    Ok(engine.insert(started).clone())
}
