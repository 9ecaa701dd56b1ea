//! The trace back end's address, and the connection to it, which is kept.

use crate::runtime::dial::{DialError, Server};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::io;
use std::time::Duration;
use tokio::runtime;

/// Per request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// An answer says next to nothing.
const LARGEST_ANSWER: usize = 64 * 1024;

/// Why spans were not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unsent {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the exchange failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("the answer was {0}")]
    Status(StatusCode),
    #[error("no request can be made: {0}")]
    Request(#[from] http::Error),
    #[error("nothing within {TIMEOUT:?}")]
    Timeout,
}

/// An OTLP/HTTP back end.
pub(super) struct Collector {
    /// The exporter's thread has nothing else to do than wait for the answer.
    runtime: runtime::Runtime,
    server: Server,
    kept: Option<SendRequest<Full<Bytes>>>,
}

impl Collector {
    /// At an address such as `http://127.0.0.1:4318`, or a whole one that ends in `/v1/traces`.
    pub(super) fn new(endpoint: &str) -> io::Result<Self> {
        let endpoint = endpoint.trim_end_matches('/');
        let suffix = if endpoint.ends_with("/v1/traces") { "" } else { "/v1/traces" };
        let server = Server::parse(&format!("{endpoint}{suffix}"));
        let server = server.map_err(|error| io::Error::other(format!("tracing.otlp: {error}")))?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, server, kept: None })
    }

    /// Sends an `ExportTraceServiceRequest`.
    pub(super) fn post(&mut self, message: Vec<u8>) -> Result<(), Unsent> {
        let (server, kept) = (&self.server, self.kept.take());
        let posting = async { tokio::time::timeout(TIMEOUT, post(server, kept, message.into())).await };
        self.kept = Some(self.runtime.block_on(posting).map_err(|_| Unsent::Timeout)??);
        Ok(())
    }
}

/// Returns the connection, for the next time.
async fn post(
    server: &Server,
    kept: Option<SendRequest<Full<Bytes>>>,
    message: Bytes,
) -> Result<SendRequest<Full<Bytes>>, Unsent> {
    if let Some(mut sender) = kept
        && sender.ready().await.is_ok()
    {
        match exchange(server, &mut sender, message.clone()).await {
            // It was closed under us. Should the back end have got the spans nevertheless, it knows them by their ids.
            Err(Unsent::Http(_)) => (),
            result => return result.map(|()| sender),
        }
    }
    let (mut sender, connection) = handshake(TokioIo::new(server.connect(None).await?)).await?;
    tokio::spawn(connection);
    exchange(server, &mut sender, message).await?;
    Ok(sender)
}

async fn exchange(server: &Server, sender: &mut SendRequest<Full<Bytes>>, message: Bytes) -> Result<(), Unsent> {
    let uri = server.uri();
    let request = Request::post(uri.path_and_query().map_or("/", |path| path.as_str()))
        .header(HOST, uri.authority().map_or("", |authority| authority.as_str()))
        .header(CONTENT_TYPE, "application/x-protobuf")
        .header(USER_AGENT, concat!("leno/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(message))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    // Read to its end, so that the connection can be used again; whatever fails here shows at the next request.
    let _ = Limited::new(response.into_body(), LARGEST_ANSWER).collect().await;
    if status.is_success() { Ok(()) } else { Err(Unsent::Status(status)) }
}
