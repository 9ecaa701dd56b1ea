//! Chooses the sandbox engine of each function.

use leno_config::Snapshot;
use leno_policy::engine::EngineKind;
use leno_sandbox::{Engine, EngineError};
use std::sync::OnceLock;

/// The engines of this node. Each starts when it is first needed, because it takes time and memory.
#[derive(Default)]
pub struct Engines {
    /// Replaces every choice.
    only: Option<Engine>,
    microvm: OnceLock<Result<Engine, EngineError>>,
    wasm: OnceLock<Result<Engine, EngineError>>,
}

/// A requested engine does not work on this node.
#[derive(Debug, thiserror::Error)]
pub enum NoEngine {
    /// The microvm engine does not work. A function that requests it is not run in another engine.
    /// Holds the reason.
    #[error(
        "engine microvm is asked for, and does not work here: {0}; set up KVM, or write `engine: auto` or `engine: wasm`"
    )]
    Microvm(String),
    /// The wasm engine does not work. Holds the reason.
    #[error("the wasm engine does not work here: {0}")]
    Wasm(String),
}

/// Documents request an engine that does not work on this node.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {error}")]
pub struct EngineRefusal {
    /// The field with the request.
    place: String,
    error: NoEngine,
}

impl Engines {
    /// Uses this engine for all functions, regardless of the engine that they request. For
    /// measuring an engine that the configuration cannot select.
    pub fn only(engine: Engine) -> Self {
        Self { only: Some(engine), ..Self::default() }
    }

    /// The microvm engine. It works if a guest has run.
    fn microvm(&self) -> &Result<Engine, EngineError> {
        self.microvm.get_or_init(Engine::microvm)
    }

    fn wasm(&self) -> Result<&Engine, NoEngine> {
        self.wasm.get_or_init(Engine::wasm).as_ref().map_err(|error| NoEngine::Wasm(error.to_string()))
    }

    /// The engine of a function: its own choice, or else the mesh's, and never another one. If
    /// neither chooses: microvm if it works, otherwise wasm.
    pub fn choose(
        &self,
        function: Option<leno_model::Engine>,
        mesh: Option<leno_model::Engine>,
    ) -> Result<&Engine, NoEngine> {
        if let Some(engine) = &self.only {
            return Ok(engine);
        }
        match function.or(mesh) {
            Some(leno_model::Engine::Wasm) => self.wasm(),
            Some(leno_model::Engine::Microvm) => {
                self.microvm().as_ref().map_err(|error| NoEngine::Microvm(error.to_string()))
            }
            None => self.microvm().as_ref().or_else(|_| self.wasm()),
        }
    }

    /// Fails if the mesh or a function requests an engine that does not work here. The error gives
    /// the reason why the documents cannot be put into force.
    pub fn refuse(&self, snapshot: &Snapshot) -> Result<(), EngineRefusal> {
        let mesh = snapshot.mesh_config().engine;
        let refusal = |place, error| EngineRefusal { place, error };
        self.choose(None, mesh).map_err(|error| refusal("spec.engine of the Mesh document".to_owned(), error))?;
        let functions = snapshot.functions().filter_map(|id| Some((id, snapshot.function_config(id)?.engine)));
        for (id, engine) in functions.filter(|(_, engine)| engine.is_some()) {
            let place = || format!("spec.sidecar.engine of a policy of {id}");
            self.choose(engine, mesh).map_err(|error| refusal(place(), error))?;
        }
        Ok(())
    }

    /// Describes the mesh's engine, for the start of the node.
    pub fn describe(&self, mesh: Option<leno_model::Engine>) -> Result<String, NoEngine> {
        let kind = self.choose(None, mesh)?.kind();
        Ok(match (self.microvm.get(), mesh) {
            (Some(Err(error)), None) => format!("{kind}, because the microvm engine does not work here: {error}"),
            _ if kind == EngineKind::Microvm => format!("{kind}, a virtual machine for every request"),
            _ => kind.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn without_microvm() -> Engines {
        Engines { microvm: Engine::microvm_on(Path::new("/dev/null"), &[]).into(), ..Engines::default() }
    }

    #[test]
    fn what_is_asked_for_is_run_or_refused() {
        let engines = without_microvm();
        let (microvm, wasm) = (Some(leno_model::Engine::Microvm), Some(leno_model::Engine::Wasm));
        for (function, mesh) in [(None, None), (wasm, None), (None, wasm), (wasm, microvm)] {
            assert_eq!(engines.choose(function, mesh).unwrap().kind(), EngineKind::Wasm, "{function:?} {mesh:?}");
        }
        for (function, mesh) in [(microvm, None), (None, microvm), (microvm, wasm)] {
            let refused = engines.choose(function, mesh).unwrap_err().to_string();
            assert!(refused.starts_with("engine microvm is asked for, and does not work here: "), "{refused}");
        }
        assert!(engines.describe(microvm).is_err());
        assert!(engines.describe(wasm).is_ok());
        assert!(engines.describe(None).unwrap().contains("because the microvm engine does not work here"));
    }

    #[test]
    fn an_engine_that_nobody_asks_for_is_not_started() {
        let engines = Engines::default();
        assert_eq!(engines.choose(None, Some(leno_model::Engine::Wasm)).unwrap().kind(), EngineKind::Wasm);
        assert!(engines.microvm.get().is_none());
    }

    #[test]
    fn documents_that_ask_for_what_does_not_work_are_refused() {
        let engines = without_microvm();
        let load = |mesh: &str, policy: &str| {
            let text = format!(
                "{{apiVersion: leno.dev/v1alpha1, kind: Mesh, metadata: {{name: m}}, spec: {{{mesh}}}}}\n---\n\
                 {{apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {{name: a}}, spec: {{command: [a]}}}}\n---\n\
                 {{apiVersion: leno.dev/v1alpha1, kind: Policy, metadata: {{name: p}}, spec: {{functions: [a], sidecar: {{{policy}}}}}}}\n"
            );
            leno_config::load_text(Path::new("mesh.yaml"), &text).unwrap()
        };
        assert!(engines.refuse(&load("", "deadline: 1ms")).is_ok());
        assert!(engines.refuse(&load("engine: wasm", "engine: wasm")).is_ok());
        let refused = engines.refuse(&load("engine: microvm", "deadline: 1ms")).unwrap_err().to_string();
        assert!(refused.starts_with("spec.engine of the Mesh document: engine microvm"), "{refused}");
        let refused = engines.refuse(&load("", "engine: microvm")).unwrap_err().to_string();
        assert!(refused.starts_with("spec.sidecar.engine of a policy of default/a: engine microvm"), "{refused}");
    }
}
