//! `leno get` and `leno explain`: ask a running node through its admin address.

use crate::NodeAddress;
use crate::columns;
use crate::remote::{self, Server};
use crate::screen::{shown, shown_all, shown_json};
use crate::table::{self, Column, Show};
use anyhow::{Context, Result, bail, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use leno_api::node::{self, Address};
use leno_telemetry::ring::Explanation;
use serde_json::Value;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Pause between two queries of `leno get --watch`.
const LOOK: Duration = Duration::from_secs(1);

/// A listing of `leno get`.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Listing {
    /// Functions, with engine, callees, and how many instances there are and why.
    Functions,
    /// Nodes: the capacity that they offer, how much of it is used, and how many instances they
    /// host.
    Nodes,
    /// Revisions of functions: their shares of requests, the progress of rollouts, and the reasons
    /// of rollbacks.
    Revisions,
    /// Running copies of functions.
    Instances,
    /// External services, the functions that may call them, and the number of connections.
    Externals,
    /// Functions of chains that this node runs: the members that share memory, how much of it, and
    /// whose calls go through it.
    Chains,
    /// Jobs, their progress, and how they ended.
    Jobs,
    /// The last decisions of the autoscaler (in instances) and on rollouts (in per cent), and the
    /// events of jobs, with reasons.
    Events,
    /// SPIFFE IDs and their certificates.
    Identities,
    /// Namespaces, and the use that each makes of its quota.
    Namespaces,
    /// Documents that users have applied; of a control plane.
    Documents,
    /// The audit log of changes to documents; of a control plane.
    Audit,
}

impl Listing {
    /// The listing of the control plane; `None`: only a node has these rows. `named`: the user
    /// named a control plane, so it answers the listings that both have.
    pub(crate) fn of_control_plane(self, named: bool) -> Option<remote::Listing> {
        match self {
            Self::Documents => Some(remote::Listing::Documents),
            Self::Nodes if named => Some(remote::Listing::Nodes),
            Self::Audit => Some(remote::Listing::Audit),
            Self::Functions if named => Some(remote::Listing::Functions),
            Self::Revisions if named => Some(remote::Listing::Revisions),
            Self::Jobs if named => Some(remote::Listing::Jobs),
            Self::Identities if named => Some(remote::Listing::Identities),
            Self::Namespaces if named => Some(remote::Listing::Namespaces),
            _ => None,
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Documents | Self::Audit => "/",
            Self::Functions => "/functions",
            Self::Nodes => "/nodes",
            Self::Revisions => "/revisions",
            Self::Instances => "/instances",
            Self::Externals => "/externals",
            Self::Chains => "/chains",
            Self::Jobs => "/jobs",
            Self::Events => "/events",
            Self::Identities => "/identities",
            Self::Namespaces => "/namespaces",
        }
    }

    fn columns(self) -> &'static [Column] {
        use Show::{Age, Plain, Time, Wide};
        match self {
            Self::Documents | Self::Audit => &[],
            Self::Functions => &[
                ("FUNCTION", "function", Plain),
                ("ENGINE", "engine", Plain),
                ("PROTOCOL", "protocol", Plain),
                ("DESIRED", "desired", Plain),
                ("READY", "ready", Plain),
                ("WAITING", "waiting", Plain),
                ("MODE", "mode", Plain),
                ("CALLEES", "callees", Plain),
                ("EXPOSED", "exposed", Plain),
                ("NOT IN FORCE", "audited", Plain),
                ("SCALED BY", "reason", Plain),
                ("NODES", "nodes", Wide),
                ("STARTING", "starting", Wide),
                ("PROGRAM BYTES", "program_bytes", Wide),
                ("LIMITS NOT IN FORCE", "unenforced_limits", Wide),
                ("IDENTITY", "identity", Wide),
            ],
            Self::Nodes => columns::NODES,
            Self::Revisions => &[
                ("REVISION", "revision", Plain),
                ("FUNCTION", "function", Plain),
                ("PERCENT", "percent", Plain),
                ("TAGS", "tags", Plain),
                ("STEP", "step", Plain),
                ("REQUESTS", "requests", Plain),
                ("FAILURES", "failures", Plain),
                ("SLOW", "slow", Plain),
                ("ROLLED BACK", "failed", Plain),
                ("AGE", "created", Age),
                ("HEADERS", "headers", Wide),
                ("IMAGE", "image", Wide),
                ("DIGEST", "digest", Wide),
            ],
            Self::Instances => &[
                ("INSTANCE", "instance", Plain),
                ("FUNCTION", "function", Plain),
                ("STATE", "state", Plain),
                ("ADDRESS", "address", Plain),
                ("PID", "pid", Plain),
                ("ISOLATION", "isolation", Plain),
                ("RESTARTS", "restarts", Plain),
                ("REASON", "reason", Wide),
            ],
            Self::Externals => &[
                ("EXTERNAL", "external", Plain),
                ("HOSTS", "hosts", Plain),
                ("ADDRESSES", "addresses", Plain),
                ("PORTS", "ports", Plain),
                ("CALLERS", "callers", Plain),
                ("CONNECTIONS", "connections", Plain),
            ],
            Self::Chains => &[
                ("CHAIN", "chain", Plain),
                ("FUNCTION", "function", Plain),
                ("PROTOCOL", "protocol", Plain),
                ("MEMORY", "memory", Plain),
                ("TO", "to", Plain),
                ("LARGE PAGES", "large_pages", Wide),
                ("DIRECT", "direct", Wide),
            ],
            Self::Jobs => &[
                ("JOB", "job", Plain),
                ("STATE", "state", Plain),
                ("NODE", "node", Plain),
                ("COMPLETIONS", "completions", Plain),
                ("ACTIVE", "active", Plain),
                ("FAILED", "failed", Plain),
                ("AGE", "start", Age),
                ("ENDED", "end", Time),
                ("EXIT", "exit_code", Plain),
                ("REASON", "reason", Plain),
            ],
            Self::Events => &[
                ("TIME", "time", Time),
                ("KIND", "kind", Plain),
                ("FUNCTION", "function", Plain),
                ("REVISION", "revision", Plain),
                ("FROM", "from", Plain),
                ("TO", "to", Plain),
                ("MODE", "mode", Plain),
                ("REASON", "reason", Plain),
            ],
            Self::Identities => {
                &[("IDENTITY", "identity", Plain), ("EXPIRES", "not_after", Age), ("RENEWAL", "renew_at", Age)]
            }
            Self::Namespaces => columns::NAMESPACES_OF_NODE,
        }
    }
}

/// The output options of `leno get`.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Printing {
    /// Format of the listing.
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    output: Form,
    /// The same as `--output json`.
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// Look every second, and print new and changed rows, until interrupted.
    #[arg(short, long)]
    watch: bool,
}

/// The format of a listing.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// A table, with times as ages or local time.
    Table,
    /// A table with more columns.
    Wide,
    /// As the node's API returns it; times in seconds since 1970.
    Json,
    /// The same in YAML. Characters that a terminal would act on are escaped as in tables.
    Yaml,
}

/// Prints one listing: of the control plane if only that has it, or if the user names one that has
/// it; else of the node. `which` selects documents.
pub(crate) fn list(
    what: Listing,
    which: &[String],
    (node, server): (&NodeAddress, &Server),
    printing: Printing,
) -> Result<ExitCode> {
    let form = if printing.json { Form::Json } else { printing.output };
    if let Some(what) = what.of_control_plane(server.is_named()) {
        ensure!(!printing.watch, "--watch is for listings of a node");
        let form = match form {
            Form::Table => remote::Form::Table { wide: false },
            Form::Wide => remote::Form::Table { wide: true },
            Form::Json => remote::Form::Json,
            Form::Yaml => remote::Form::Yaml,
        };
        return remote::list(server, what, which, form);
    }
    ensure!(
        !server.is_named(),
        "a control plane does not have this listing, only nodes do: leave out --server (LENO_SERVER) and --context"
    );
    ensure!(which.is_empty(), "only `documents` can be chosen by KIND and NAME");
    let node = Node::of(node)?;
    let columns: Vec<Column> =
        what.columns().iter().filter(|(_, _, show)| form == Form::Wide || *show != Show::Wide).copied().collect();
    let mut seen = Vec::new();
    let mut first = true;
    loop {
        let rows = node.list(what)?;
        let new: Vec<&Value> = rows.iter().filter(|row| !seen.contains(*row)).collect();
        if let Form::Json | Form::Yaml = form {
            if first || !new.is_empty() {
                println!("{}", document(&new, form)?);
            }
        } else {
            let headings = first.then(|| columns.iter().map(|(heading, ..)| (*heading).to_owned()).collect::<Vec<_>>());
            let now = Timestamp::now();
            let table: Vec<_> =
                headings.into_iter().chain(new.iter().map(|row| table::cells(&columns, row, now))).collect();
            table::print(&table);
        }
        if !printing.watch {
            return Ok(ExitCode::SUCCESS);
        }
        (seen, first) = (rows, false);
        std::thread::sleep(LOOK);
    }
}

/// Rows for a program to read.
fn document(rows: &[&Value], form: Form) -> Result<String> {
    match form {
        Form::Yaml => {
            let rows: Vec<Value> = rows.iter().map(|row| shown_all((*row).clone())).collect();
            // The output of `--watch` is one stream of several documents.
            Ok(format!("---\n{}", serde_saphyr::to_string(&rows)?.trim_end()))
        }
        _ => Ok(shown_json(&serde_json::to_string_pretty(rows)?).into_owned()),
    }
}

/// Prints a node's records of one request.
pub(crate) fn explain(request_id: &str, node: &NodeAddress, json: bool) -> Result<ExitCode> {
    if request_id.is_empty() || !request_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        bail!("`{request_id}` is not a request id: letters, digits, `-`, `_` and `.` only");
    }
    let node = Node::of(node)?;
    let (status, body) = node.ask(&format!("/explain/{request_id}"))?;
    match status {
        200 if json => println!("{}", shown_json(&body)),
        200 => {
            let hops: Vec<Explanation> = serde_json::from_str(&body)
                .and_then(|hops| serde_json::from_value(shown_all(hops)))
                .context("the node's answer is not an explanation")?;
            print!("{}", crate::telemetry::tell(&hops));
        }
        404 => {
            bail!(
                "the node at {} does not remember request {request_id}: it keeps the most recent ones only",
                node.admin
            )
        }
        status => bail!("the node at {} answered {status}: {}", node.admin, shown(body.trim_end())),
    }
    Ok(ExitCode::SUCCESS)
}

/// A connection to the admin API of a node.
pub(crate) struct Node {
    pub admin: Address,
    token: Option<String>,
}

impl Node {
    pub(crate) fn of(node: &NodeAddress) -> Result<Self> {
        let token = node.admin_token.as_deref().map(node::token).transpose()?;
        Ok(Self { admin: node.admin.clone().unwrap_or_else(Address::usual), token })
    }

    fn list(&self, what: Listing) -> Result<Vec<Value>> {
        let (status, body) = self.ask(what.path())?;
        ensure!(status == 200, "the node at {} answered {status}: {}", self.admin, shown(body.trim_end()));
        serde_json::from_str(&body).context("the node's answer is not JSON")
    }

    /// One GET to the admin address.
    pub(crate) fn ask(&self, path: &str) -> Result<(u16, String)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let answer = tokio::time::timeout(Duration::from_secs(10), self.exchange(path, None)).await;
            answer.with_context(|| format!("the node at {} did not answer within 10 s", self.admin))?
        })
    }

    /// One POST to the admin address, with this timeout.
    pub(crate) fn tell(&self, path: &str, body: Vec<u8>, patience: Duration) -> Result<(u16, String)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let answer = tokio::time::timeout(patience, self.exchange(path, Some(body))).await;
            answer.with_context(|| format!("the node at {} did not answer within {patience:?}", self.admin))?
        })
    }

    async fn exchange(&self, path: &str, body: Option<Vec<u8>>) -> Result<(u16, String)> {
        let nobody =
            || format!("no node at {}; is `leno up` running, as this account, and is --admin its address?", self.admin);
        match &self.admin {
            Address::Socket(socket) => {
                let stream = UnixStream::connect(socket).await.with_context(nobody)?;
                let peer = stream.peer_cred()?;
                // In a folder such as /tmp, a process of another account may have made this socket
                // first.
                ensure!(
                    node::is_trusted(&peer),
                    "at {} there is no node of this account, but a process of account {}",
                    self.admin,
                    peer.uid()
                );
                self.send(stream, None, path, body).await
            }
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await.with_context(nobody)?;
                self.send(stream, self.token.as_deref(), path, body).await
            }
        }
    }

    async fn send(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        token: Option<&str>,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(u16, String)> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let method = if body.is_some() { hyper::Method::POST } else { hyper::Method::GET };
        let mut request = hyper::Request::builder().method(method).uri(path).header("host", "admin");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = sender.send_request(request.body(Full::new(Bytes::from(body.unwrap_or_default())))?).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status != 401, "the node at {} takes a token: give --admin-token FILE", self.admin);
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_is_of_rows_and_acts_on_no_terminal() {
        let rows =
            [serde_json::json!({ "job": "a/b", "exit": null, "reason": "x\x1b[2J: #\n\u{202e}- y", "callees": ["c"] })];
        let yaml = document(&rows.iter().collect::<Vec<_>>(), Form::Yaml).unwrap();
        assert!(yaml.starts_with("---\n- "), "{yaml}");
        assert!(yaml.contains("job: a/b\n") && yaml.contains(r"x\\u{1b}[2J: #\\n\\u{202e}- y"), "{yaml}");
        assert!(!yaml.contains(|character: char| character != '\n' && character.is_control()), "{yaml}");
    }
}
