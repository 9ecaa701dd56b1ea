//! `leno describe`: everything that is known about one function, document or node.

use crate::NodeAddress;
use crate::client::{Listing, Source};
use crate::listing::{Form, print_rows};
use crate::names::{NamespaceOptions, Selection};
use crate::remote::{self, Server};
use crate::screen::shown;
use crate::table::{self, Column};
use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use leno_api::changes::ChangeRecord;
use serde_json::Value;
use std::process::ExitCode;

/// What there is to describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// A function: its document, state, revisions, instances, events and certificates.
    #[value(alias = "functions", alias = "fn")]
    Function,
    /// A job: its document, state, instances, events and certificates.
    #[value(alias = "jobs")]
    Job,
    /// An External document, and its state.
    #[value(alias = "externals")]
    External,
    /// A Chain document, and the state of its members.
    #[value(alias = "chains")]
    Chain,
    /// A Policy document.
    #[value(alias = "policies")]
    Policy,
    /// A stored secret: its keys, sizes, when they changed, and who names them.
    #[value(alias = "secrets", alias = "storedsecret")]
    Secret,
    /// The Mesh document.
    Mesh,
    /// A node, its events and its certificates.
    #[value(alias = "nodes")]
    Node,
    /// A change of documents, by its revision: who made it, and the differences of the texts.
    #[value(alias = "changes")]
    Change,
    /// A namespace: its quota with the use of it, and its functions and jobs.
    #[value(alias = "namespaces", alias = "ns")]
    Namespace,
}

impl Kind {
    /// The kind of its document.
    fn document(self) -> Option<&'static str> {
        match self {
            Self::Function => Some("Function"),
            Self::Job => Some("Job"),
            Self::External => Some("External"),
            Self::Chain => Some("Chain"),
            Self::Policy => Some("Policy"),
            Self::Secret => Some("StoredSecret"),
            Self::Mesh => Some("Mesh"),
            Self::Namespace => Some("NamespaceQuota"),
            Self::Node | Self::Change => None,
        }
    }

    /// The listing with its state, and those with more about it.
    fn listings(self) -> (Option<Listing>, &'static [Listing]) {
        use Listing::{
            Chains, Events, Externals, Functions, Identities, Instances, Jobs, Namespaces, Nodes, Revisions, Secrets,
        };
        match self {
            Self::Function => (Some(Functions), &[Revisions, Instances, Events, Identities]),
            Self::Job => (Some(Jobs), &[Instances, Events, Identities]),
            Self::External => (Some(Externals), &[Identities]),
            Self::Chain => (Some(Chains), &[]),
            Self::Node => (Some(Nodes), &[Events, Identities]),
            Self::Namespace => (Some(Namespaces), &[Functions, Jobs]),
            Self::Secret => (Some(Secrets), &[]),
            Self::Policy | Self::Mesh | Self::Change => (None, &[]),
        }
    }
}

/// Prints everything that is known about it.
pub(crate) fn run(
    kind: Kind,
    name: &str,
    namespace: &NamespaceOptions,
    (server, node): (&Server, &NodeAddress),
) -> Result<ExitCode> {
    let source = Source::of(server, node)?;
    if kind == Kind::Change {
        return change(&source, name);
    }
    let mut selection = namespace.selection(source.namespace(), Some(name))?;
    let (state, listings) = kind.listings();
    let mut found = false;
    if let Some(state) = state
        && let Some((columns, rows)) = rows(&source, state, &selection)?
    {
        found = !rows.is_empty();
        rows.iter().for_each(|row| print_state(columns, row));
    }
    if kind == Kind::Namespace {
        selection = Selection { namespace: selection.name, name: None };
    }
    for &listing in listings.iter().filter(|_| found) {
        let heading = listing.name().to_uppercase();
        match rows(&source, listing, &selection)? {
            Some((_, rows)) if rows.is_empty() => println!("\n{heading}: none"),
            Some((columns, rows)) => {
                println!("\n{heading}");
                print_rows(columns, &rows.iter().collect::<Vec<_>>(), Form::Table, true)?;
            }
            None => println!("\n{heading}: only the nodes know; ask on one of them with `--context local`"),
        }
    }
    match (&source, kind.document()) {
        (Source::ControlPlane(connection), Some(document)) => {
            let stored = remote::documents(connection, (Some(document), Some(name)), namespace);
            if kind != Kind::Namespace || stored.is_ok() {
                let stored = if found { stored.unwrap_or_default() } else { stored? };
                found |= !stored.is_empty();
                println!("{}DOCUMENT", if state.is_some() { "\n" } else { "" });
                remote::print_texts(&stored);
            }
        }
        (Source::Node(_), Some(_)) if state.is_none() => bail!(remote::NO_CONTROL_PLANE),
        _ => {}
    }
    ensure!(found, "there is no {} `{}`", format!("{kind:?}").to_lowercase(), shown(&selection.to_string()));
    Ok(ExitCode::SUCCESS)
}

/// The selected rows of a listing; `None`: only nodes have it.
fn rows(source: &Source, listing: Listing, selection: &Selection) -> Result<Option<(&'static [Column], Vec<Value>)>> {
    if matches!(source, Source::ControlPlane(_)) && listing.of_control_plane().is_none() {
        return Ok(None);
    }
    let (columns, mut rows) = source.rows(listing)?;
    rows.retain(|row| selection.includes(row));
    Ok(Some((columns, rows)))
}

/// Prints the differences of one change.
fn change(source: &Source, revision: &str) -> Result<ExitCode> {
    let Ok(number) = revision.parse::<u64>() else {
        bail!("a revision is a number, and {} is none; `leno get changes` lists the latest", shown(revision));
    };
    let rows = source.change(number)?;
    let Some(row) = rows.into_iter().find(|row| row["revision"] == number) else {
        bail!("there is no change with revision {number}; `leno get changes` lists the latest");
    };
    let record: ChangeRecord = serde_json::from_value(row).context("the answer is not a change")?;
    println!("revision {} by {}", record.revision, shown(&record.by));
    if let Some(verdicts) = record.verdicts {
        println!(
            "of {} recorded requests, the dry run before it denied {} that were allowed, and allowed {} that were denied",
            verdicts.judged, verdicts.newly_denied, verdicts.newly_allowed
        );
    }
    for changed in record.changes {
        println!("\n{} {}", shown(&changed.what), format!("{:?}", changed.action).to_lowercase());
        match changed.diff {
            Some(diff) => diff.lines().for_each(|line| println!("{}", shown(line))),
            None => println!("its difference is not kept"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One field a line.
fn print_state(columns: &[Column], row: &Value) {
    let cells = table::cells(columns, row, Timestamp::now());
    table::print(
        &columns.iter().zip(cells).map(|((heading, ..), cell)| vec![heading.to_string(), cell]).collect::<Vec<_>>(),
    );
}
