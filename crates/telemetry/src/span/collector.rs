//! The trace back end: its address, and the client that posts to it.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy;
use leno_runtime::client::{self, Client, ClientError, with_causes};
use std::io;
use std::time::Duration;
use tokio::runtime;

/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that are read of an answer. Answers say next to nothing.
const LARGEST_ANSWER: usize = 64 * 1024;

/// Why the back end did not take spans.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unsent {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the exchange failed: {}", with_causes(.0))]
    Http(#[from] legacy::Error),
    #[error("the answer was {0}")]
    Status(StatusCode),
    #[error("no request can be made: {0}")]
    Request(#[from] http::Error),
    #[error("nothing within {TIMEOUT:?}")]
    Timeout,
}

/// An OTLP/HTTP back end.
pub(super) struct Collector {
    /// The exporter's thread has nothing to do but to wait for answers.
    runtime: runtime::Runtime,
    address: Uri,
    /// After a failure it is made anew, with the root certificates that the system has then.
    client: Option<Client>,
}

impl Collector {
    /// `endpoint` is a base address such as `http://127.0.0.1:4318`, or a complete one that ends in
    /// `/v1/traces`.
    pub(super) fn new(endpoint: &str) -> io::Result<Self> {
        let endpoint = endpoint.trim_end_matches('/');
        let suffix = if endpoint.ends_with("/v1/traces") { "" } else { "/v1/traces" };
        let address = client::address(&format!("{endpoint}{suffix}"));
        let address = address.map_err(|error| io::Error::other(format!("tracing.otlp: {error}")))?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, address, client: None })
    }

    /// Posts an encoded `ExportTraceServiceRequest`.
    pub(super) fn post(&mut self, message: Vec<u8>) -> Result<(), Unsent> {
        let (address, client) = (&self.address, self.client.take());
        let posting = async { tokio::time::timeout(TIMEOUT, post(address, client, message.into())).await };
        self.client = Some(self.runtime.block_on(posting).map_err(|_| Unsent::Timeout)??);
        Ok(())
    }
}

/// Returns the client for the next request.
async fn post(address: &Uri, kept: Option<Client>, message: Bytes) -> Result<Client, Unsent> {
    if let Some(client) = kept {
        match exchange(address, &client, message.clone()).await {
            // The exchange broke off. If the back end got the spans all the same, it recognises
            // them by their IDs.
            Err(Unsent::Http(error)) if !error.is_connect() => (),
            result => return result.map(|()| client),
        }
    }
    let client = client::client(address, None).await?;
    exchange(address, &client, message).await?;
    Ok(client)
}

async fn exchange(address: &Uri, client: &Client, message: Bytes) -> Result<(), Unsent> {
    let request = Request::post(address)
        .header(CONTENT_TYPE, "application/x-protobuf")
        .header(USER_AGENT, client::USER_AGENT)
        .body(Full::new(message))?;
    let response = client.request(request).await?;
    let status = response.status();
    // Read to the end, so that the back end does not see its answer broken off.
    let _ = Limited::new(response.into_body(), LARGEST_ANSWER).collect().await;
    if status.is_success() { Ok(()) } else { Err(Unsent::Status(status)) }
}
