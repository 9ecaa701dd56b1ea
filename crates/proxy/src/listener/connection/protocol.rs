//! Detects the HTTP version of a connection, and serves it.

use super::Connection;
use super::drive::Drive;
use super::open::OpenConnection;
use crate::listener::http2::Http2;
use crate::listener::stream::{ClientStream, DetectedProtocol};
use crate::listener::{http2, refusal};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use leno_http::failure::Failure;
use leno_http::head::HeadError;
use leno_policy::spec::Protocol;
use leno_telemetry::flows::Refusal;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use tokio::io::{AsyncRead, AsyncWrite};

impl Connection {
    /// Serves the HTTP version that ALPN agreed on, or else the version that the first bytes show.
    pub(super) async fn serve_http<T>(
        self,
        stream: T,
        agreed: Option<DetectedProtocol>,
        open: &OpenConnection,
    ) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (stream, detected) = match agreed {
            Some(detected) => (ClientStream::new(stream, self.activity.clone()), detected),
            None => {
                let limit = self.worker.snapshot().mesh.limits.idle_timeout;
                let sniff = tokio::time::timeout(limit, ClientStream::sniff(stream, self.activity.clone()));
                let Some(sniffed) = open.unless_draining(sniff).await else { return Ok(()) };
                sniffed??
            }
        };
        self.serve_detected(stream, detected, open).await
    }

    /// Serves this HTTP version.
    pub(super) async fn serve_detected<T>(
        self,
        stream: ClientStream<T>,
        detected: DetectedProtocol,
        open: &OpenConnection,
    ) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match detected {
            DetectedProtocol::Http1 => {
                let connection = Rc::new(self);
                let served = serve_http1(connection.clone(), stream, open).await;
                if served.as_ref().is_err_and(is_no_http) {
                    connection.refuse("what came is no HTTP");
                }
                served
            }
            DetectedProtocol::Http2 => serve_http2(Rc::new(self), stream, open).await,
            DetectedProtocol::Nothing => {
                self.refuse("nothing came");
                Ok(())
            }
            DetectedProtocol::Tls => {
                self.refuse("what came is TLS; inside the mesh, use http://");
                Box::pin(self.refuse_head(stream, HeadError::Tls.into(), &[])).await;
                // A jailed instance could fill the log. Other clients share the log rate of
                // connections without a namespace.
                if !self.one_caller && self.worker.may_log_of_none() {
                    let address = self.peer.address;
                    tracing::warn!(%address, direction = ?self.direction, "TLS where plain HTTP is expected; inside the mesh, use http://");
                }
                Ok(())
            }
        }
    }

    /// Reports an intercepted connection that carried no request. Other connections are not
    /// reported.
    fn refuse(&self, reason: &'static str) {
        let caller = self.caller.borrow();
        if let (true, Some((_, caller)), Some(address)) = (self.one_caller, &*caller, self.accepted_at) {
            self.worker.node.telemetry.connection_flows.push(Refusal {
                kind: "connection",
                instance: (&*caller.instance).into(),
                during: Some(caller.handled()),
                rule: Box::default(),
                what: "connect".into(),
                host: address.to_string().into(),
                reason,
            });
        }
    }
}

fn is_no_http(error: &io::Error) -> bool {
    error.get_ref().and_then(|error| error.downcast_ref::<hyper::Error>()).is_some_and(hyper::Error::is_parse)
}

async fn serve_http1<T>(connection: Rc<Connection>, stream: ClientStream<T>, open: &OpenConnection) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = connection.worker.snapshot().mesh.limits;
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // `Activity` times request heads. hyper's own timer would also count the time between
        // requests.
        .header_read_timeout(None)
        .max_header_size(limits.head_bytes as usize)
        .max_buf_size((limits.head_bytes as usize).max(MIN_BUFFER))
        .half_close(false);
    // No `pipeline_flush`: with it, hyper buffers responses without bound for clients that do not
    // read.
    if limits.headers != HYPER_HEADERS {
        builder.max_headers(limits.headers as usize);
    }
    let handler = connection.clone();
    let service = service_fn(move |request| handler.clone().handle_http1(request));
    let mut serving = builder.serve_connection(TokioIo::new(stream.strict()), service).with_upgrades();
    let served = Drive::new(Pin::new(&mut serving), &connection, open, true).await;
    let Err(error) = &served else { return served };
    let is_slow = error.kind() == io::ErrorKind::TimedOut && connection.activity.has_part_of_head();
    if (is_slow || is_no_http(error))
        && let Some(http1::Parts { io, read_buf, .. }) = serving.into_parts()
    {
        let stream = io.into_inner();
        let failure = match is_slow {
            true => Failure::SlowHead(limits.head_timeout),
            false => refusal::cause(&stream, &read_buf, limits.headers as usize).into(),
        };
        // Boxed because it is rare. Otherwise it would enlarge the future of each connection.
        Box::pin(connection.refuse_head(stream, failure, &read_buf)).await;
    }
    served
}

/// hyper's read size in bytes. hyper does not accept a smaller buffer.
const MIN_BUFFER: usize = 16 * 1024;
/// hyper's default limit on header fields. With it, the parser needs no allocation for headers.
const HYPER_HEADERS: u32 = 100;

async fn serve_http2<T>(connection: Rc<Connection>, stream: ClientStream<T>, open: &OpenConnection) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = connection.worker.snapshot().mesh.limits;
    let serving = pin!(Http2::new(connection.clone(), stream, &limits));
    let served = Drive::new(serving, &connection, open, false).await;
    let error = served.as_ref().err().and_then(|error| error.get_ref()?.downcast_ref());
    if let Some(failure) = error.and_then(|error| http2::broken(error, connection.activity.held() > 0)) {
        let request_id = connection.worker.request_id();
        drop(connection.record_unread(Protocol::Http2, &failure, request_id.to_str().unwrap_or_default()));
    }
    served
}
