//! Examples at the end of each command's help.

use clap::Command;

/// The examples of each command: arguments, and their effect.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "up",
        &[
            ("up documents/", "all documents of the folder; changes apply when files are saved"),
            ("up shop.yaml --store shop.redb", "revisions and the results of jobs outlive a restart"),
        ],
    ),
    (
        "node",
        &[
            ("node --control 10.0.0.1:15010 --join node.token", "the first start, with a join token"),
            ("node --control 10.0.0.1:15010 --inbound 0.0.0.0:15006 --advertise 10.0.0.2", "a further start"),
        ],
    ),
    (
        "gateway",
        &[("gateway --control 10.0.0.1:15010 --join gateway.token --gateway-http 0.0.0.0:80", "HTTP for clients")],
    ),
    ("upgrade", &[("upgrade", "the node of this account is replaced by this program")]),
    ("ready", &[("ready", "0 if the node of this account is ready")]),
    (
        "check",
        &[
            ("check documents/", "problems and warnings, with file and line"),
            ("check documents/ --strict", "warnings are failures too, for CI"),
            ("check documents/ --for control", "as `leno apply` would send them"),
            ("check --kubernetes", "what a cluster lacks for Leno, or what is wrong with it there"),
        ],
    ),
    (
        "import",
        &[
            ("import compose.yaml -o shop.yaml", "documents for the services of a compose file"),
            ("import deployment.yaml -n shop", "documents in this namespace, on standard output"),
        ],
    ),
    (
        "install",
        &[
            ("install --image registry.example/leno:0.1.0", "Leno in the cluster of the current context"),
            ("install --image registry.example/leno:0.1.0 --dry-run", "its objects, on standard output"),
        ],
    ),
    (
        "uninstall",
        &[
            ("uninstall", "Leno is removed; policies and their definitions stay"),
            ("uninstall --delete-documents", "they are deleted too"),
        ],
    ),
    (
        "control",
        &[
            ("control --data /var/lib/leno/control", "one control plane, with its store in a file"),
            ("control --data /var/lib/leno/control --etcd http://10.0.0.5:2379", "one of several"),
        ],
    ),
    (
        "apply",
        &[
            ("apply -f documents/ --dry-run", "the changes, and requests that would be decided differently"),
            ("apply -f documents/ --wait", "ends when the functions are ready, or with the reason"),
            ("apply -f documents/ --prune -n shop", "also removes documents that the files lack"),
        ],
    ),
    ("delete", &[("delete Function shop/cart", "one document"), ("delete -f documents/", "the documents in files")]),
    ("diff", &[("diff -f documents/", "the changes that `leno apply` would make")]),
    (
        "token",
        &[
            ("token create --role editor --namespace shop", "a token for the documents of a namespace"),
            ("token join", "a token with which one node joins"),
            ("token list", "all tokens, without their secrets"),
        ],
    ),
    (
        "nodes",
        &[
            ("nodes cordon two", "no more functions are placed on it"),
            ("nodes drain two", "its functions move to other nodes"),
        ],
    ),
    (
        "context",
        &[
            ("context add main --server https://10.0.0.1:15011 --token-file admin.token --ca api.pem", "a name for it"),
            ("context use main", "commands ask it from now on"),
        ],
    ),
    ("ca", &[("ca status", "the mesh's roots, and the phase of a rotation"), ("ca rotate", "begins a rotation")]),
    (
        "get",
        &[
            ("get functions -o wide", "a table with more columns"),
            ("get instances -n shop --watch", "further lines as instances change"),
            ("get functions shop/cart -o json", "all fields of one function"),
        ],
    ),
    ("describe", &[("describe function shop/cart", "state, revisions, instances, events, certificates")]),
    ("version", &[("version", "of this command, and of the process that it asks")]),
    (
        "logs",
        &[
            ("logs shop/cart --follow", "output as it comes"),
            ("logs cart stock -n shop --since 10m", "of two functions, the last ten minutes"),
        ],
    ),
    ("rerun", &[("rerun job shop/migrate", "once more; prints the number of the run")]),
    (
        "observe",
        &[
            ("observe --verdict deny", "refusals as they happen"),
            ("observe --last 20 --function shop/cart", "its last requests"),
        ],
    ),
    (
        "dashboard",
        &[
            ("dashboard", "a page in your browser, of the node of this machine"),
            ("dashboard --context production --listen 127.0.0.1:8700", "of a control plane, at this port"),
        ],
    ),
    (
        "graph",
        &[
            ("graph", "a tree, from the gateway"),
            ("graph shop/cart --window 10s", "its callers and callees, with rates of the next 10 s"),
            ("graph -o mermaid", "for Markdown"),
        ],
    ),
    ("promote", &[("promote shop/cart", "the new revision gets all requests")]),
    ("pause", &[("pause shop/cart", "the rollout stays at its step")]),
    ("resume", &[("resume shop/cart", "the rollout goes on")]),
    ("undo", &[("undo shop/cart", "the revision before gets all requests")]),
    ("top", &[("top", "functions, live"), ("top --once edges", "one table of calls, as text")]),
    (
        "doctor",
        &[
            ("doctor", "what this machine can enforce, with fixes"),
            ("doctor documents/", "also whether the listeners of the Mesh document are free"),
        ],
    ),
    ("completions", &[("completions bash", "a script for the shell")]),
    ("suggest", &[("suggest egress shop/cart", "documents for the refused destinations of a function")]),
    ("create-secret", &[("create-secret shop/db --from-file password=password.txt", "a secret with one key")]),
    ("delete-volume", &[("delete-volume shop/data", "the volume with its content")]),
    (
        "explain",
        &[
            ("explain 4bf92f35", "a request, by the beginning of its `x-request-id`"),
            ("explain --last --verdict deny", "the last refused request"),
        ],
    ),
];

/// Adds the examples to the help of the commands.
pub(crate) fn add(command: Command) -> Command {
    command.mut_subcommands(|command| {
        let Some((_, examples)) = EXAMPLES.iter().find(|(name, _)| *name == command.get_name()) else { return command };
        let lines = examples.iter().map(|(line, effect)| format!("  leno {line}\n      {effect}"));
        command.after_help(format!("Examples:\n{}", lines.collect::<Vec<_>>().join("\n")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, verb_first};
    use clap::{CommandFactory, Parser};

    #[test]
    fn every_command_has_examples_that_are_accepted() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            assert!(EXAMPLES.iter().any(|(of, _)| *of == name), "`leno {name}` has no example");
        }
        for (name, examples) in EXAMPLES {
            for (line, _) in *examples {
                assert!(line.split(' ').next() == Some(name), "{line}");
                let words = std::iter::once("leno").chain(line.split(' ')).map(Into::into);
                if let Err(error) = Cli::try_parse_from(verb_first(words)) {
                    panic!("leno {line}: {error}");
                }
            }
        }
        let help = add(Cli::command()).find_subcommand_mut("graph").unwrap().render_help().to_string();
        assert!(help.ends_with("  leno graph -o mermaid\n      for Markdown\n"), "{help}");
    }
}
