//! Selects the control plane and the token: by arguments, by the environment, or by a file.

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::geteuid;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const LARGEST: u64 = 1 << 20;

/// The control plane to ask. The file `~/.config/leno/config` has defaults.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Server {
    /// The API of a control plane: https://HOST:PORT.
    #[arg(long, value_name = "URL", env = "LENO_SERVER")]
    pub server: Option<String>,
    /// File with the token.
    #[arg(long, value_name = "FILE", env = "LENO_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificates to trust. Without it: those that the machine trusts.
    #[arg(long, value_name = "FILE", env = "LENO_CA")]
    pub ca: Option<PathBuf>,
    /// The context in the file, instead of its current one.
    #[arg(long, value_name = "NAME", env = "LENO_CONTEXT")]
    pub context: Option<String>,
}

/// The file of contexts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contexts {
    /// The default context.
    current: String,
    contexts: BTreeMap<String, Context>,
}

/// One control plane in the file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Context {
    server: String,
    token_file: PathBuf,
    ca: Option<PathBuf>,
}

/// A control plane and the credentials for it.
pub(crate) struct Target {
    pub server: String,
    pub token: String,
    pub ca: Option<PathBuf>,
}

impl Server {
    /// Whether the arguments or the environment name a control plane.
    pub(crate) fn is_named(&self) -> bool {
        self.server.is_some() || self.context.is_some()
    }

    /// Completes the options from the file.
    pub(crate) fn target(&self) -> Result<Target> {
        if let (Some(server), None) = (&self.server, &self.context) {
            let file = self.token_file.as_deref().context("give --token-file FILE, or LENO_TOKEN_FILE")?;
            return Ok(Target { server: server.clone(), token: token(file)?, ca: self.ca.clone() });
        }
        let path = path().context("there is no HOME; give --server URL and --token-file FILE")?;
        let text = private(&path).with_context(|| {
            format!("no control plane is named: give --server URL and --token-file FILE, or write {}", path.display())
        })?;
        let contexts: Contexts =
            serde_saphyr::from_str(&text).with_context(|| format!("{} cannot be read", path.display()))?;
        let name = self.context.as_ref().unwrap_or(&contexts.current);
        let Some(context) = contexts.contexts.get(name) else {
            let known: Vec<&str> = contexts.contexts.keys().map(String::as_str).collect();
            bail!("{}: there is no context `{name}`; there are: {}", path.display(), known.join(", "));
        };
        let file = self.token_file.as_ref().unwrap_or(&context.token_file);
        let server = self.server.as_ref().unwrap_or(&context.server).clone();
        Ok(Target { server, token: token(file)?, ca: self.ca.clone().or_else(|| context.ca.clone()) })
    }
}

fn path() -> Option<PathBuf> {
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let config = config.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))?;
    Some(config.join("leno/config"))
}

fn token(path: &Path) -> Result<String> {
    let text = private(path).with_context(|| format!("the token cannot be read from {}", path.display()))?;
    let token = text.trim();
    ensure!(
        !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()),
        "{} does not hold a token: expected one line, as `leno token create` prints it",
        path.display()
    );
    Ok(token.to_owned())
}

/// Reads a file that only this account can read.
fn private(path: &Path) -> Result<String> {
    let file = File::open(path)?;
    let found = file.metadata()?;
    ensure!(
        found.mode() & 0o077 == 0 && [0, geteuid().as_raw()].contains(&found.uid()),
        "other accounts can read it (mode {:o}, account {}); chown it, and chmod 600 it",
        found.mode() & 0o777,
        found.uid()
    );
    let mut text = String::new();
    file.take(LARGEST).read_to_string(&mut text)?;
    Ok(text)
}
