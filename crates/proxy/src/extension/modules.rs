//! The modules and components of this node, compiled once each, by their hashes.

use leno_config::ModuleHash;
use leno_sandbox::component::{Component, Components};
use leno_sandbox::extension::{Extensions, Module};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// How a component begins, in the version that is current.
const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

/// What is compiled. Each engine is started with the first that it is for.
#[derive(Debug, Default)]
pub struct Modules {
    extensions: OnceLock<Result<Extensions, String>>,
    components: OnceLock<Result<Components, String>>,
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
    /// It has another hash, or it is none that can be run here; the reason is remembered too.
    pub fn add(&self, hash: ModuleHash, bytes: &[u8]) -> Result<(), String> {
        if let Some(known) = self.lock().get(&hash) {
            return known.as_ref().map(drop).map_err(Clone::clone);
        }
        let compiled = if ModuleHash::of(bytes) == hash {
            self.compile(bytes)
        } else {
            Err(format!("the module is not the one with the hash {hash}"))
        };
        let result = compiled.as_ref().map(drop).map_err(Clone::clone);
        self.lock().insert(hash, compiled);
        result
    }

    fn compile(&self, bytes: &[u8]) -> Result<Compiled, String> {
        if bytes.starts_with(COMPONENT) {
            let engine = self.components.get_or_init(|| Components::new().map_err(|error| error.to_string()));
            let component = engine.as_ref()?.compile(bytes).map_err(|error| error.to_string())?;
            return Ok(Compiled::Component(component));
        }
        let engine = self.extensions.get_or_init(|| Extensions::new().map_err(|error| error.to_string()));
        let module = engine.as_ref()?.compile(bytes).map_err(|error| error.to_string())?;
        Ok(Compiled::Extension(module))
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
