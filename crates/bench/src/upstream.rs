//! `leno-bench upstream`: a service that responds as fast as it can, so that the proxy before it is
//! measured.

use anyhow::Context;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 13\r\n\r\nHello, world!";
const INTERIM: &[u8] = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n";
/// More than any request head here.
const BUFFER: usize = 64 * 1024;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Where to listen for HTTP/2 by prior knowledge.
    #[arg(long, value_name = "ADDRESS")]
    http2: Option<SocketAddr>,
    /// Interim responses (103) before each answer over HTTP/1.1.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    interim: usize,
}

/// Serves HTTP/1.1, and HTTP/2 at a second address, until it is killed.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(arguments.listen).await.context("the upstream cannot listen")?;
        if let Some(address) = arguments.http2 {
            let listener = TcpListener::bind(address).await.context("the upstream cannot listen for HTTP/2")?;
            tokio::spawn(serve_http2(listener));
        }
        println!("ready");
        loop {
            let (stream, _) = listener.accept().await?;
            // A client that goes away is no event.
            let interim = arguments.interim;
            tokio::spawn(async move { drop(serve(stream, interim).await) });
        }
    })
}

async fn serve_http2(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let service = service_fn(|_: Request<Incoming>| async {
            let response = Response::new(Full::new(Bytes::from_static(b"Hello, world!")));
            Ok::<_, Infallible>(response)
        });
        let connection = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move { drop(connection.await) });
    }
}

async fn serve(mut stream: TcpStream, interim: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; BUFFER];
    let mut filled = 0;
    loop {
        let (head, body) = loop {
            match parse(&buffer[..filled])? {
                Some(found) => break found,
                None if filled == buffer.len() => return Err(io::ErrorKind::InvalidData.into()),
                None => match stream.read(&mut buffer[filled..]).await? {
                    0 => return Ok(()),
                    count => filled += count,
                },
            }
        };
        match body {
            Body::Length(length) => {
                let end = head + length;
                if end <= filled {
                    buffer.copy_within(end..filled, 0);
                    filled -= end;
                } else {
                    let mut missing = end - filled;
                    while missing > 0 {
                        let part = missing.min(buffer.len());
                        missing -= stream.read_exact(&mut buffer[..part]).await?;
                    }
                    filled = 0;
                }
            }
            Body::Chunked => {
                // No pipelined request follows, so the body ends where the received bytes end with
                // the last chunk.
                buffer.copy_within(head..filled, 0);
                filled -= head;
                while !buffer[..filled].ends_with(b"0\r\n\r\n") {
                    let keep = filled.min(5);
                    buffer.copy_within(filled - keep..filled, 0);
                    match stream.read(&mut buffer[keep..]).await? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        count => filled = keep + count,
                    }
                }
                filled = 0;
            }
        }
        for _ in 0..interim {
            stream.write_all(INTERIM).await?;
        }
        stream.write_all(RESPONSE).await?;
    }
}

enum Body {
    Length(usize),
    Chunked,
}

/// Length of a complete head, and what follows it.
fn parse(bytes: &[u8]) -> io::Result<Option<(usize, Body)>> {
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut request = httparse::Request::new(&mut headers);
    let status = request.parse(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let httparse::Status::Complete(head) = status else { return Ok(None) };
    let field = |name: &str| request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    if field("transfer-encoding").is_some() {
        return Ok(Some((head, Body::Chunked)));
    }
    let length = field("content-length").and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok());
    Ok(Some((head, Body::Length(length.unwrap_or(0)))))
}
