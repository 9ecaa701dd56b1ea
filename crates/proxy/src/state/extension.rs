//! Extensions (user-written policies), ready to run: the modules that see a function's requests,
//! and how many of their instances may wait for responses.

mod budget;

pub use budget::{Budget, BudgetExhausted, Share};

use super::modules::{ModuleError, Modules};
use leno_sandbox::extension::{Plugin, Settings, StartError};
use std::sync::Arc;

/// Why an extension cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ExtensionError {
    /// Its module cannot be used.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// The module does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The module has no handler for the phase.
    #[error("the module exports no `{0}`, so it would see nothing in this phase")]
    NoHandler(&'static str),
}

/// One extension of one function, ready to run.
#[derive(Debug)]
pub struct Extension {
    /// `<policy>/extensions/<name>`.
    pub name: Arc<str>,
    /// The module, configured and started once, or why it cannot run.
    pub plugin: Result<Plugin, ExtensionError>,
    /// Whether the extension sees requests.
    pub request: bool,
    /// Whether the extension sees responses.
    pub response: bool,
    /// Whether an exchange goes on when the extension fails.
    pub fail_open: bool,
}

impl Extension {
    /// Configures the module. If it is missing or does not start, `plugin` holds the error.
    pub(crate) fn load(modules: &Modules, function: &str, spec: &leno_model::Extension, outbound: bool) -> Self {
        let plugin = modules.module(&spec.module).map_err(ExtensionError::from).and_then(|module| {
            let memory = usize::try_from(spec.memory).unwrap_or(usize::MAX);
            let mut settings = Settings::new(function, &spec.name, spec.configuration.clone(), memory, spec.deadline);
            settings.outbound = outbound;
            Ok(Plugin::start(&module, settings)?)
        });
        Self {
            name: spec.name.as_str().into(),
            plugin,
            request: spec.request,
            response: spec.response,
            fail_open: spec.fail_open,
        }
    }
}

/// Checks that an extension could run, without running it for a request.
///
/// # Errors
/// A description of the module's defect.
pub fn check(modules: &Modules, spec: &leno_model::Extension) -> Result<(), ExtensionError> {
    let module = modules.module(&spec.module)?;
    let seen = (spec.request && module.sees_requests()) || (spec.response && module.sees_responses());
    if !seen {
        let entry = if spec.request { "proxy_on_request_headers" } else { "proxy_on_response_headers" };
        return Err(ExtensionError::NoHandler(entry));
    }
    Extension::load(modules, "", spec, false).plugin.map(drop)
}
