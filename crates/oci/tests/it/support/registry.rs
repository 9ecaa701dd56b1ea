//! Debian's docker-registry, and registries that misbehave.

use super::tool;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use leno_oci::{Registries, Registry};
use leno_testkit::free_port;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Debian's real registry, on a port of the loopback interface. It ends with its handle.
pub(crate) struct DockerRegistry {
    process: Child,
    pub(crate) host: String,
}

impl DockerRegistry {
    /// `more` is added to its configuration, which begins with `http:`.
    pub(crate) fn start(folder: &Path, more: &str) -> Self {
        let port = free_port();
        let host = format!("127.0.0.1:{port}");
        let storage = folder.join("registry");
        let config = folder.join("registry.yaml");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp:\n  addr: {host}\n{more}",
            storage.display()
        );
        std::fs::write(&config, text).unwrap();
        let log = std::fs::File::create(folder.join("registry.log")).unwrap();
        let mut process = tool("docker-registry")
            .arg("serve")
            .arg(&config)
            .env_remove("OTEL_TRACES_EXPORTER")
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(&host).is_err() {
            assert!(
                process.try_wait().unwrap().is_none(),
                "docker-registry ended: {}",
                std::fs::read_to_string(folder.join("registry.log")).unwrap()
            );
            assert!(Instant::now() < deadline, "docker-registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { process, host }
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Settings with these hosts as insecure.
pub(crate) fn insecure(hosts: &[&str]) -> Registries {
    let mut registries = super::registries();
    for host in hosts {
        registries.registries.insert((*host).to_owned(), Registry { insecure: true, ..Registry::default() });
    }
    registries
}

pub(crate) type Body = BoxBody<Bytes, io::Error>;

pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed()
}

/// A body that sends these bytes and breaks off, or (`stalls`) goes silent.
pub(crate) fn broken(bytes: impl Into<Bytes>, stalls: bool) -> Body {
    let start = futures_util::stream::once(std::future::ready(Ok(Frame::data(bytes.into()))));
    let end = futures_util::stream::once(async move {
        if stalls {
            std::future::pending::<()>().await;
        }
        // The preceding bytes have to be sent first.
        tokio::time::sleep(Duration::from_millis(50)).await;
        Err(io::Error::other("cut"))
    });
    BodyExt::boxed(StreamBody::new(futures_util::StreamExt::chain(start, end)).map_err(|error| error))
}

/// A registry that answers by a function of the test.
pub(crate) struct Fake {
    pub(crate) host: String,
    task: tokio::task::JoinHandle<()>,
}

impl Fake {
    pub(crate) async fn start(answer: impl Fn(Request<Incoming>) -> Response<Body> + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let answer = Arc::new(answer);
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let answer = answer.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| std::future::ready(Ok::<_, Infallible>(answer(request))));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { host, task }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}
