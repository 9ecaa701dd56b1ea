//! The `leno` command.
#![deny(unsafe_code)] // allowed in `allocator` alone

// Its macros are for all modules.
#[macro_use]
mod output;

mod allocator;
mod arguments;
mod authority_file;
mod ca;
mod changes;
mod check;
mod client;
mod colour;
mod columns;
mod component_cache;
mod control;
mod dashboard;
mod describe;
mod doctor;
#[cfg(test)]
mod documentation;
mod examples;
mod explain;
mod graph;
mod harden;
mod hot_restart;
mod import;
mod jails;
mod kubernetes;
mod listing;
mod logs;
mod names;
mod node;
mod notify;
mod observe;
mod private_file;
mod problems;
mod programs;
mod progress;
mod pulls;
mod quantity;
mod random;
mod ready;
mod remote;
mod rerun;
mod rollouts;
mod screen;
mod signals;
mod suggest;
mod table;
mod telemetry;
mod top;
mod up;
mod upgrade;
mod version;

use arguments::{DocumentPath, Guards, NodeAddress, verb_first};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

/// A service mesh for serverless functions: it judges every request in a fresh sandbox.
///
/// Start with `leno check PATH` on a folder of documents (kinds Mesh, Function, Job, External,
/// Chain, Policy, StoredSecret and NamespaceQuota, apiVersion leno.dev/v1alpha1, and the kinds of the
/// Gateway API), then `leno up PATH`. The mesh refuses all requests that no policy allows; `leno
/// explain ID` shows the reason of a refusal, where ID is the response's `x-request-id`.
#[derive(Parser)]
#[command(name = "leno", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 something failed; 2 the documents or the arguments are wrong.";

#[derive(Subcommand)]
enum Command {
    /// Start control plane, node and gateway in one process, and apply changes to the documents
    /// when you save them.
    ///
    /// A change with an error is refused as a whole, with file, line, field and the fix; functions
    /// and policies stay as they were. SIGTERM or Ctrl-C drains: the gateway accepts no new
    /// connections, open requests complete (`limits.drainTimeout`), and functions stop. A second
    /// signal ends open requests.
    Up {
        #[command(flatten)]
        documents: DocumentPath,
        /// Worker threads that carry requests; default: one per core.
        #[arg(long, value_name = "N")]
        workers: Option<usize>,
        /// Keep definitions, revisions with their rollouts, and the results of jobs in this file.
        /// Without it, a restart loses them: revisions are numbered anew, and every job runs again.
        #[arg(long, value_name = "FILE")]
        store: Option<PathBuf>,
        /// Folder in which the node keeps volumes (`volumes` of functions, with a `name`). Without it:
        /// /var/lib/leno/up for root, else ~/.local/state/leno/up.
        #[arg(long, value_name = "FOLDER", env = "LENO_STATE")]
        state: Option<PathBuf>,
        #[command(flatten)]
        guards: Guards,
        /// Take over from the process at the other end of standard input, which has started this
        /// one (`leno upgrade`).
        #[arg(long, hide = true)]
        take_over: bool,
    },
    /// Start one node of a mesh whose control plane is another process (`leno control`).
    ///
    /// It hosts the functions that the control plane places on it. While the control plane is away,
    /// it keeps its configuration.
    Node {
        #[command(flatten)]
        arguments: node::Arguments,
        /// Also accept traffic from clients outside the mesh. The join token must allow it.
        #[arg(long)]
        gateway: bool,
    },
    /// Start a gateway of a mesh whose control plane is another process: a node that accepts
    /// traffic from clients outside the mesh.
    Gateway(node::Arguments),
    /// Replace the running node, gateway or `leno up` of this machine by a new process, for example
    /// of another release, without a refused connection.
    ///
    /// The new process takes over when it is ready; until then, and if it never is, the running
    /// process continues. Afterwards the running process lets open requests complete.
    Upgrade(upgrade::Arguments),
    /// End with 0 if the node of this machine is ready, else with 1. Print what it waits for.
    Ready(NodeAddress),
    /// Check documents without starting anything, or a Kubernetes cluster (--kubernetes).
    ///
    /// Also warns of documents that are valid but very likely wrong: rules without effect, rules
    /// about users where no policy verifies tokens, callers that do not list the callee, identities
    /// of another trust domain, functions without a caller.
    Check {
        #[command(flatten)]
        subject: check::Subject,
        /// End with 2 if there are warnings.
        #[arg(long)]
        strict: bool,
        /// The process that the documents are for.
        #[arg(long = "for", value_name = "READER", value_enum, default_value_t = check::Reader::Up)]
        reader: check::Reader,
        #[command(flatten)]
        server: remote::Server,
    },
    /// Write documents from a compose file, or from manifests of Kubernetes (Deployment,
    /// StatefulSet, Job, with Service, Ingress and ConfigMap), for your review.
    ///
    /// The report on standard error has file and line of each field that is adapted, dropped or
    /// left to do. Policies of Kubernetes and Cilium need no import: `leno check` reads them.
    Import {
        /// `compose.yaml`, or manifests of Kubernetes.
        #[arg(required_unless_present = "file")]
        path: Option<PathBuf>,
        /// The same, as in other commands.
        #[arg(short, long, value_name = "PATH", conflicts_with = "path")]
        file: Option<PathBuf>,
        /// New file for the documents; without it, or with `-`: standard output.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Namespace of the documents, instead of the one in the file.
        #[arg(short, long, value_name = "NAMESPACE")]
        namespace: Option<String>,
    },
    /// Install Leno in a Kubernetes cluster, and wait until it is ready.
    ///
    /// Applies the objects of the Helm chart, which is part of this program, with the `kubectl` of this
    /// machine. No pod is captured until a label enrols it.
    Install(kubernetes::InstallArguments),
    /// Remove Leno from a Kubernetes cluster.
    ///
    /// First the agents let go of all pods, without a failed request, and the CNI plug-in leaves the
    /// nodes; then everything that `leno install` has made is deleted. Your labels stay, and your
    /// policies too, unless you add --delete-documents.
    Uninstall(kubernetes::UninstallArguments),
    /// Start a control plane that takes definitions through its API and serves nodes.
    ///
    /// It writes the first token, of an admin, to a file. Of several control planes that share an
    /// etcd, another one takes over when the leader fails.
    Control(Box<control::Options>),
    /// Add or replace documents at a control plane: all of them, or none if one has a problem.
    Apply {
        #[command(flatten)]
        sources: remote::Sources,
        /// Only if the document has this version, which `leno get documents` lists; 0: only if it
        /// does not exist.
        #[arg(long, value_name = "VERSION", conflicts_with = "prune")]
        if_version: Option<u64>,
        #[command(flatten)]
        prune: remote::Prune,
        #[command(flatten)]
        dry_run: remote::DryRun,
        #[command(flatten)]
        wait: remote::Wait,
        #[command(flatten)]
        server: remote::Server,
    },
    /// Remove documents from a control plane: `leno delete Function demo/shop`, or the documents in
    /// files.
    Delete {
        /// Kind and name: `Function demo/shop`.
        #[arg(value_names = ["KIND", "NAME"], num_args = 0..=2)]
        document: Vec<String>,
        /// Files with the documents to remove.
        #[arg(short, long, value_name = "PATH", conflicts_with = "document")]
        file: Vec<PathBuf>,
        #[command(flatten)]
        namespace: names::NamespaceOptions,
        #[command(flatten)]
        server: remote::Server,
    },
    /// Show the changes that `leno apply` would make, without changing anything. Ends with 1 if
    /// there is a difference.
    Diff {
        #[command(flatten)]
        sources: remote::Sources,
        #[command(flatten)]
        prune: remote::Prune,
        #[command(flatten)]
        server: remote::Server,
    },
    /// Make, list and revoke tokens of a control plane.
    Token {
        #[command(subcommand)]
        command: remote::Token,
        #[command(flatten)]
        server: remote::Server,
    },
    /// Cordon nodes of a control plane, and end their membership.
    Nodes {
        #[command(subcommand)]
        command: remote::Nodes,
        #[command(flatten)]
        server: remote::Server,
    },
    /// Name control planes in a file, so that commands need no options for them.
    ///
    /// The file is `~/.config/leno/context.yaml`, or the one that LENO_CONTEXT names. Only this
    /// account can read it.
    Context {
        #[command(subcommand)]
        command: remote::ContextCommand,
    },
    /// Manage the authority of a mesh: replace it, or make it an intermediate under your own root.
    #[command(subcommand)]
    Ca(ca::Command),
    /// List functions, instances and the like of a node, or the documents of a control plane.
    ///
    /// Asks the node of this account, unless --server, LENO_SERVER or --context names a control
    /// plane, or only a control plane has the listing.
    Get {
        /// The listing.
        what: client::Listing,
        /// Only those of this name, also as `namespace/name`. Of `documents`: kind, and name.
        #[arg(value_name = "NAME", num_args = 0..=2)]
        which: Vec<String>,
        #[command(flatten)]
        namespace: names::NamespaceOptions,
        #[command(flatten)]
        server: remote::Server,
        #[command(flatten)]
        node: NodeAddress,
        #[command(flatten)]
        printing: client::Printing,
    },
    /// Show everything that is known about one function, job, node or the like.
    Describe {
        /// Its kind.
        kind: describe::Kind,
        /// Its name, also as `namespace/name`.
        name: String,
        #[command(flatten)]
        namespace: names::NamespaceOptions,
        #[command(flatten)]
        server: remote::Server,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// Show the releases of this command and of the control plane, or else of the node of this
    /// machine.
    Version {
        /// Only the release of this command.
        #[arg(long)]
        client: bool,
        #[command(flatten)]
        format: output::Format,
        #[command(flatten)]
        server: remote::Server,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// Show the standard output and standard error of instances of functions and jobs.
    ///
    /// A node keeps the latest 64 KiB of each running instance, and of the one that ended last; of an
    /// ended job for a day.
    /// Asks the node of this account, unless --server, LENO_SERVER or --context names a control
    /// plane, which asks all nodes that have the function.
    Logs {
        /// Functions or jobs: `name`, or `namespace/name`.
        #[arg(value_name = "FUNCTION", required = true)]
        functions: Vec<String>,
        #[command(flatten)]
        namespace: names::NamespaceOptions,
        #[command(flatten)]
        options: logs::Options,
        #[command(flatten)]
        server: remote::Server,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// Run an ended job once more. Prints the number of the run.
    ///
    /// Asks the node of this account (`leno up`), unless --server, LENO_SERVER or --context names a
    /// control plane.
    Rerun(rerun::Arguments),
    /// Show flows: each request with its verdict and the rule that decided, and the names
    /// and system calls that jails refuse.
    ///
    /// Shows flows from now on, until interrupted; --last shows past requests. A node keeps some
    /// two thousand requests for each worker. It counts requests that it dropped before this
    /// command could show them. Asks the node of this account, unless --server, LENO_SERVER or
    /// --context names a control plane, which asks all nodes.
    Observe {
        #[command(flatten)]
        filter: observe::Filter,
        #[command(flatten)]
        printing: observe::Printing,
        #[command(flatten)]
        server: remote::Server,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// Draw the graph of calls: functions, gateway and external services, with the traffic of each
    /// edge, permitted edges without traffic, and calls that are refused.
    ///
    /// Asks the node of this account, unless --server, LENO_SERVER or --context names a control
    /// plane, which asks all nodes.
    Graph(graph::Options),
    /// Serve a page on this machine that shows the mesh: the graph of calls, functions, requests and
    /// their decisions, live.
    ///
    /// Prints the page's address, with a token that is valid once, within ten minutes; and opens it in
    /// a browser if there is a display. Serves until interrupted. Asks the node of this account, unless
    /// --server, LENO_SERVER or --context names a control plane, with your token.
    Dashboard(dashboard::Arguments),
    #[command(flatten)]
    Rollout(rollouts::Command),
    /// Show functions, calls and instances live, with the traffic of the last ten seconds: sort,
    /// filter, and drill down with the keyboard.
    ///
    /// Asks the node of this account, unless --server, LENO_SERVER or --context names a control
    /// plane, which asks all nodes.
    Top(top::Options),
    /// Check what this machine can enforce, and what a node would lack: virtualization, jails, eBPF,
    /// limits, volumes, the clock, listeners of documents, certificates about to expire; each with the
    /// fix.
    ///
    /// Changes nothing. Run it as the account of the node. Ends with 1 if a node would not start.
    Doctor {
        #[command(flatten)]
        options: doctor::Options,
        #[command(flatten)]
        server: remote::Server,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// Write completions for a shell to standard output: `leno completions bash >
    /// /etc/bash_completion.d/leno`.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages of all commands into a folder.
    #[command(hide = true)]
    Manual {
        /// The folder.
        folder: PathBuf,
    },
    /// Write documents that would permit refused calls of a function, for your review.
    #[command(subcommand)]
    Suggest(suggest::Command),
    /// Store a secret at a control plane, from files or standard input, so that functions, jobs and
    /// External documents can name its keys: `from: {secret: NAME, key: KEY}`.
    ///
    /// `printf %s "$PASSWORD" | leno create-secret shop/db --from-file password=-`
    CreateSecret(remote::CreateSecret),
    /// Delete a volume that a node keeps on its disk, with its content. `leno get volumes` lists them.
    ///
    /// An instance must not have it: remove or change the function first.
    DeleteVolume {
        /// Namespace and name: `shop/data`.
        volume: String,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// Show every stage of the decision on a recent request, or the policies of a function: `leno
    /// explain function demo/shop`.
    ///
    /// Asks the node of this account, unless --server, LENO_SERVER or --context names a control
    /// plane, which asks all nodes.
    Explain {
        #[command(flatten)]
        subject: explain::Subject,
        #[command(flatten)]
        filter: observe::Filter,
        #[command(flatten)]
        server: remote::Server,
        #[command(flatten)]
        node: NodeAddress,
        #[command(flatten)]
        format: output::Format,
    },
}

fn start(arguments: &node::Arguments, gateway: bool) -> anyhow::Result<ExitCode> {
    harden::process(arguments.guards().debuggable).and_then(|()| node::run(arguments, gateway))
}

/// The command line, with examples in its help.
fn command() -> clap::Command {
    examples::add(Cli::command())
}

fn main() -> ExitCode {
    // This comes before anything that could start a thread: the jailer must have a single thread.
    if jails::is_jailer() {
        return leno_jail::jailer::run();
    }
    let matches = command().try_get_matches_from(verb_first(std::env::args_os()));
    matches.iter().for_each(progress::silence_for_programs);
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, not failures; clap chooses the stream.
            let printed = error.print();
            if error.use_stderr() {
                return ExitCode::from(2);
            }
            output::check(printed);
            return ExitCode::SUCCESS;
        }
    };
    let result = match cli.command {
        Command::Up { documents, workers, store, state, guards, take_over } => {
            let options = up::Options { path: documents.path(), workers, store, state, guards: &guards, take_over };
            harden::process(guards.debuggable).and_then(|()| up::run(&options))
        }
        Command::Node { arguments, gateway } => start(&arguments, gateway),
        Command::Gateway(arguments) => start(&arguments, true),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Ready(node) => ready::run(&node),
        Command::Check { subject, strict, reader, server } => check::run(&subject, strict, reader, &server),
        Command::Import { path, file, output, namespace } => {
            import::run(&path.or(file).unwrap_or_default(), output.as_deref(), namespace.as_deref())
        }
        Command::Install(arguments) => kubernetes::install(&arguments),
        Command::Uninstall(arguments) => kubernetes::uninstall(&arguments),
        Command::Control(options) => harden::process(false).and_then(|()| control::run(&options)),
        Command::Apply { sources, if_version, prune, dry_run, wait, server } => {
            remote::apply(&server, &sources, if_version, &prune, dry_run, wait)
        }
        Command::Delete { document, file, namespace, server } => remote::delete(&server, &document, &file, &namespace),
        Command::Diff { sources, prune, server } => remote::diff(&server, &sources, &prune),
        Command::Nodes { command, server } => remote::nodes(&server, &command),
        Command::Context { command } => remote::context(command),
        Command::Ca(command) => ca::run(command),
        Command::Token { command, server } => remote::token(&server, command),
        Command::Get { what, which, namespace, server, node, printing } => {
            client::list(what, &which, (&node, &server), &namespace, printing)
        }
        Command::Describe { kind, name, namespace, server, node } => {
            describe::run(kind, &name, &namespace, (&server, &node))
        }
        Command::Version { client, format, server, node } => version::run(client, format, &server, &node),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command(), "leno", &mut script);
            print!("{}", String::from_utf8_lossy(&script));
            Ok(ExitCode::SUCCESS)
        }
        Command::Rollout(command) => rollouts::run(command),
        Command::Manual { folder } => {
            clap_mangen::generate_to(command(), folder).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
        Command::Logs { functions, namespace, options, server, node } => {
            logs::run(&functions, &namespace, &options, (&server, &node))
        }
        Command::Rerun(arguments) => rerun::run(&arguments),
        Command::Observe { filter, printing, server, node } => observe::run((&node, &server), &filter, &printing),
        Command::Top(options) => top::run(&options),
        Command::Doctor { options, server, node } => doctor::run(&options, (&server, &node)),
        Command::Dashboard(arguments) => dashboard::run(&arguments),
        Command::Graph(options) => graph::run(&options),
        Command::Suggest(command) => suggest::run(command),
        Command::Explain { subject, filter, server, node, format } => {
            explain::run(&subject, &filter, (&node, &server), format)
        }
        Command::CreateSecret(options) => remote::create_secret(&options),
        Command::DeleteVolume { volume, node } => client::delete_volume(&volume, &node),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("leno: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_options_are_well_formed() {
        command().debug_assert();
    }
}
