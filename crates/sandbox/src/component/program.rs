//! A component: checked, compiled once for all its instances, with their common settings.

use super::engine::{Components, Inner};
use super::failure::CompileError;
use super::host::Host;
use std::fmt;
use std::sync::Arc;
use wasmtime_wasi_http::p2::bindings::ProxyPre;

/// The largest size of a component, in bytes.
pub const LARGEST_COMPONENT: usize = 48 * 1024 * 1024;

/// A compiled component. Cloning is cheap.
#[derive(Clone)]
pub struct Component(pub(super) Arc<CompiledComponent>);

pub(super) struct CompiledComponent {
    pub engine: Arc<Inner>,
    pub ready: ProxyPre<Host>,
}

impl Component {
    pub(super) fn compile(engine: &Components, bytes: &[u8]) -> Result<Self, CompileError> {
        if bytes.len() > LARGEST_COMPONENT {
            return Err(CompileError::TooLarge { bytes: bytes.len(), limit: LARGEST_COMPONENT });
        }
        let inner = engine.0.clone();
        let component = match &inner.cache {
            Some(cache) => cache.component(&inner.engine, bytes),
            None => wasmtime::component::Component::from_binary(&inner.engine, bytes),
        };
        let component = component.map_err(|error| CompileError::Invalid(format!("{error:#}")))?;
        let linked =
            inner.linker.instantiate_pre(&component).map_err(|error| CompileError::Import(format!("{error:#}")))?;
        let ready = ProxyPre::new(linked).map_err(|error| CompileError::Export(format!("{error:#}")))?;
        Ok(Self(Arc::new(CompiledComponent { engine: inner, ready })))
    }
}

impl fmt::Debug for Component {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Component")
    }
}

/// The settings of every instance.
pub struct Settings {
    /// The whole environment of an instance.
    pub(super) env: Vec<(String, String)>,
    /// The limit of memory, in bytes.
    pub(super) memory: usize,
    pub(super) stdout: Arc<str>,
    pub(super) stderr: Arc<str>,
    /// Whether a line with this number of bytes is logged.
    pub(super) admits: Arc<dyn Fn(usize) -> bool + Send + Sync>,
}

impl Settings {
    /// Settings for the function of this name (which begins the lines that it writes), with this
    /// environment and at most `memory` bytes of memory.
    pub fn new(function: &str, env: Vec<(String, String)>, memory: usize) -> Self {
        let (stdout, stderr) = (format!("{function} |").into(), format!("{function} !").into());
        Self { env, memory, stdout, stderr, admits: Arc::new(|_| true) }
    }

    /// Logs a line only if `admits` returns true for the number of its bytes.
    pub fn with_log(self, admits: impl Fn(usize) -> bool + Send + Sync + 'static) -> Self {
        Self { admits: Arc::new(admits), ..self }
    }
}

/// Leaves out the environment, which may hold secrets.
impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Settings").field("memory", &self.memory).finish_non_exhaustive()
    }
}

/// A component with its settings, which serves a function's requests. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Program {
    pub(super) component: Component,
    pub(super) settings: Arc<Settings>,
}

impl Program {
    /// A program of which nothing runs yet.
    pub fn new(component: Component, settings: Settings) -> Self {
        Self { component, settings: Arc::new(settings) }
    }
}
