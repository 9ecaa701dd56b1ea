//! `leno promote`, `leno pause`, `leno resume` and `leno undo`.

use crate::NodeAddress;
use crate::client::Source;
use crate::names::NamespaceOptions;
use crate::remote::{self, Server};
use crate::screen::shown;
use anyhow::{Context, Result, ensure};
use leno_api::rollouts::{Action, RolloutAnswer, RolloutRequest};
use leno_config::document::TrafficTarget;
use leno_config::flow;
use std::process::ExitCode;
use std::time::Duration;

const PROMOTE: &str = "Examples:
  leno promote demo/shop next     all requests go to the revision `next` of `spec.revisions`
  leno promote demo/shop          the rollout under way ends now, with its new revision
  leno promote demo/shop next --dry-run";
const PAUSE: &str = "Examples:
  leno pause demo/shop
  leno get revisions demo/shop    the step at which it stays, and its requests
  leno resume demo/shop";
const UNDO: &str = "Examples:
  leno undo demo/shop --dry-run
  leno undo demo/shop";

/// Commands about rollouts and the shares of revisions.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Give all requests of a function to one of its revisions, or end its rollout with the new one.
    ///
    /// The shares of revisions are in the function's document (`spec.traffic`): a control plane
    /// changes the stored document. `leno up` reads files, so this shows the change to make, and
    /// ends with 1.
    #[command(after_help = PROMOTE)]
    Promote {
        #[command(flatten)]
        options: Options,
        /// A name in `spec.revisions`, or of a revision that `leno get revisions` lists. Without it:
        /// the new revisions of rollouts under way.
        revision: Option<String>,
    },
    /// Keep the rollouts of a function at their steps, also over a restart with a store, until
    /// `leno resume`. They are still rolled back if they do worse.
    #[command(after_help = PAUSE)]
    Pause(Options),
    /// Let the paused rollouts of a function advance.
    Resume(Options),
    /// Take back what happened last to a function's revisions: a rollout under way, a change of
    /// `traffic`, or a completed rollout.
    ///
    /// A revision that was undone, or rolled back automatically, cannot be undone once more: this
    /// says so, and ends with 1.
    #[command(after_help = UNDO)]
    Undo(Options),
}

/// The function, and how its rollout is changed.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Function: `name`, or `namespace/name`.
    function: String,
    /// Show the change without making it.
    #[arg(long)]
    dry_run: bool,
    /// Only if the function's document at the control plane has this version, which `leno get
    /// documents` lists.
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    #[command(flatten)]
    namespace: NamespaceOptions,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    node: NodeAddress,
}

/// Carries out a command.
pub(crate) fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Promote { options, revision } => change(Action::Promote, revision, &options),
        Command::Pause(options) => change(Action::Pause, None, &options),
        Command::Resume(options) => change(Action::Resume, None, &options),
        Command::Undo(options) => change(Action::Undo, None, &options),
    }
}

fn change(action: Action, revision: Option<String>, options: &Options) -> Result<ExitCode> {
    let Options { function, dry_run, if_version, namespace, server, node } = options;
    let (dry_run, if_version) = (*dry_run, *if_version);
    let source = Source::of(server, node)?;
    let id = namespace.function(source.namespace(), function)?;
    let request = RolloutRequest { action, revision, dry_run, if_version };
    let answer: RolloutAnswer = match &source {
        Source::ControlPlane(connection) => {
            let path = format!("/v1/functions/{}/{}/rollout", id.namespace, id.name);
            match remote::send(connection, &path, &request)? {
                Ok(answer) => answer,
                Err(code) => return Ok(code.into()),
            }
        }
        Source::Node(node) => {
            ensure!(if_version.is_none(), "--if-version is for documents of a control plane; here they are files");
            let body = serde_json::to_vec(&request)?;
            let (status, body) = node.tell(&format!("/rollouts/{id}"), body, Duration::from_secs(10))?;
            ensure!(status == 200, "the node at {} refuses: {}", node.admin, shown(body.trim_end()));
            serde_json::from_str(&body).context("the node's answer is not JSON")?
        }
    };
    let would = if dry_run { "it would be: " } else { "" };
    for step in &answer.steps {
        println!("{would}{}: {} % -> {} %", shown(&step.revision), step.from, step.to);
    }
    match action {
        Action::Pause => println!("{would}rollouts of {id} stay at their steps, until `leno resume`"),
        Action::Resume => println!("{would}rollouts of {id} advance again"),
        Action::Promote | Action::Undo => {}
    }
    let Some(traffic) = &answer.traffic else { return Ok(ExitCode::SUCCESS) };
    if matches!(source, Source::Node(_)) {
        eprintln!("leno: nothing has changed, because the documents are files: write this into the one of {id}");
    }
    print_traffic(traffic);
    match &answer.change {
        Some(change) if !dry_run => Ok(remote::print_changes(change)),
        _ if dry_run => Ok(ExitCode::SUCCESS),
        _ => Ok(ExitCode::FAILURE),
    }
}

/// Prints `spec.traffic` as a document has it.
fn print_traffic(traffic: &[TrafficTarget]) {
    if traffic.is_empty() {
        println!("spec: # without `traffic`");
    } else {
        println!("spec:\n  traffic:");
        traffic.iter().for_each(|target| println!("  - {}", shown(&flow(target))));
    }
}
