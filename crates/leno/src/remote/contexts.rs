//! `leno context`: the file that names control planes, so that commands need no options for them.

use crate::screen::shown;
use crate::{private_file, table};
use anyhow::{Context as _, Result, bail, ensure};
use hyper::Uri;
use leno_identity::replace_private_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::env::var_os;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{PathBuf, absolute};
use std::process::ExitCode;

/// The context without a control plane: commands ask the node of this machine.
const LOCAL: &str = "local";
/// The variable that names the file.
const FILE: &str = "LENO_CONTEXT";

/// `leno context …`
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Add a control plane. The first one becomes the current context.
    Add {
        /// Name of the context.
        name: String,
        /// The API of the control plane: https://HOST:PORT.
        #[arg(long, value_name = "URL")]
        server: String,
        /// File with the token, which only this account can read.
        #[arg(long, value_name = "FILE")]
        token_file: PathBuf,
        /// PEM file with the certificates to trust. Without it: those that the machine trusts.
        #[arg(long, value_name = "FILE")]
        ca: Option<PathBuf>,
        /// Namespace of listings, and of names without one.
        #[arg(short, long, value_name = "NAMESPACE")]
        namespace: Option<String>,
        /// Replace the context of this name.
        #[arg(long)]
        replace: bool,
    },
    /// Make a context the current one. `local`: commands ask the node of this machine.
    Use {
        /// Name of the context.
        name: String,
    },
    /// List the contexts.
    List,
    /// Remove a context.
    Remove {
        /// Name of the context.
        name: String,
    },
}

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    /// The name of the current context; without one, commands ask the node of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

/// A control plane and the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Context {
    pub server: String,
    pub token_file: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl Contexts {
    /// Reads the file; without one, there are no contexts.
    pub(crate) fn read() -> Result<Self> {
        let Some(mut path) = path() else { return Ok(Self::default()) };
        if !path.exists() {
            ensure!(
                var_os(FILE).is_none_or(|file| file.is_empty()),
                "{FILE} names the file of contexts, and there is no {}: `leno context add` makes it; a context is \
                 chosen by --context or `leno context use`",
                path.display()
            );
            // The file of earlier releases.
            path.set_file_name("config");
            if !path.exists() {
                return Ok(Self::default());
            }
        }
        let text = private_file::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        serde_saphyr::from_str(&text).with_context(|| format!("{} is no file of contexts", path.display()))
    }

    /// The context of this name; `None`: `local`.
    pub(crate) fn named(mut self, name: &str) -> Result<Option<Context>> {
        if name == LOCAL {
            return Ok(None);
        }
        match self.contexts.remove(name) {
            Some(context) => Ok(Some(context)),
            None => bail!(self.unknown(name)),
        }
    }

    /// The current context; `None`: there is none, or it is `local`.
    pub(crate) fn current(self) -> Result<Option<Context>> {
        let Some(name) = self.current.clone() else { return Ok(None) };
        self.named(&name)
    }

    fn unknown(&self, name: &str) -> String {
        let names: Vec<&str> = self.contexts.keys().map(String::as_str).chain([LOCAL]).collect();
        let file = path().map(|path| format!("{}: ", path.display())).unwrap_or_default();
        format!("{file}there is no context `{}`; there are: {}", shown(name), shown(&names.join(", ")))
    }

    fn write(&self) -> Result<()> {
        let path = path().with_context(|| format!("there is no HOME; name the file by {FILE}"))?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.with_context(|| format!("{} cannot be made", folder.display()))?;
        }
        Ok(replace_private_file(&path, &serde_saphyr::to_string(self)?)?)
    }

    fn print(&self) {
        let current = self.current.as_deref().unwrap_or(LOCAL);
        let mark = |name: &str| if name == current { "*" } else { "" }.to_owned();
        let headings = ["CURRENT", "NAME", "SERVER", "NAMESPACE", "TOKEN FILE"].map(str::to_owned);
        let local =
            [mark(LOCAL), LOCAL.to_owned(), "the node of this machine".to_owned(), String::new(), String::new()];
        let rows = self.contexts.iter().map(|(name, context)| {
            let namespace = context.namespace.clone().unwrap_or_default();
            let token_file = context.token_file.display().to_string();
            [mark(name), name.clone(), context.server.clone(), namespace, token_file]
        });
        let rows = [headings, local].into_iter().chain(rows);
        table::print(&rows.map(|row| row.map(|cell| shown(&cell).into_owned()).to_vec()).collect::<Vec<_>>());
    }
}

/// The file: `LENO_CONTEXT`, or else `~/.config/leno/context.yaml`.
fn path() -> Option<PathBuf> {
    let folder = |name: &str| var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let named = var_os(FILE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let config = || folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
    named.or_else(|| Some(config()?.join("leno/context.yaml")))
}

/// Carries out `leno context …`.
pub(crate) fn run(command: Command) -> Result<ExitCode> {
    let is_first = matches!(command, Command::Add { .. }) && path().is_some_and(|path| !path.exists());
    let mut contexts = if is_first && var_os(FILE).is_some() { Contexts::default() } else { Contexts::read()? };
    match command {
        Command::Add { name, server, token_file, ca, namespace, replace } => {
            ensure!(name != LOCAL && !name.is_empty(), "`{LOCAL}` is the node of this machine; choose another name");
            ensure!(
                replace || !contexts.contexts.contains_key(&name),
                "there is a context `{}`; give --replace to replace it",
                shown(&name)
            );
            let address: Option<Uri> = server.parse().ok();
            ensure!(
                address.is_some_and(|address| address.scheme_str() == Some("https") && address.host().is_some()),
                "`{}` is no address of a control plane; expected https://HOST:PORT",
                shown(&server)
            );
            let (token_file, ca) = (absolute(token_file)?, ca.map(absolute).transpose()?);
            private_file::token(&token_file)?;
            let context = Context { server, token_file, ca, namespace };
            contexts.current.get_or_insert_with(|| name.clone());
            contexts.contexts.insert(name.clone(), context);
            contexts.write()?;
            let current = contexts.current.as_deref() == Some(&*name);
            println!("context {} added{}", shown(&name), if current { "; it is the current one" } else { "" });
        }
        Command::Use { name } => {
            ensure!(name == LOCAL || contexts.contexts.contains_key(&name), contexts.unknown(&name));
            contexts.current = Some(name.clone());
            contexts.write()?;
            println!("{} is the current context", shown(&name));
        }
        Command::List => contexts.print(),
        Command::Remove { name } => {
            ensure!(contexts.contexts.remove(&name).is_some(), contexts.unknown(&name));
            contexts.current.take_if(|current| *current == name);
            contexts.write()?;
            println!("context {} removed", shown(&name));
        }
    }
    Ok(ExitCode::SUCCESS)
}
