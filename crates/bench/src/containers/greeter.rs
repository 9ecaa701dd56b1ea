//! `leno-bench greeter`: a small function as a process. It answers every request with a greeting.

use anyhow::Context;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use tokio::net::TcpListener;
use tokio::task::LocalSet;

/// The name of the subcommand.
pub(crate) const SUBCOMMAND: &str = "greeter";

/// Serves HTTP/1.1 on the port in `PORT` until it is terminated.
pub(crate) fn run() -> anyhow::Result<()> {
    let port: u16 = std::env::var("PORT").context("PORT")?.parse().context("PORT")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let serving =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(greet));
            // An error means that the client has closed the connection.
            tokio::task::spawn_local(async move { drop(serving.await) });
        }
    })
}

async fn greet(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let name = request.uri().path_and_query().map_or("", |path| path.as_str()).trim_matches('/');
    let name = if name.is_empty() { "stranger" } else { name };
    Ok(Response::new(Full::new(Bytes::from(format!("Hello, {name}!\n")))))
}
