//! The order of arguments.

use std::ffi::OsString;

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
