//! Arguments that several commands have, and the order of all.

use leno_api::node::Address;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Protections of this process and its instances; each can be turned off, for a reason.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Guards {
    /// Allow debuggers and core dumps. Other processes of this account can then read the node's
    /// memory, with keys and tokens.
    #[arg(long, env = "LENO_DEBUGGABLE")]
    pub(crate) debuggable: bool,
    /// Run instances under the account of the node, even if it is root and overriding the Mesh
    /// document.
    #[arg(long, env = "LENO_NODE_ACCOUNT")]
    pub(crate) node_account: bool,
    /// Accept an instance's credential from any process of the machine, not only from the instance.
    /// For load generators, and for programs whose calls come from a process that the node did not
    /// start.
    #[arg(long, env = "LENO_ANY_CALLER")]
    pub(crate) any_caller: bool,
}

/// The documents of a command.
#[derive(clap::Args)]
pub(crate) struct DocumentPath {
    /// A YAML file, or a folder of them.
    #[arg(required_unless_present = "file")]
    path: Option<PathBuf>,
    /// The same, as in other commands.
    #[arg(short, long, value_name = "PATH", conflicts_with = "path")]
    file: Option<PathBuf>,
}

impl DocumentPath {
    pub(crate) fn path(&self) -> &Path {
        self.path.as_deref().or(self.file.as_deref()).unwrap_or(Path::new("."))
    }
}

#[derive(clap::Args)]
pub(crate) struct NodeAddress {
    /// The node's admin address: `unix:PATH`, or an IP address and a port. Without it: the default
    /// socket of a node of this account.
    #[arg(long, value_name = "ADDRESS", env = "LENO_ADMIN")]
    pub(crate) admin: Option<Address>,
    /// File with the token for an admin address with IP (`listeners.adminToken` of the Mesh
    /// document).
    #[arg(long, value_name = "FILE", env = "LENO_ADMIN_TOKEN_FILE")]
    pub(crate) admin_token: Option<PathBuf>,
}

/// Moves options about the server from before the verb to behind it: `leno --server URL get nodes`
/// is `leno get --server URL nodes`. A verb without such an option refuses it.
pub(crate) fn verb_first(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const WITH_VALUE: [&str; 8] =
        ["--server", "--token-file", "--ca", "--context", "--admin", "--admin-token", "--namespace", "-n"];
    const WITHOUT: [&str; 2] = ["--all-namespaces", "-A"];
    let mut arguments = arguments.peekable();
    let mut ordered: Vec<OsString> = arguments.next().into_iter().collect();
    let mut options = Vec::new();
    while let Some(option) = arguments.next_if(|argument| {
        let argument = argument.to_string_lossy();
        WITHOUT.contains(&&*argument) || WITH_VALUE.contains(&argument.split('=').next().unwrap_or_default())
    }) {
        let has_value = WITH_VALUE.contains(&&*option.to_string_lossy());
        options.push(option);
        options.extend(arguments.next_if(|_| has_value));
    }
    ordered.extend(arguments.next());
    ordered.extend(options);
    ordered.extend(arguments);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, Command};
    use clap::Parser;

    #[test]
    fn options_about_whom_to_ask_may_stand_before_the_verb() {
        let ordered = |line: &str| {
            let ordered = verb_first(line.split(' ').map(OsString::from)).into_iter();
            ordered.map(|argument| argument.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(ordered("leno --server s -n demo get functions"), "leno get --server s -n demo functions");
        assert_eq!(ordered("leno --server=s -A get functions"), "leno get --server=s -A functions");
        assert_eq!(ordered("leno get functions --server s"), "leno get functions --server s");
        assert_eq!(ordered("leno --help"), "leno --help");
        assert_eq!(ordered("leno --server"), "leno --server");
        for line in ["leno token join --server s", "leno token --server s join", "leno --server s token join"] {
            let cli = Cli::try_parse_from(verb_first(line.split(' ').map(OsString::from))).ok().unwrap();
            let Command::Token { server, .. } = cli.command else { panic!("{line}") };
            assert_eq!(server.server.as_deref(), Some("s"), "{line}");
        }
        assert!(Cli::try_parse_from(verb_first("leno --server s import a".split(' ').map(OsString::from))).is_err());
    }
}
