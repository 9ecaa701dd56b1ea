//! Clients that send requests without a pause.

use anyhow::{Result, anyhow, bail};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_testkit::TIMEOUT;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The least number of requests of each client, and of queries of the control plane: on a busy
/// machine an upgrade may take less time than these.
pub(super) const ENOUGH: usize = 20;

/// Clients that send requests without a pause. None of them sends a request twice.
pub(super) struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<(&'static str, JoinHandle<Result<usize>>)>,
}

type Client = fn(SocketAddr, &AtomicBool) -> Result<usize>;

impl Clients {
    pub(super) fn start(gateway: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let kinds: [(&str, Client); 5] = [
            ("new connections", |gateway, stop| new_connections(gateway, stop, "/")),
            ("calls", |gateway, stop| new_connections(gateway, stop, "/call/back/ok")),
            ("kept HTTP/1.1", kept_http1),
            ("kept HTTP/2", |gateway, stop| kept_http2(gateway, stop, "/")),
            ("calls over HTTP/2", |gateway, stop| kept_http2(gateway, stop, "/call/back/ok")),
        ];
        let threads = kinds.map(|(name, client)| {
            let stop = stop.clone();
            (name, std::thread::spawn(move || client(gateway, &stop)))
        });
        Self { stop, threads: threads.into() }
    }

    /// Expects that all requests got responses, and that there were some of each kind.
    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.threads.into_iter().map(|(name, thread)| (name, thread.join().unwrap()));
        let ended: Vec<_> = ended.collect();
        assert!(ended.iter().all(|(_, outcome)| outcome.as_ref().is_ok_and(|count| *count >= ENOUGH)), "{ended:?}");
    }
}

fn head(path: &str, connection: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: test.example\r\nconnection: {connection}\r\n\r\n")
}

pub(super) fn connect(gateway: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(gateway).map_err(|error| anyhow!("connect: {error}"))?;
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    Ok(stream)
}

fn new_connections(gateway: SocketAddr, stop: &AtomicBool, path: &str) -> Result<usize> {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) || count < ENOUGH {
        let mut stream = connect(gateway)?;
        stream.write_all(head(path, "close").as_bytes()).map_err(|error| anyhow!("after {count}: {error}"))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|error| anyhow!("after {count}: {error}"))?;
        if !answer.starts_with("HTTP/1.1 200") {
            bail!("after {count}: {answer:?}");
        }
        count += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(count)
}

/// Uses one connection until a response says that it was the last.
fn kept_http1(gateway: SocketAddr, stop: &AtomicBool) -> Result<usize> {
    let (mut count, mut kept) = (0, None);
    while !stop.load(Ordering::Relaxed) || count < ENOUGH {
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => BufReader::new(connect(gateway)?),
        };
        let failed = |error: std::io::Error| anyhow!("after {count}: {error}");
        stream.get_mut().write_all(head("/", "keep-alive").as_bytes()).map_err(failed)?;
        let (mut length, mut last, mut line) = (0, false, String::new());
        stream.read_line(&mut line).map_err(failed)?;
        if !line.starts_with("HTTP/1.1 200") {
            bail!("after {count}: {line:?}");
        }
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).map_err(failed)?;
            let field = line.to_ascii_lowercase();
            last |= field.starts_with("connection: close");
            if let Some(value) = field.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        assert!(length > 0);
        stream.read_exact(&mut vec![0; length]).map_err(failed)?;
        count += 1;
        kept = (!last).then_some(stream);
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(count)
}

/// Uses one connection as long as it takes requests.
fn kept_http2(gateway: SocketAddr, stop: &AtomicBool, path: &'static str) -> Result<usize> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut count = 0;
        let mut kept: Option<hyper::client::conn::http2::SendRequest<Empty<Bytes>>> = None;
        while !stop.load(Ordering::Relaxed) || count < ENOUGH {
            let failed = |error: &dyn std::fmt::Display| anyhow!("after {count}: {error}");
            let mut usable = kept.take();
            if let Some(sender) = &mut usable
                && sender.ready().await.is_err()
            {
                usable = None;
            }
            let mut sender = match usable {
                Some(sender) => sender,
                None => {
                    let stream = tokio::net::TcpStream::connect(gateway).await.map_err(|error| failed(&error))?;
                    let executor = TokioExecutor::new();
                    let made = hyper::client::conn::http2::handshake(executor, TokioIo::new(stream)).await;
                    let (sender, connection) = made.map_err(|error| failed(&error))?;
                    tokio::spawn(connection);
                    sender
                }
            };
            let uri = format!("http://test.example{path}");
            let request = hyper::Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
            let response = match sender.try_send_request(request).await {
                Ok(response) => response,
                Err(mut error) => match error.take_message() {
                    // The connection ended before the client sent any part of the request.
                    Some(_) => continue,
                    None => {
                        let error = format!("{:?}", error.into_error());
                        // The request was on its way when the node sent GOAWAY, and the node has
                        // not processed it: clients send it again (RFC 9113, 6.8).
                        match error.contains("GoAway") && error.contains("NO_ERROR") && error.contains("Remote") {
                            true => continue,
                            false => return Err(failed(&error)),
                        }
                    }
                },
            };
            let status = response.status();
            let body = response.into_body().collect().await.map_err(|error| failed(&error))?.to_bytes();
            if status != 200 {
                return Err(failed(&format!("{status} {body:?}")));
            }
            count += 1;
            kept = Some(sender);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(count)
    })
}
