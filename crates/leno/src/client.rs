//! `leno get` and `leno explain`: ask a running node through its admin address.

use crate::NodeAddress;
use crate::admin::{self, Address};
use crate::screen::{shown, shown_all, shown_json};
use anyhow::{Context, Result, bail, ensure};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use leno_proxy::ring::Explanation;
use serde_json::Value;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// What `leno get` lists.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Listing {
    /// Functions, with engine, callees, and how many instances there are and why.
    Functions,
    /// Revisions of functions: what each gets, how its rollout goes, and why it was rolled back.
    Revisions,
    /// Running copies of functions.
    Instances,
    /// Jobs, how far they are, and how they ended.
    Jobs,
    /// The last decisions of the autoscaler (in instances) and on rollouts (in per cent), what happened to jobs, and why.
    Events,
    /// SPIFFE IDs and their certificates.
    Identities,
}

impl Listing {
    fn path(self) -> &'static str {
        match self {
            Self::Functions => "/functions",
            Self::Revisions => "/revisions",
            Self::Instances => "/instances",
            Self::Jobs => "/jobs",
            Self::Events => "/events",
            Self::Identities => "/identities",
        }
    }

    /// Columns of the table: heading, and the field of the row.
    fn columns(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Functions => &[
                ("FUNCTION", "function"),
                ("ENGINE", "engine"),
                ("PROTOCOL", "protocol"),
                ("DESIRED", "desired"),
                ("READY", "ready"),
                ("WAITING", "waiting"),
                ("MODE", "mode"),
                ("CALLEES", "callees"),
                ("EXPOSED", "exposed"),
                ("SCALED BY", "reason"),
            ],
            Self::Revisions => &[
                ("REVISION", "revision"),
                ("FUNCTION", "function"),
                ("PERCENT", "percent"),
                ("TAGS", "tags"),
                ("STEP", "step"),
                ("REQUESTS", "requests"),
                ("FAILURES", "failures"),
                ("SLOW", "slow"),
                ("ROLLED BACK", "failed"),
            ],
            Self::Instances => &[
                ("INSTANCE", "instance"),
                ("FUNCTION", "function"),
                ("STATE", "state"),
                ("ADDRESS", "address"),
                ("PID", "pid"),
                ("RESTARTS", "restarts"),
            ],
            Self::Jobs => &[
                ("JOB", "job"),
                ("STATE", "state"),
                ("NODE", "node"),
                ("COMPLETIONS", "completions"),
                ("ACTIVE", "active"),
                ("FAILED", "failed"),
                ("START (UNIX)", "start"),
                ("END (UNIX)", "end"),
                ("EXIT", "exit_code"),
                ("REASON", "reason"),
            ],
            Self::Events => &[
                ("TIME (UNIX)", "time"),
                ("KIND", "kind"),
                ("FUNCTION", "function"),
                ("REVISION", "revision"),
                ("FROM", "from"),
                ("TO", "to"),
                ("MODE", "mode"),
                ("REASON", "reason"),
            ],
            Self::Identities => {
                &[("IDENTITY", "identity"), ("EXPIRES (UNIX)", "not_after"), ("RENEWAL (UNIX)", "renew_at")]
            }
        }
    }
}

/// Prints one listing.
pub fn list(what: Listing, node: &NodeAddress, json: bool) -> Result<ExitCode> {
    let node = Node::of(node)?;
    let (status, body) = node.ask(what.path())?;
    if status != 200 {
        bail!("the node at {} answered {status}: {}", node.admin, shown(body.trim_end()));
    }
    if json {
        println!("{}", shown_json(&body));
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Value> = serde_json::from_str(&body).context("the node's answer is not JSON")?;
    let columns = what.columns();
    let mut table = vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect::<Vec<_>>()];
    table.extend(rows.iter().map(|row| columns.iter().map(|(_, field)| cell(&row[*field])).collect()));
    print_table(&table);
    Ok(ExitCode::SUCCESS)
}

/// Prints what a node remembers of one request.
pub fn explain(request_id: &str, node: &NodeAddress, json: bool) -> Result<ExitCode> {
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

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => shown(text).into_owned(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

fn print_table(rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..columns).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
    for row in rows {
        let line: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        println!("{}", line.join("  ").trim_end());
    }
}

/// A node to be asked.
struct Node {
    admin: Address,
    token: Option<String>,
}

impl Node {
    fn of(node: &NodeAddress) -> Result<Self> {
        let token = node.admin_token.as_deref().map(admin::token).transpose()?;
        Ok(Self { admin: node.admin.clone().unwrap_or_else(Address::usual), token })
    }

    /// One GET to the admin address.
    fn ask(&self, path: &str) -> Result<(u16, String)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let answer = tokio::time::timeout(Duration::from_secs(10), self.get(path)).await;
            answer.with_context(|| format!("the node at {} did not answer within 10 s", self.admin))?
        })
    }

    async fn get(&self, path: &str) -> Result<(u16, String)> {
        let nobody =
            || format!("no node at {}; is `leno up` running, as this account, and is --admin its address?", self.admin);
        match &self.admin {
            Address::Socket(socket) => {
                let stream = UnixStream::connect(socket).await.with_context(nobody)?;
                let peer = stream.peer_cred()?;
                // Where everybody may make files, somebody may have been there first.
                ensure!(
                    admin::is_trusted(&peer),
                    "at {} there is no node of this account, but a process of account {}",
                    self.admin,
                    peer.uid()
                );
                self.send(stream, None, path).await
            }
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await.with_context(nobody)?;
                self.send(stream, self.token.as_deref(), path).await
            }
        }
    }

    async fn send(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        token: Option<&str>,
        path: &str,
    ) -> Result<(u16, String)> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = hyper::Request::get(path).header("host", "admin");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status != 401, "the node at {} takes a token: give --admin-token FILE", self.admin);
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}
