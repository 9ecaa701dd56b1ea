//! `leno get` and `leno explain`: ask a running node through its admin address.

use crate::screen::{shown, shown_all, shown_json};
use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use leno_proxy::ring::Explanation;
use serde_json::Value;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

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
pub fn list(what: Listing, admin: SocketAddr, json: bool) -> Result<ExitCode> {
    let (status, body) = ask(admin, what.path())?;
    if status != 200 {
        bail!("the node at {admin} answered {status}: {}", shown(body.trim_end()));
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
pub fn explain(request_id: &str, admin: SocketAddr, json: bool) -> Result<ExitCode> {
    if request_id.is_empty() || !request_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        bail!("`{request_id}` is not a request id: letters, digits, `-`, `_` and `.` only");
    }
    let (status, body) = ask(admin, &format!("/explain/{request_id}"))?;
    match status {
        200 if json => println!("{}", shown_json(&body)),
        200 => {
            let hops: Vec<Explanation> = serde_json::from_str(&body)
                .and_then(|hops| serde_json::from_value(shown_all(hops)))
                .context("the node's answer is not an explanation")?;
            print!("{}", crate::telemetry::tell(&hops));
        }
        404 => bail!("the node at {admin} does not remember request {request_id}: it keeps the most recent ones only"),
        status => bail!("the node at {admin} answered {status}: {}", shown(body.trim_end())),
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

/// One GET to the admin address.
fn ask(admin: SocketAddr, path: &str) -> Result<(u16, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let answer = tokio::time::timeout(Duration::from_secs(10), get(admin, path)).await;
        answer.with_context(|| format!("the node at {admin} did not answer within 10 s"))?
    })
}

async fn get(admin: SocketAddr, path: &str) -> Result<(u16, String)> {
    let stream = tokio::net::TcpStream::connect(admin)
        .await
        .with_context(|| format!("no node at {admin}; is `leno up` running, and is --admin its admin address?"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = hyper::Request::get(path).header("host", admin.to_string()).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
