//! Selects the control plane and the token: by options, by the environment, or by a context.

use super::contexts::{Context, Contexts};
use crate::private_file;
use anyhow::{Context as _, Result};
use std::path::PathBuf;

pub(crate) const NO_CONTROL_PLANE: &str =
    "no control plane is named: give --server URL and --token-file FILE, or add a context with `leno context add`";

/// The control plane to ask. Options win over the environment, and that wins over the current
/// context (`leno context`).
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Server {
    /// The API of a control plane: https://HOST:PORT. [env: LENO_SERVER]
    #[arg(long, value_name = "URL", global = true)]
    pub server: Option<String>,
    /// File with the token. [env: LENO_TOKEN_FILE]
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificates to trust. Without it: those that the machine trusts. [env:
    /// LENO_CA]
    #[arg(long, value_name = "FILE", global = true)]
    pub ca: Option<PathBuf>,
    /// Take control plane, token and namespace from this context (`leno context list`), instead of
    /// the environment and the current context. `local`: the node of this machine.
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
}

/// A control plane, the credentials for it, and the namespace of names without one.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub server: String,
    pub token_file: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    pub namespace: Option<String>,
    /// Whether only the current context names it, and neither an option nor the environment.
    pub implied: bool,
}

impl Server {
    /// The control plane that the options, the environment or the current context name; `None`: the
    /// node of this machine.
    pub(crate) fn target(&self) -> Result<Option<Target>> {
        let server = self.server.clone().or_else(|| environment("LENO_SERVER").filter(|_| self.context.is_none()));
        let context = match (&self.context, &server) {
            (Some(name), _) => Contexts::read()?.named(name)?,
            (None, Some(_)) => None,
            (None, None) => Contexts::read()?.current()?,
        };
        let (of_context, token_file, ca, namespace) = match context {
            Some(Context { server, token_file, ca, namespace }) => (Some(server), Some(token_file), ca, namespace),
            None => (None, None, None, None),
        };
        let file = |option: &Option<PathBuf>, name: &str, of_context: Option<PathBuf>| {
            let environment = || environment(name).filter(|_| self.context.is_none()).map(PathBuf::from);
            option.clone().or_else(environment).or(of_context)
        };
        let implied = server.is_none() && self.context.is_none();
        let Some(server) = server.or(of_context) else { return Ok(None) };
        let token_file = file(&self.token_file, "LENO_TOKEN_FILE", token_file);
        Ok(Some(Target { server, token_file, ca: file(&self.ca, "LENO_CA", ca), namespace, implied }))
    }

    /// The same, for commands that only a control plane can carry out.
    pub(crate) fn required(&self) -> Result<Target> {
        self.target()?.context(NO_CONTROL_PLANE)
    }
}

impl Target {
    pub(crate) fn token(&self) -> Result<String> {
        let path = self.token_file.as_deref().context("give --token-file FILE, or LENO_TOKEN_FILE")?;
        private_file::token(path)
    }
}

/// A variable of the environment; one that is empty counts as none.
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
