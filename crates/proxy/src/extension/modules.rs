//! The modules of this node, compiled once each, by their hashes.

use leno_config::ModuleHash;
use leno_sandbox::extension::{Extensions, Module};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Compiled modules. The engine is started with the first.
#[derive(Debug, Default)]
pub struct Modules {
    engine: OnceLock<Result<Extensions, String>>,
    compiled: Mutex<HashMap<ModuleHash, Result<Module, String>>>,
}

impl Modules {
    /// Compiles a module, unless that was done before. Takes some tens of milliseconds, and does not belong on a worker thread.
    ///
    /// # Errors
    /// It has another hash, or it is none that can be run here; the reason is remembered too.
    pub fn add(&self, hash: ModuleHash, bytes: &[u8]) -> Result<(), String> {
        if let Some(known) = self.lock().get(&hash) {
            return known.as_ref().map(drop).map_err(Clone::clone);
        }
        let compiled = if ModuleHash::of(bytes) == hash {
            let engine = self.engine.get_or_init(|| Extensions::new().map_err(|error| error.to_string()));
            let engine = engine.as_ref().map_err(Clone::clone);
            engine.and_then(|engine| engine.compile(bytes).map_err(|error| error.to_string()))
        } else {
            Err(format!("the module is not the one with the hash {hash}"))
        };
        let result = compiled.as_ref().map(drop).map_err(Clone::clone);
        self.lock().insert(hash, compiled);
        result
    }

    /// Forgets a module. Plugins made of it stay.
    pub fn remove(&self, hash: &ModuleHash) {
        self.lock().remove(hash);
    }

    /// Whether it is known, good or bad.
    pub fn knows(&self, hash: &ModuleHash) -> bool {
        self.lock().contains_key(hash)
    }

    /// A module, or why there is none.
    pub(crate) fn module(&self, hash: &ModuleHash) -> Result<Module, String> {
        let missing = || Err(format!("the module {hash} is not here yet"));
        self.lock().get(hash).cloned().unwrap_or_else(missing)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ModuleHash, Result<Module, String>>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
