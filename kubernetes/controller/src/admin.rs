//! Answers to probes and to Prometheus.

use crate::listener::listen;
use crate::publication::Counts;
use crate::status::WriteCounts;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// Concurrent requests.
const CONCURRENT: usize = 16;
/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(5);
/// Bytes of a request.
const MAX_REQUEST: usize = 8 << 10;

/// State that requests read.
pub(crate) struct Admin {
    /// Why this controller serves no nodes yet; empty: it serves them.
    pub waiting: watch::Receiver<String>,
    /// Whether it leads.
    pub leads: watch::Receiver<bool>,
    /// Counts of publications.
    pub publications: Arc<Counts>,
    /// Counts of writes of status.
    pub writes: Arc<WriteCounts>,
    /// Further metrics: name, help and count.
    pub watches: Box<dyn Fn() -> Vec<(&'static str, &'static str, u64)> + Send + Sync>,
}

impl Admin {
    /// Serves requests until it is dropped.
    ///
    /// # Errors
    /// The address cannot be used.
    pub(crate) async fn serve(self, address: SocketAddr) -> Result<()> {
        let listener = listen(address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address} (--admin)"))?;
        tracing::info!("health and metrics: http://{}", listener.local_addr()?);
        let (admin, permits) = (Arc::new(self), Arc::new(Semaphore::new(CONCURRENT)));
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else { return Ok(()) };
            // A connection may be gone before it is accepted.
            let Ok((stream, _)) = listener.accept().await else { continue };
            let admin = admin.clone();
            tokio::spawn(async move {
                // A client that sends or reads nothing has no answer.
                let _ = timeout(REQUEST, admin.answer(stream)).await;
                drop(permit);
            });
        }
    }

    async fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            if head.len() > MAX_REQUEST || stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let line = String::from_utf8_lossy(&head);
        let (status, body) = match line.split(' ').take(2).collect::<Vec<_>>()[..] {
            ["GET", "/healthz"] => ("200 OK", "ok\n".to_owned()),
            ["GET", "/readyz"] => match self.waiting.borrow().as_str() {
                "" => ("200 OK", "ok\n".to_owned()),
                reason => ("503 Service Unavailable", format!("{reason}\n")),
            },
            ["GET", "/metrics"] => ("200 OK", self.metrics()),
            _ => ("404 Not Found", "expected GET /healthz, /readyz or /metrics\n".to_owned()),
        };
        let length = body.len();
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    }

    fn metrics(&self) -> String {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (publications, writes) = (&self.publications, &self.writes);
        let mut all = vec![
            ("leno_controller_leads", "Whether this controller writes status.", u64::from(*self.leads.borrow())),
            ("leno_controller_publications_total", "Publications of documents.", of(&publications.published)),
            ("leno_controller_publication_failures_total", "Publications that failed.", of(&publications.failed)),
            (
                "leno_controller_publication_microseconds_total",
                "Time from a change of an object to the end of its publication.",
                of(&publications.micros),
            ),
            ("leno_controller_status_writes_total", "Writes of the status of objects.", of(&writes.written)),
            ("leno_controller_status_failures_total", "Writes of status that failed.", of(&writes.failed)),
        ];
        all.extend((self.watches)());
        let mut text = String::new();
        for (name, help, value) in all {
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            // Writing to a text does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        text
    }
}
