//! Prepares a function's component. Its environment is built once, not per request.

use crate::state::modules::{ModuleError, Modules};
use leno_model::{FunctionConfig, SecretValue, secret_values};
use leno_model::{Run, Secret, StoredSecrets, Wasm};
use leno_namespaces::{Importance, Namespace, Source};
use leno_sandbox::component::{Program, Settings};
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A revision whose code is a component.
#[derive(Debug)]
pub struct Component {
    /// The component, ready to run, or why it cannot run.
    pub program: Result<Program, ComponentError>,
    /// How long an instance may go on after the last byte of its response.
    pub grace: Duration,
    /// The node fetches the module, so it may arrive later, or never.
    pub fetched: bool,
}

/// Why a component cannot run.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ComponentError {
    /// Its module cannot be used.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// Its secrets cannot be read.
    #[error(transparent)]
    Secrets(Arc<io::Error>),
    /// Its secrets were not read before it was loaded.
    #[error("its secrets were not read")]
    NoSecrets,
}

/// The secrets of a function's components. They are read before the function is loaded, because
/// reading may take long, and loading must not.
#[derive(Default)]
pub struct ComponentSecrets {
    read: Vec<(Vec<Secret>, Result<Environment, ComponentError>)>,
    /// The stored secrets of the node, for functions that read them later.
    pub(crate) stored: StoredSecrets,
}

/// The namespace of a function on this node, once it is known.
pub(crate) type Share = Arc<OnceLock<Arc<Namespace>>>;

/// Names and values. They must never be logged.
type Environment = Vec<(String, String)>;

impl ComponentSecrets {
    /// Reads the secrets of all components among a function's revisions. A secret that cannot be
    /// read fails when it is used.
    pub async fn read(config: &FunctionConfig, stored: &StoredSecrets) -> Self {
        let mut all = Self { read: Vec::new(), stored: stored.clone() };
        let reader = stored.reader(&config.id, config.bounds.file_access());
        for revision in config.all_revisions() {
            let Run::Wasm(Wasm { secrets, .. }) = revision.template.run else { continue };
            if !secrets.is_empty() && !all.read.iter().any(|(known, _)| *known == secrets) {
                let values = secret_values(&secrets, &config.id, reader.clone()).await;
                let values = values.map_err(|error| ComponentError::Secrets(Arc::new(error)));
                let named = values.map(|values| secrets.iter().zip(values).filter_map(named).collect());
                all.read.push((secrets, named));
            }
        }
        all
    }

    fn of(&self, wasm: &Wasm) -> Result<Environment, ComponentError> {
        if wasm.secrets.is_empty() {
            return Ok(Environment::new());
        }
        let read = self.read.iter().find(|(secrets, _)| *secrets == wasm.secrets);
        read.map_or(Err(ComponentError::NoSecrets), |(_, environment)| environment.clone())
    }
}

/// A component has no files, so the configuration admits no secrets that are files.
fn named((secret, value): (&Secret, SecretValue)) -> Option<(String, String)> {
    match value {
        SecretValue::Text(text) => Some((secret.name.clone(), text)),
        SecretValue::Bytes(_) => None,
    }
}

/// The component of a revision; `None`: the revision is not a component.
pub(crate) fn load(
    modules: &Modules,
    function: (&Arc<str>, &Share),
    run: &Run,
    secrets: &ComponentSecrets,
) -> Option<Component> {
    match run {
        Run::Wasm(wasm) => {
            let program = program(modules, function, wasm, secrets);
            Some(Component { program, grace: wasm.grace, fetched: wasm.url.is_some() })
        }
        Run::Command(_) | Run::External(_) | Run::Job(_) | Run::Egress(_) | Run::Pods(_) => None,
    }
}

fn program(
    modules: &Modules,
    (function, share): (&Arc<str>, &Share),
    wasm: &Wasm,
    secrets: &ComponentSecrets,
) -> Result<Program, ComponentError> {
    let component = modules.component(&wasm.module)?;
    let mut env: Vec<(String, String)> = wasm.env.clone().into_iter().collect();
    env.extend(secrets.of(wasm)?);
    env.push(("LENO_FUNCTION".to_owned(), function.to_string()));
    let memory = usize::try_from(wasm.memory).unwrap_or(usize::MAX);
    let (name, share) = (function.clone(), share.clone());
    let admits = move |bytes| {
        share.get().is_none_or(|namespace| {
            namespace.log.admits(Source::Output, Importance::Output, &name, bytes, Instant::now())
        })
    };
    Ok(Program::new(component, Settings::new(function, env, memory).with_log(admits)))
}
