//! `leno-bench layer`: the serverless layer without a mesh. The same crate starts, lends and stops
//! the same instances as in `leno up`, behind a reverse proxy that does nothing but route by host
//! and keep connections: no TLS, no policies, no identities.
//!
//! With `--sidecar` the instances are sidecars ([`super::sidecar`]), which are spoken to by mutual
//! TLS.

use crate::load::{self, Tls};
use anyhow::{Context, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{HOST, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use leno_supervisor::{Function, FunctionSpec, Settings, Supervisor};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// As `leno up --workers 1` has for requests and for its supervisor together.
const THREADS: usize = 2;
/// Idle connections kept for each instance.
const MAX_IDLE: usize = 4;
/// For instances to end in.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Documents with functions; everything else in them is ignored.
    #[arg(long, value_name = "FILE")]
    documents: PathBuf,
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Speak TLS to instances, by `ca.pem`, `frontend.pem` and `frontend.key` of this folder, and
    /// call them by this name.
    #[arg(long, num_args = 2, value_names = ["FOLDER", "NAME"])]
    sidecar: Option<Vec<String>>,
}

/// Serves HTTP/1.1 until a signal or the end of standard input ends it, and all instances with it.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    runtime.block_on(serve(arguments))?;
    // Standard input may still be open.
    runtime.shutdown_background();
    Ok(())
}

async fn serve(arguments: &Arguments) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let snapshot = leno_config::load(&arguments.documents).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow!("{}", problems.join("; "))
    })?;
    // As a node of `leno up` does it.
    let supervisor = Supervisor::start(Settings { cgroups: true, ..Settings::default() }, ());
    let mut routes = HashMap::new();
    for config in snapshot.functions().filter_map(|id| snapshot.function_config(id)) {
        let target =
            Arc::new(Target { function: supervisor.apply(FunctionSpec::from(&config)), idle: Mutex::default() });
        for host in config.expose.iter().flat_map(|expose| &expose.hosts) {
            routes.insert(host.to_string(), target.clone());
        }
    }
    let tls = match arguments.sidecar.as_deref() {
        Some([folder, name]) => Some(load::configure(&tls(folder, name), b"http/1.1")?),
        _ => None,
    };
    let layer = Arc::new(Layer { routes, tls });
    let listener = TcpListener::bind(arguments.listen).await.context("the layer cannot listen")?;
    println!("ready");
    // The parent may be killed.
    let mut alone = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, layer) = (accepted?.0, layer.clone());
                stream.set_nodelay(true)?;
                let service = service_fn(move |request| layer.clone().answer(request));
                let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move { drop(connection.await) });
            }
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = &mut alone => break,
        }
    }
    supervisor.shutdown(SHUTDOWN_TIMEOUT).await;
    Ok(())
}

fn tls(folder: &str, name: &str) -> Tls {
    let file = |name: &str| PathBuf::from(folder).join(name);
    Tls { ca: file("ca.pem"), server_name: name.to_owned(), client: Some((file("frontend.pem"), file("frontend.key"))) }
}

struct Layer {
    routes: HashMap<String, Arc<Target>>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// The response if the request cannot be served.
struct Failure(StatusCode, String);

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(StatusCode::BAD_GATEWAY, format!("{:#}", error.into()))
    }
}

struct Target {
    function: Function,
    /// Idle connections, by the instance's address.
    idle: Mutex<HashMap<SocketAddr, Vec<Connection>>>,
}

type Connection = SendRequest<Full<Bytes>>;

impl Target {
    fn idle(&self) -> MutexGuard<'_, HashMap<SocketAddr, Vec<Connection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, address: SocketAddr) -> Option<Connection> {
        let mut idle = self.idle();
        let connections = idle.get_mut(&address)?;
        std::iter::from_fn(|| connections.pop()).find(Connection::is_ready)
    }

    fn keep(&self, address: SocketAddr, connection: Connection) {
        let mut idle = self.idle();
        let connections = idle.entry(address).or_default();
        if connections.len() < MAX_IDLE {
            connections.push(connection);
        }
    }
}

impl Layer {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let Some(target) = host.and_then(|host| self.routes.get(host)).cloned() else {
            return Ok(plain(StatusCode::NOT_FOUND, "no such function"));
        };
        let answer = self.forward(&target, request).await;
        Ok(answer.unwrap_or_else(|Failure(status, reason)| plain(status, &reason)))
    }

    /// Bodies here are a few bytes, so they are read whole.
    async fn forward(&self, target: &Target, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Failure> {
        let (head, body) = request.into_parts();
        let body =
            body.collect().await.map_err(|error| Failure(StatusCode::BAD_REQUEST, error.to_string()))?.to_bytes();
        // Given back when this returns.
        let lease = target.function.acquire(&[]).await;
        let lease = lease.map_err(|error| Failure(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
        let mut connection = match target.take(lease.address()) {
            Some(connection) => connection,
            None => self.connect(lease.address()).await?,
        };
        let request = Request::from_parts(head, Full::new(body));
        let answer = match connection.try_send_request(request).await {
            Ok(answer) => answer,
            Err(mut error) => {
                // A kept connection may have been closed meanwhile; then nothing of the request was
                // sent.
                let Some(request) = error.take_message() else { return Err(error.into_error().into()) };
                connection = self.connect(lease.address()).await?;
                connection.send_request(request).await?
            }
        };
        let (head, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        if connection.ready().await.is_ok() {
            target.keep(lease.address(), connection);
        }
        Ok(Response::from_parts(head, Full::new(body)))
    }

    async fn connect(&self, address: SocketAddr) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let Some((tls, name)) = &self.tls else { return handshake(stream).await };
        handshake(tls.connect(name.clone(), stream).await?).await
    }
}

async fn handshake<S>(stream: S) -> anyhow::Result<Connection>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", HeaderValue::from_static("text/plain"));
    response
}
