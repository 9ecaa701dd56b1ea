//! Requests to the API server, by way of `kubectl proxy`.

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Requests under way at once.
const CONCURRENT: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A client of the API server. Cheap to clone.
#[derive(Clone)]
pub(super) struct Api {
    socket: Arc<Path>,
}

impl Api {
    pub(super) fn new(socket: &Path) -> Self {
        Self { socket: socket.into() }
    }

    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, "application/json", None).await
    }

    pub(super) async fn create(&self, path: &str, object: &Value) -> anyhow::Result<Value> {
        self.call(Method::POST, path, "application/json", Some(object)).await
    }

    /// Changes the fields that `change` names; `null` removes one.
    pub(super) async fn change(&self, path: &str, change: &Value) -> anyhow::Result<Value> {
        self.call(Method::PATCH, path, "application/merge-patch+json", Some(change)).await
    }

    pub(super) async fn delete(&self, path: &str) -> anyhow::Result<()> {
        let at_once = json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"});
        self.call(Method::DELETE, path, "application/json", Some(&at_once)).await.map(drop)
    }

    /// Creates objects, each at its path, many at once.
    pub(super) async fn create_all(&self, objects: impl IntoIterator<Item = (String, Value)>) -> anyhow::Result<()> {
        let mut under_way = JoinSet::new();
        for (path, object) in objects {
            if under_way.len() == CONCURRENT
                && let Some(done) = under_way.join_next().await
            {
                done??;
            }
            let api = self.clone();
            under_way.spawn(async move { api.create(&path, &object).await.map(drop) });
        }
        while let Some(done) = under_way.join_next().await {
            done??;
        }
        Ok(())
    }

    /// Waits until a list is empty.
    pub(super) async fn await_none(&self, path: &str) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            let list = self.get(&format!("{path}&limit=1")).await?;
            if list["items"].as_array().is_some_and(Vec::is_empty) {
                return Ok(());
            }
            ensure!(begin.elapsed() < TIMEOUT, "there still are {path}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until an object exists, and returns it.
    pub(super) async fn await_existing(&self, path: &str) -> anyhow::Result<Value> {
        let begin = Instant::now();
        loop {
            match self.get(path).await {
                Err(error) if begin.elapsed() > TIMEOUT => return Err(error),
                Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
                found => return found,
            }
        }
    }

    /// Waits until an object is as `done` says.
    pub(super) async fn await_object(&self, path: &str, done: impl Fn(&Value) -> bool) -> anyhow::Result<()> {
        let object = self.get(path).await?;
        if done(&object) {
            return Ok(());
        }
        let (list, name) = path.rsplit_once('/').context("the path of an object")?;
        let version = object["metadata"]["resourceVersion"].as_str().context("it has a version")?;
        let watch = format!("{list}?watch=1&fieldSelector=metadata.name={name}&resourceVersion={version}");
        let mut body = self.send(&Method::GET, &watch, "application/json", None).await?;
        let changes = async {
            let mut text = Vec::new();
            while let Some(frame) = body.frame().await {
                text.extend(frame?.into_data().unwrap_or_default());
                while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = text.drain(..=end).collect();
                    let event: Value = serde_json::from_slice(&line)?;
                    ensure!(event["type"] != "ERROR" && event["type"] != "DELETED", "{path}: {event}");
                    if done(&event["object"]) {
                        return Ok(());
                    }
                }
            }
            bail!("the watch of {path} has ended")
        };
        timeout(TIMEOUT, changes).await.with_context(|| format!("{path} does not change"))?
    }

    async fn call(&self, method: Method, path: &str, kind: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let body = self.send(&method, path, kind, body).await?;
        Ok(serde_json::from_slice(&body.collect().await?.to_bytes())?)
    }

    /// Sends a request. Returns the body of an answer that reports success.
    async fn send(&self, method: &Method, path: &str, kind: &str, body: Option<&Value>) -> anyhow::Result<Incoming> {
        let stream = UnixStream::connect(&*self.socket).await.context("kubectl proxy")?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move { drop(connection.await) });
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = request.header("content-type", kind).body(Full::new(Bytes::from(body)))?;
        let answer = sender.send_request(request).await.with_context(|| format!("{method} {path}"))?;
        let (status, body) = (answer.status(), answer.into_body());
        if !status.is_success() {
            let reason = body.collect().await?.to_bytes();
            bail!("{method} {path}: {status}: {}", String::from_utf8_lossy(&reason));
        }
        Ok(body)
    }
}
