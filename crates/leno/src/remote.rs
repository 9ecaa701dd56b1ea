//! Commands that ask a control plane through its API.

mod authority;
mod connection;
mod context;
mod contexts;
mod prune;
mod replay;
mod secret;
mod sources;
mod token;
mod views;

pub(crate) use authority::{Rotate, rotate, status as authority_status};
pub(crate) use connection::Connection;
pub(crate) use context::{NO_CONTROL_PLANE, Server};
pub(crate) use contexts::{Command as ContextCommand, run as context};
pub(crate) use prune::Prune;
pub(crate) use secret::{CreateSecret, create as create_secret, stored as stored_secrets};
pub(crate) use sources::{SelfContained, Sources};
pub(crate) use token::{Token, token};
pub(crate) use views::{explain, flows};

use crate::columns;
use crate::listing::{Form, print_rows};
use crate::names::NamespaceOptions;
use crate::problems::{counted, report};
use crate::quantity;
use crate::screen::shown;
use crate::table::{Column, Show};
use anyhow::{Context, Result, bail, ensure};
use leno_api::control::types::{
    Action, AuditChange, AuditEntry, ChangeAnswer, ChangeRequest, CordonRequest, Documents, ExpectedVersion, Name,
    NamespaceStatus, StoredDocument, Wrong,
};
use leno_config::{DocumentId, Problem};
use leno_dashboard::status;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use similar::TextDiff;
use sources::names;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Whether to only try the documents, and the format of the result.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct DryRun {
    /// Change nothing: show the recent requests, from the records of nodes, that the change would
    /// decide differently.
    #[arg(long)]
    dry_run: bool,
    /// Format of the result.
    #[arg(short, long, value_enum, default_value_t = replay::Form::Table, requires = "dry_run")]
    output: replay::Form,
}

/// Whether to wait for the functions of the change.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Wait {
    /// Wait until each function of the change is ready, or scaled to zero, and each job runs; end
    /// with 1 and the reason if one fails.
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// How long to wait.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = quantity::duration, requires = "wait")]
    timeout: Duration,
}

/// `leno apply`
pub(crate) fn apply(
    server: &Server,
    sources: &Sources,
    version: Option<u64>,
    prune: &Prune,
    dry_run: DryRun,
    wait: Wait,
) -> Result<ExitCode> {
    let DryRun { dry_run, output } = dry_run;
    let documents = match sources.read()? {
        Ok(documents) => documents,
        Err(problems) => return Ok(refuse(&problems)),
    };
    match output {
        replay::Form::Json => {
            documents.print_skipped();
            documents.inlined.iter().for_each(|line| eprintln!("{}", shown(line)));
        }
        replay::Form::Table => documents.print_inlined(),
    }
    let apply = documents.files;
    let mut request = ChangeRequest { apply, dry_run, replay: dry_run, ..ChangeRequest::default() };
    if let Some(version) = version {
        let names = names(&request.apply)?;
        let [document] = &names[..] else { bail!("--if-version is for one document, and there are {}", names.len()) };
        request.expect = vec![ExpectedVersion { document: document.clone(), version }];
    }
    let connection = Connection::to(server)?;
    prune.add_to(&mut request, &connection)?;
    match change(&connection, &request)? {
        Ok(answer) if dry_run => replay::print(&answer, output),
        Ok(answer) => {
            print_changes(&answer);
            if wait.wait {
                let applied = names(&request.apply)?.into_iter();
                let applied = applied.filter(|name| matches!(&*name.kind, "Function" | "Job"));
                let applied = applied.map(|name| format!("{}/{}", name.namespace, name.name)).collect();
                return views::wait(&connection, (&answer.functions, &applied), wait.timeout);
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(code) => Ok(code.into()),
    }
}

/// `leno delete`
pub(crate) fn delete(
    server: &Server,
    document: &[String],
    file: &[PathBuf],
    namespace: &NamespaceOptions,
) -> Result<ExitCode> {
    let target = server.required()?;
    let delete = match (document, file) {
        ([kind, name], []) => vec![named(kind, name, namespace, target.namespace.as_deref())?],
        ([], [_, ..]) => sources::names_in(file)?,
        _ => bail!("give KIND and NAME (`leno delete Function demo/shop`), or -f PATH"),
    };
    let request = ChangeRequest { delete, ..ChangeRequest::default() };
    Ok(change(&Connection::to(server)?, &request)?.map_or_else(ExitCode::from, |answer| print_changes(&answer)))
}

/// `leno diff`: ends with 1 if there is a difference.
pub(crate) fn diff(server: &Server, sources: &Sources, prune: &Prune) -> Result<ExitCode> {
    let documents = match sources.read()? {
        Ok(documents) => documents,
        Err(problems) => return Ok(refuse(&problems)),
    };
    documents.print_inlined();
    let mut request = ChangeRequest { apply: documents.files, dry_run: true, ..ChangeRequest::default() };
    let connection = Connection::to(server)?;
    prune.add_to(&mut request, &connection)?;
    let answer = match change(&connection, &request)? {
        Ok(answer) => answer,
        Err(code) => return Ok(code.into()),
    };
    let mut differs = false;
    for changed in answer.documents.iter().filter(|changed| changed.action != Action::Unchanged) {
        differs = true;
        let name = DocumentId::from(changed.document.clone()).to_string();
        let (before, after) = (changed.before.as_deref().unwrap_or(""), changed.after.as_deref().unwrap_or(""));
        let difference = TextDiff::from_lines(before, after);
        let difference =
            difference.unified_diff().header(&format!("{name} (stored)"), &format!("{name} (new)")).to_string();
        difference.lines().for_each(|line| println!("{}", shown(line)));
    }
    warn(&answer.warnings);
    println!("{} would have another configuration", counted(answer.functions.len(), "function"));
    answer.functions.iter().for_each(|function| println!("  {}", shown(function)));
    Ok(if differs { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Says why documents are not sent.
fn refuse(problems: &[Problem]) -> ExitCode {
    report(problems);
    eprintln!("leno: nothing was sent");
    ExitCode::from(2)
}

/// Sends a change. If the documents have problems, prints them and returns the exit code.
fn change(connection: &Connection, request: &ChangeRequest) -> Result<Result<ChangeAnswer, u8>> {
    send(connection, "/v1/changes", request)
}

/// The same for any request that changes documents.
pub(crate) fn send<T: DeserializeOwned>(
    connection: &Connection,
    path: &str,
    request: &impl Serialize,
) -> Result<Result<T, u8>> {
    match connection.post(path, request) {
        Ok(answer) => Ok(Ok(answer)),
        Err(connection::Failure::Refused { refusal, .. }) if !refusal.problems.is_empty() => {
            for wrong in refusal.problems {
                eprintln!("{}", shown(&Problem::from(wrong).to_string()));
            }
            eprintln!("leno: {}", shown(&refusal.error));
            Ok(Err(2))
        }
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn print_changes(answer: &ChangeAnswer) -> ExitCode {
    for changed in &answer.documents {
        let name = DocumentId::from(changed.document.clone()).to_string();
        println!("{} {}", shown(&name), format!("{:?}", changed.action).to_lowercase());
    }
    warn(&answer.warnings);
    match answer.revision {
        Some(revision) => {
            println!("revision {revision}, {} changed", counted(answer.functions.len(), "function"));
        }
        None => println!("nothing changed"),
    }
    ExitCode::SUCCESS
}

fn warn(warnings: &[Wrong]) {
    for warning in warnings {
        eprintln!("warning: {}", shown(&Problem::from(warning.clone()).to_string()));
    }
}

/// The listings of a control plane, besides documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    Nodes,
    Functions,
    Instances,
    Events,
    Revisions,
    Jobs,
    Identities,
    Namespaces,
    Secrets,
    Limits,
    Gateways,
    Routes,
    Alerts,
    Changes,
    Audit,
    Tokens,
}

/// The rows of a listing.
pub(crate) fn rows(connection: &Connection, what: Listing) -> Result<Vec<Value>> {
    Ok(match what {
        Listing::Audit => {
            let entries: Vec<AuditEntry> = connection.get("/v1/audit")?;
            entries.iter().map(audit_row).collect::<Result<_, _>>()?
        }
        Listing::Tokens => connection.get("/v1/tokens")?,
        Listing::Namespaces => {
            let namespaces: Vec<NamespaceStatus> = connection.get("/v1/namespaces")?;
            namespaces.iter().map(leno_api::namespaces::row_of).collect()
        }
        Listing::Secrets => secret::rows(connection)?,
        Listing::Functions => views::rows(connection, "/v1/functions")?,
        Listing::Instances => views::rows(connection, "/v1/instances")?,
        Listing::Events => views::rows(connection, "/v1/events")?,
        Listing::Nodes => of_status(connection, "nodes")?,
        Listing::Jobs => of_status(connection, "jobs")?,
        Listing::Identities => of_status(connection, "identities")?,
        Listing::Revisions => views::rows(connection, "/v1/revisions")?,
        Listing::Limits => views::rows(connection, "/v1/limits")?,
        Listing::Gateways => views::rows(connection, "/v1/gateways")?,
        Listing::Routes => views::rows(connection, "/v1/routes")?,
        Listing::Alerts => views::rows(connection, "/v1/alerts")?,
        Listing::Changes => views::rows(connection, "/v1/history?limit=100")?,
    })
}

/// The change of this revision, if there is one.
pub(crate) fn change_of_revision(connection: &Connection, revision: u64) -> Result<Vec<Value>> {
    views::rows(connection, &format!("/v1/history?revision={revision}"))
}

fn of_status(connection: &Connection, listing: &str) -> Result<Vec<Value>> {
    let mut status: Value = connection.get("/v1/status")?;
    Ok(status::rows(listing, &mut status).unwrap_or_default())
}

const DOCUMENTS: &[Column] = &[
    ("KIND", "kind", Show::Plain),
    ("NAMESPACE", "namespace", Show::Plain),
    ("NAME", "name", Show::Plain),
    ("VERSION", "version", Show::Plain),
    ("AGE", "changed", Show::Age),
    ("BY", "by", Show::Plain),
];

/// Stored documents of this kind and name, in the namespace that the options select.
pub(crate) fn documents(
    connection: &Connection,
    (kind, name): (Option<&str>, Option<&str>),
    namespace: &NamespaceOptions,
) -> Result<Vec<StoredDocument>> {
    let kind = kind.map(kind_of).transpose()?;
    let of_mesh = kind.is_some_and(DocumentId::is_of_the_mesh);
    let selection = namespace.selection(connection.namespace().filter(|_| !of_mesh), name)?;
    let parts = [("kind", kind), ("namespace", selection.namespace.as_deref()), ("name", selection.name.as_deref())];
    let parts = parts.into_iter().filter_map(|(field, value)| value.map(|value| (field, value)));
    let query: Vec<String> =
        parts.map(|(field, value)| Ok(format!("{field}={}", checked(value)?))).collect::<Result<_>>()?;
    let listed: Documents = connection.get(&format!("/v1/documents?{}", query.join("&")))?;
    for wrong in listed.not_in_force {
        eprintln!("not in force: {}", shown(&Problem::from(wrong).to_string()));
    }
    ensure!(
        name.is_none() || !listed.documents.is_empty(),
        "there is no document {}{selection}",
        kind.map(|kind| format!("{kind} ")).unwrap_or_default()
    );
    Ok(listed.documents)
}

/// `leno get documents`, `leno get policies`, …
pub(crate) fn print_documents(
    connection: &Connection,
    which: (Option<&str>, Option<&str>),
    namespace: &NamespaceOptions,
    form: Form,
) -> Result<ExitCode> {
    let documents = documents(connection, which, namespace)?;
    match form {
        Form::Yaml => print_texts(&documents),
        Form::Name => documents.iter().for_each(|stored| {
            println!("{}", shown(&DocumentId::from(stored.document.clone()).to_string()));
        }),
        form => {
            let rows: Vec<Value> = documents.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
            print_rows(DOCUMENTS, &rows.iter().collect::<Vec<_>>(), form, true)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Listing {
    pub(crate) fn columns(self) -> &'static [Column] {
        use Show::{Age, Plain, Time, Wide};
        match self {
            Self::Nodes => columns::NODES,
            Self::Namespaces => columns::NAMESPACES,
            Self::Secrets => &[
                ("NAMESPACE", "namespace", Plain),
                ("NAME", "name", Plain),
                ("KEYS", "keys", Plain),
                ("BYTES", "bytes", Plain),
                ("AGE", "changed", Age),
                ("USED BY", "used_by", Plain),
                ("BY", "by", Wide),
                ("VERSION", "version", Wide),
                ("KEYS CHANGED", "keys_changed", Wide),
            ],
            Self::Functions => &[
                ("FUNCTION", "function", Plain),
                ("STATE", "state", Plain),
                ("READY", "ready", Plain),
                ("DESIRED", "desired", Plain),
                ("REVISION", "revision", Plain),
                ("NODES", "nodes", Plain),
                ("REASON", "reason", Plain),
                ("VERSION", "version", Wide),
                ("IDENTITY", "identity", Wide),
            ],
            Self::Instances => columns::INSTANCES,
            Self::Events => columns::EVENTS,
            Self::Limits => columns::LIMITS,
            Self::Gateways => columns::GATEWAYS,
            Self::Routes => columns::ROUTES,
            Self::Alerts => columns::ALERTS,
            Self::Changes => columns::CHANGES,
            Self::Revisions => &[
                ("REVISION", "revision", Plain),
                ("NAME", "declared", Plain),
                ("FUNCTION", "function", Plain),
                ("PERCENT", "percent", Plain),
                ("SERVED", "served", Plain),
                ("TAGS", "tags", Plain),
                ("STEP", "step", Plain),
                ("PAUSED", "paused", Plain),
                ("PROBLEM", "problem", Plain),
                ("ROLLED BACK", "failed", Plain),
                ("AGE", "created", Age),
                ("HEADERS", "headers", Wide),
                ("IMAGE", "image", Wide),
                ("DIGEST", "digest", Wide),
            ],
            Self::Jobs => &[
                ("JOB", "job", Plain),
                ("STATE", "state", Plain),
                ("NODE", "node", Plain),
                ("ATTEMPT", "attempt", Plain),
                ("COMPLETIONS", "completions", Plain),
                ("FAILED", "failed", Plain),
                ("AGE", "start", Age),
                ("ENDED", "end", Time),
                ("REASON", "reason", Plain),
            ],
            Self::Identities => {
                &[("IDENTITY", "identity", Plain), ("NODE", "node", Plain), ("EXPIRES", "not_after", Age)]
            }
            Self::Audit => &[
                ("TIME", "time", Time),
                ("REVISION", "revision", Plain),
                ("BY", "by", Plain),
                ("FROM", "from", Plain),
                ("CHANGES", "summary", Plain),
            ],
            Self::Tokens => &[
                ("TOKEN", "id", Plain),
                ("ROLE", "role", Plain),
                ("NAMESPACES", "namespaces", Plain),
                ("EXPIRES", "expires", Age),
                ("NOTE", "note", Plain),
                ("BY", "by", Plain),
                ("AGE", "created", Age),
            ],
        }
    }
}

/// An entry of the audit log, with its changes in words.
fn audit_row(entry: &AuditEntry) -> Result<Value> {
    let words = |change: &AuditChange| format!("{} {}", change.what, format!("{:?}", change.action).to_lowercase());
    let mut row = serde_json::to_value(entry)?;
    row["summary"] = entry.changes.iter().map(words).collect::<Vec<_>>().into();
    Ok(row)
}

/// Prints documents in the form in which they were applied, with the version for `leno apply
/// --if-version` as a comment.
pub(crate) fn print_texts(documents: &[StoredDocument]) {
    for stored in documents {
        println!("---\n# version {}, by {}", stored.version, shown(&stored.by));
        stored.text.trim_end().lines().for_each(|line| println!("{}", shown(line)));
    }
}

/// Accepts characters that are allowed both in a path and in a query.
fn checked(text: &str) -> Result<&str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    ensure!(!text.is_empty() && text.bytes().all(plain), "`{}` is not a kind or a name", text.escape_debug());
    Ok(text)
}

/// The kind that a user names, in any case.
fn kind_of(text: &str) -> Result<&'static str> {
    let known = DocumentId::KINDS.iter().find(|known| known.eq_ignore_ascii_case(text));
    known.copied().with_context(|| {
        format!("there is no kind `{}`; expected one of {}", text.escape_debug(), DocumentId::KINDS.join(", "))
    })
}

/// A document by kind and name; in `default` unless a namespace is named.
fn named(kind: &str, name: &str, namespace: &NamespaceOptions, of_context: Option<&str>) -> Result<Name> {
    let kind = kind_of(kind)?;
    let selection = namespace.selection(of_context, Some(name))?;
    let (namespace, name) =
        (selection.namespace.unwrap_or_else(|| "default".to_owned()), selection.name.unwrap_or_default());
    let namespace = if DocumentId::is_of_the_mesh(kind) { "" } else { checked(&namespace)? };
    Ok(Name { kind: kind.to_owned(), namespace: namespace.to_owned(), name: checked(&name)?.to_owned() })
}

/// `leno nodes …`
#[derive(clap::Subcommand)]
pub(crate) enum Nodes {
    /// Place no further functions on the node. Those that it has stay.
    Cordon {
        /// Name of the node.
        node: String,
    },
    /// Place no further functions on the node, and move those that it has to other nodes.
    Drain {
        /// Name of the node.
        node: String,
    },
    /// Make a cordoned or drained node available again.
    Uncordon {
        /// Name of the node.
        node: String,
    },
    /// End the node's membership at once.
    Revoke {
        /// Name of the node.
        node: String,
    },
}

/// Carries out `leno nodes …`.
pub(crate) fn nodes(server: &Server, command: &Nodes) -> Result<ExitCode> {
    let connection = Connection::to(server)?;
    let (Nodes::Cordon { node } | Nodes::Drain { node } | Nodes::Uncordon { node } | Nodes::Revoke { node }) = command;
    let path = format!("/v1/nodes/{}", checked(node)?);
    let cordon = |cordoned, drain| {
        connection.post::<CordonRequest>(&format!("{path}/cordon"), &CordonRequest { cordoned, drain })
    };
    let done = match command {
        Nodes::Cordon { .. } => cordon(true, false).map(|_| "cordoned")?,
        Nodes::Drain { .. } => cordon(true, true).map(|_| "drained: its functions move to other nodes")?,
        Nodes::Uncordon { .. } => cordon(false, false).map(|_| "not cordoned any more")?,
        Nodes::Revoke { .. } => connection.delete(&path).map(|()| "revoked")?,
    };
    println!("node {node} {done}");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_named_as_people_name_them() {
        let options = NamespaceOptions::default();
        let name = |kind: &str, name: &str| {
            named(kind, name, &options, None).map(|name| DocumentId::from(name).to_string()).ok()
        };
        assert_eq!(name("function", "demo/shop").as_deref(), Some("Function demo/shop"));
        assert_eq!(name("Policy", "shop").as_deref(), Some("Policy default/shop"));
        assert_eq!(name("chain", "demo/boutique").as_deref(), Some("Chain demo/boutique"));
        assert_eq!(name("mesh", "main").as_deref(), Some("Mesh main"));
        for (kind, bad) in
            [("Pod", "a"), ("Function", "a/b/c"), ("Function", ""), ("Function", "/a"), ("Function", "a&b")]
        {
            assert_eq!(name(kind, bad), None, "{kind} {bad}");
        }
    }
}
