//! `leno-bench load`: sends requests by a [`Plan`] on standard input, and writes an [`Outcome`] to
//! standard output.
//!
//! The lines `begin` and `end` mark the measured time, so that the parent can read the proxy's
//! counters at these moments. The load has one thread, so that it can share a core with the
//! upstream.

mod client;
mod pace;

use crate::sample::Sample;
use anyhow::Context;
use client::Connector;
pub(crate) use client::{configure, parse};
use pace::Pacer;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

/// What to send, how, and how long.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Where to connect.
    pub address: SocketAddr,
    pub protocol: Protocol,
    pub tls: Option<Tls>,
    pub pace: Pace,
    /// Connections (with [`Protocol::Fresh`]: at the same time).
    pub connections: usize,
    /// Requests at the same time on each connection; more than one needs HTTP/2.
    pub streams: usize,
    pub warm_up_ms: u64,
    pub measured_ms: u64,
    pub request: Request,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub method: String,
    /// Begins with `/`; or, for a forward proxy, with `http://`.
    pub target: String,
    /// Taken in turn.
    pub authorities: Vec<String>,
    pub headers: Vec<(String, String)>,
    /// Values of `authorization`, one after the other.
    pub authorizations: Vec<String>,
    /// Bytes of the body.
    pub body: usize,
    /// Bodies, taken in turn, in place of those bytes.
    pub contents: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Protocol {
    /// HTTP/1.1, connections kept.
    Http1,
    /// HTTP/2, connections kept.
    Http2,
    /// HTTP/1.1, a new connection for each request.
    Fresh,
}

/// PEM files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tls {
    pub ca: PathBuf,
    pub server_name: String,
    /// Certificate and key to prove who we are with.
    pub client: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Pace {
    /// Each stream sends its next request when it has the answer to the last.
    Closed,
    /// So many requests a second, answered or not; latency counts from when a request was due.
    Open(f64),
}

/// The results of the measured time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub seconds: f64,
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests without an answer.
    pub errors: u64,
    /// The first of them.
    pub error: Option<String>,
    /// Due when the time was over and still not answered (open loop only).
    pub unanswered: u64,
    /// Latency in microseconds at the shares of [`SHARES`]; empty if nothing was answered.
    pub latency_us: Vec<f64>,
}

/// Where a latency distribution is kept: each per cent, and finer towards the end.
pub(crate) const SHARES: [f64; 104] = {
    let mut shares = [0.0; 104];
    let mut index = 0;
    while index < 100 {
        shares[index] = index as f64 / 100.0;
        index += 1;
    }
    [shares[100], shares[101], shares[102], shares[103]] = [0.995, 0.999, 0.9999, 1.0];
    shares
};

impl Outcome {
    /// Answers of any status.
    pub(crate) fn answered(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// Requests that were not answered with 200, or not at all.
    pub(crate) fn failed(&self) -> u64 {
        self.answered() - self.answered_with(&[200]) + self.errors
    }

    /// Answers with one of these statuses.
    pub(crate) fn answered_with(&self, statuses: &[u16]) -> u64 {
        statuses.iter().filter_map(|status| self.statuses.get(status)).sum()
    }

    /// Latency in microseconds that `share` (one of [`SHARES`]) of the answers did not exceed.
    pub(crate) fn latency(&self, share: f64) -> Option<f64> {
        let index = SHARES.iter().position(|known| (known - share).abs() < 1e-9)?;
        self.latency_us.get(index).copied()
    }
}

/// Counters of all streams.
#[derive(Default)]
struct Tally {
    counting: Cell<bool>,
    latencies: RefCell<Vec<Duration>>,
    statuses: RefCell<BTreeMap<u16, u64>>,
    errors: Cell<u64>,
    error: RefCell<Option<String>>,
}

impl Tally {
    fn answer(&self, due: Instant, status: u16) {
        if self.counting.get() {
            self.latencies.borrow_mut().push(due.elapsed());
            *self.statuses.borrow_mut().entry(status).or_default() += 1;
        }
    }

    fn error(&self, error: &anyhow::Error) {
        self.error.borrow_mut().get_or_insert_with(|| format!("{error:#}"));
        if self.counting.get() {
            self.errors.set(self.errors.get() + 1);
        }
    }
}

/// Reads a plan, carries it out, and prints the outcome.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let plan: Plan = serde_json::from_str(&text).context("the plan cannot be read")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = LocalSet::new().block_on(&runtime, execute(&plan))?;
    say(&serde_json::to_string(&outcome)?)
}

async fn execute(plan: &Plan) -> anyhow::Result<Outcome> {
    let connector = Rc::new(Connector::new(plan)?);
    let tally = Rc::new(Tally::default());
    let pacer = Pacer::start(plan.pace)?;
    for number in 0..plan.connections {
        let (connector, tally, pacer) = (connector.clone(), tally.clone(), pacer.clone());
        tokio::task::spawn_local(stream_of(connector, tally, pacer, number, plan.streams));
    }
    tokio::time::sleep(Duration::from_millis(plan.warm_up_ms)).await;
    say("begin")?;
    let begin = Instant::now();
    tally.counting.set(true);
    tokio::time::sleep(Duration::from_millis(plan.measured_ms)).await;
    tally.counting.set(false);
    let seconds = begin.elapsed().as_secs_f64();
    say("end")?;
    let latencies = tally.latencies.take();
    let latency_us = match latencies.is_empty() {
        true => Vec::new(),
        false => {
            let sample = Sample::new(latencies);
            SHARES.iter().map(|share| sample.micros(*share)).collect()
        }
    };
    Ok(Outcome {
        seconds,
        statuses: tally.statuses.take(),
        errors: tally.errors.get(),
        error: tally.error.take(),
        unanswered: pacer.waiting() as u64,
        latency_us,
    })
}

/// Sends requests one after the other over one connection.
pub(crate) struct Single {
    runtime: tokio::runtime::Runtime,
    connector: Connector,
    client: client::Client,
}

impl Single {
    /// Connects.
    pub(crate) fn connect(plan: &Plan) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let connector = Connector::new(plan)?;
        let client = runtime.block_on(connector.connect())?;
        Ok(Self { runtime, connector, client })
    }

    /// Sends so many, all the same. Fails if one is not answered with 200.
    pub(crate) fn send(&mut self, count: usize) -> anyhow::Result<()> {
        let Self { runtime, connector, client } = self;
        runtime.block_on(async {
            for _ in 0..count {
                let status = client.exchange(connector, 0).await?;
                anyhow::ensure!(status == 200, "an answer is {status}");
            }
            Ok(())
        })
    }
}

/// Sends one request over a new connection. Returns the status.
pub(crate) async fn once(plan: &Plan) -> anyhow::Result<u16> {
    let connector = Connector::new(plan)?;
    connector.connect().await?.exchange(&connector, 0).await
}

/// One connection and its streams, renewed when it breaks.
async fn stream_of(connector: Rc<Connector>, tally: Rc<Tally>, pacer: Rc<Pacer>, number: usize, streams: usize) {
    loop {
        match connector.connect().await {
            Ok(client) => {
                let mut set = tokio::task::JoinSet::new();
                for stream in 1..streams {
                    let Some(mut client) = client.share() else { break };
                    let (connector, tally, pacer) = (connector.clone(), tally.clone(), pacer.clone());
                    let first = number * streams + stream;
                    set.spawn_local(async move { exchange_all(&mut client, &connector, &tally, &pacer, first).await });
                }
                let mut client = client;
                exchange_all(&mut client, &connector, &tally, &pacer, number * streams).await;
                set.shutdown().await;
            }
            Err(error) => tally.error(&error),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Ends with the first error.
async fn exchange_all(client: &mut client::Client, connector: &Connector, tally: &Tally, pacer: &Pacer, first: usize) {
    let mut index = first;
    loop {
        let due = pacer.next().await;
        match client.exchange(connector, index).await {
            Ok(status) => tally.answer(due, status),
            Err(error) => return tally.error(&error),
        }
        index = index.wrapping_add(1);
    }
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
