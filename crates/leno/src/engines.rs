//! Which sandbox engine runs which function.

use leno_config::slice;
use leno_sandbox::{Engine, EngineError, EngineKind};
use std::sync::OnceLock;

/// The engines of this node; wasm is compiled when it is first needed.
pub struct Engines {
    microvm: Result<Engine, EngineError>,
    wasm: OnceLock<Result<Engine, EngineError>>,
}

/// No engine works here.
#[derive(Debug, thiserror::Error)]
#[error("neither engine works here: microvm: {microvm}; wasm: {wasm}")]
pub struct NoEngine {
    microvm: String,
    wasm: String,
}

impl Engines {
    /// Finds out what works: a guest is really run.
    pub fn probe() -> Self {
        Self { microvm: Engine::microvm(), wasm: OnceLock::new() }
    }

    /// The engine for a function: its own choice, else the mesh's, else microvm. Where no guest runs, wasm takes its place.
    pub fn choose(&self, function: Option<slice::Engine>, mesh: Option<slice::Engine>) -> Result<&Engine, NoEngine> {
        let wanted = function.or(mesh).unwrap_or(slice::Engine::Microvm);
        match (&self.microvm, wanted) {
            (Ok(engine), slice::Engine::Microvm) => Ok(engine),
            (microvm, _) => self.wasm.get_or_init(Engine::wasm).as_ref().map_err(|wasm| NoEngine {
                microvm: microvm.as_ref().err().map_or_else(|| "not asked for".to_owned(), ToString::to_string),
                wasm: wasm.to_string(),
            }),
        }
    }

    /// In words, for the start of the node.
    pub fn describe(&self, mesh: Option<slice::Engine>) -> Result<String, NoEngine> {
        let kind = self.choose(None, mesh)?.kind();
        Ok(match (&self.microvm, mesh) {
            (Err(error), None | Some(slice::Engine::Microvm)) => {
                format!("{kind}, because the microvm engine does not work here: {error}")
            }
            _ if kind == EngineKind::Microvm => format!("{kind}, a virtual machine for every request"),
            _ => kind.to_string(),
        })
    }
}
