//! The modules and components of this node, compiled once each, by their hashes.

use leno_config::ModuleHash;
use leno_sandbox::EngineError;
use leno_sandbox::component::{Component, Components};
use leno_sandbox::extension::{Extensions, Module};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How a component begins, in the version that is current.
const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

/// What is compiled. Each engine is started with the first that it is for.
#[derive(Debug, Default)]
pub struct Modules {
    extensions: Mutex<Option<Extensions>>,
    components: Mutex<Option<Components>>,
    compiled: Mutex<HashMap<ModuleHash, Result<Compiled, String>>>,
}

#[derive(Clone, Debug)]
enum Compiled {
    Extension(Module),
    Component(Component),
}

impl Modules {
    /// Compiles a module or a component, unless that was done before. Takes some tens of milliseconds, or seconds for an interpreter, and
    /// does not belong on a worker thread.
    ///
    /// # Errors
    /// It has another hash, or it is none that can be run here: that is remembered. Or its engine cannot be started, which may pass.
    pub fn add(&self, hash: ModuleHash, bytes: &[u8]) -> Result<(), String> {
        if let Some(known) = self.lock().get(&hash) {
            return known.as_ref().map(drop).map_err(Clone::clone);
        }
        let compiled = if ModuleHash::of(bytes) == hash {
            self.compile(bytes)?
        } else {
            Err(format!("the module is not the one with the hash {hash}"))
        };
        let result = compiled.as_ref().map(drop).map_err(Clone::clone);
        self.lock().insert(hash, compiled);
        result
    }

    /// What the bytes say, or why there is no engine to find that out.
    fn compile(&self, bytes: &[u8]) -> Result<Result<Compiled, String>, String> {
        if bytes.starts_with(COMPONENT) {
            let component = engine(&self.components, Components::new)?.compile(bytes);
            return Ok(component.map(Compiled::Component).map_err(|error| error.to_string()));
        }
        let module = engine(&self.extensions, Extensions::new)?.compile(bytes);
        Ok(module.map(Compiled::Extension).map_err(|error| error.to_string()))
    }

    /// Forgets a module. Plugins and programs made of it stay.
    pub fn remove(&self, hash: &ModuleHash) {
        self.lock().remove(hash);
    }

    /// Whether it is known, good or bad.
    pub fn knows(&self, hash: &ModuleHash) -> bool {
        self.lock().contains_key(hash)
    }

    /// A module for an extension, or why there is none.
    pub(crate) fn module(&self, hash: &ModuleHash) -> Result<Module, String> {
        match self.named(hash)? {
            Compiled::Extension(module) => Ok(module),
            Compiled::Component(_) => Err(format!("{hash} is a component, not a proxy-wasm module")),
        }
    }

    /// A component, or why there is none.
    pub(crate) fn component(&self, hash: &ModuleHash) -> Result<Component, String> {
        match self.named(hash)? {
            Compiled::Component(component) => Ok(component),
            Compiled::Extension(_) => Err(format!("{hash} is a plain module, not a component")),
        }
    }

    fn named(&self, hash: &ModuleHash) -> Result<Compiled, String> {
        let missing = || Err(format!("the module {hash} is not here yet"));
        self.lock().get(hash).cloned().unwrap_or_else(missing)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ModuleHash, Result<Compiled, String>>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine, started if it is not.
fn engine<E: Clone>(engine: &Mutex<Option<E>>, start: impl FnOnce() -> Result<E, EngineError>) -> Result<E, String> {
    let mut engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(engine) = &*engine {
        return Ok(engine.clone());
    }
    let started = start().map_err(|error| error.to_string())?;
    Ok(engine.insert(started).clone())
}
