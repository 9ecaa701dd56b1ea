//! User-written policies: which modules a function's requests meet, what they are shown, and what becomes of what they say.
//!
//! They come after the nine: what a program denies, no extension sees. A module's instance is a sandbox of its own
//! ([`leno_sandbox::extension`]); its edits and answers are checked here as a program's are, and a run that fails refuses the
//! request, or is passed over where the configuration says `failMode: open`.

mod budget;
mod fetch;
mod modules;
mod shown;
mod verdict;

pub use budget::{Budget, Exhausted, Share};
pub use fetch::ModuleFetcher;
pub use modules::Modules;
pub(crate) use shown::{Context, request, response};
pub(crate) use verdict::{Answer, Said, bad_output, said};

use leno_config::slice;
use leno_sandbox::extension::{Plugin, Settings};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One extension of one function, ready to be run.
#[derive(Debug)]
pub struct Extension {
    /// `<policy>/extensions/<name>`.
    pub name: Arc<str>,
    /// The module, configured and started once, or why there is none.
    pub plugin: Result<Plugin, String>,
    /// Whether it sees requests.
    pub request: bool,
    /// Whether it sees responses.
    pub response: bool,
    /// Whether a request goes on when its run fails.
    pub fail_open: bool,
}

impl Extension {
    /// Configures the module, if it is there.
    pub(crate) fn load(modules: &Modules, function: &str, spec: &slice::Extension, outbound: bool) -> Self {
        let plugin = modules.module(&spec.module).and_then(|module| {
            let memory = usize::try_from(spec.memory).unwrap_or(usize::MAX);
            let mut settings = Settings::new(function, &spec.name, spec.configuration.clone(), memory, spec.deadline);
            settings.outbound = outbound;
            Plugin::start(&module, settings).map_err(|error| error.to_string())
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

/// Finds out whether an extension could be run, without running it for a request.
///
/// # Errors
/// What is wrong with its module, in words.
pub fn check(modules: &Modules, spec: &slice::Extension) -> Result<(), String> {
    let module = modules.module(&spec.module)?;
    let seen = (spec.request && module.sees_requests()) || (spec.response && module.sees_responses());
    if !seen {
        let entry = if spec.request { "proxy_on_request_headers" } else { "proxy_on_response_headers" };
        return Err(format!("the module exports no `{entry}`, so it would see nothing in this phase"));
    }
    Extension::load(modules, "", spec, false).plugin.map(drop)
}

/// One run, as it is recorded.
#[derive(Clone, Debug)]
pub struct Observation {
    /// `<policy>/extensions/<name>`.
    pub name: Arc<str>,
    /// `request` or `response`.
    pub phase: &'static str,
    /// How it ended.
    pub ended: Ended,
    /// What it took, the start of the instance included.
    pub time: Duration,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub enum Ended {
    /// The exchange goes on.
    Continued,
    /// The module answered by itself.
    Answered(u16),
    /// It failed, and the exchange was refused, or went on all the same.
    Failed {
        /// For metrics.
        label: &'static str,
        /// In words.
        reason: Box<str>,
        /// It went on.
        open: bool,
    },
}

impl Ended {
    /// For metrics: how it ended, and what failed.
    pub fn labels(&self) -> (&'static str, &'static str) {
        match self {
            Self::Continued => ("continued", ""),
            Self::Answered(_) => ("answered", ""),
            Self::Failed { label, open: true, .. } => ("passed_over", label),
            Self::Failed { label, open: false, .. } => ("refused", label),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Continued => formatter.write_str("continued"),
            Self::Answered(status) => write!(formatter, "answered with {status}"),
            Self::Failed { reason, open: true, .. } => write!(formatter, "failed and was passed over: {reason}"),
            Self::Failed { reason, open: false, .. } => write!(formatter, "failed: {reason}"),
        }
    }
}
