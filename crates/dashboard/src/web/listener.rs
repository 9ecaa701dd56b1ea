//! A listener for browsers of this machine.

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Most connections. Further ones wait in the kernel's queue.
const CONNECTIONS: usize = 128;
/// Timeout of a request's head, also of the first one.
const HEAD: Duration = Duration::from_secs(60);
/// The kernel ends a connection whose client reads nothing for this time.
const UNREAD_MS: u32 = 30_000;

/// Serves HTTP/1.1 until the runtime ends.
pub async fn serve(router: Router, listener: TcpListener) {
    let capacity = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = capacity.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the page's listener cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "an event may wait until the browser acknowledges the one before");
        }
        if let Err(error) = set_tcp_user_timeout(&stream, UNREAD_MS) {
            tracing::debug!(%error, "a client that reads nothing may keep its connection");
        }
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD);
            // A disconnect is no event.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
