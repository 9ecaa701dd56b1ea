//! A function for the tests of connections that carry no HTTP. At each port in `ECHO_PORTS` it
//! greets each client with its name, and then echoes the received bytes. Requests over HTTP make it
//! connect to other functions:
//!
//! - `/say/<host:port>/<text>` opens a connection, sends the text and answers with greeting and echo
//! - `/hold/<host:port>` opens a connection and keeps it, and `/again/<text>` sends a text on it
//! - `/bulk/<host:port>/<bytes>` sends so many bytes, reads them back, and compares
//! - `/half/<host:port>/<text>` closes its sending direction before it reads
//! - `/request/<host:port>/<authority>` sends an HTTP request for that authority, and answers with
//!   the first line of the response
//! - `/keep/<host:port>` opens one that answers `PING`, and keeps it until `/release`
//! - `/line/<host:port>/<words+with+plus>` sends a line, and answers with the line that came back
//! - `/hello/<host:port>/<name>` begins TLS with a server of that name, at a port of `ECHO_PORTS`

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The connection of `/hold`.
static HELD: Mutex<Option<BufReader<TcpStream>>> = Mutex::const_new(None);

/// The connections of `/keep`.
static KEPT: Mutex<Vec<TcpStream>> = Mutex::const_new(Vec::new());

#[tokio::main]
async fn main() -> Result<(), Error> {
    let name = std::env::var("LENO_FUNCTION").unwrap_or_default();
    for port in std::env::var("ECHO_PORTS").unwrap_or_default().split_whitespace() {
        let listener = TcpListener::bind(("127.0.0.1", port.parse()?)).await?;
        tokio::spawn(echo(listener, format!("I am {name}\n")));
    }
    let listener = TcpListener::bind(("127.0.0.1", std::env::var("PORT")?.parse()?)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}

async fn echo(listener: TcpListener, greeting: String) -> Result<(), Error> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        let greeting = greeting.clone();
        tokio::spawn(async move {
            stream.write_all(greeting.as_bytes()).await?;
            let (mut from, mut to) = stream.split();
            tokio::io::copy(&mut from, &mut to).await?;
            to.shutdown().await
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Error> {
    let path = request.uri().path().to_owned();
    let (status, text) = match act(&path).await {
        Ok(text) => (200, text),
        Err(error) => (502, error.to_string()),
    };
    Ok(Response::builder().status(status).body(Full::new(Bytes::from(text)))?)
}

async fn act(path: &str) -> Result<String, Error> {
    let arguments: Vec<&str> = path.split('/').skip(1).collect();
    match arguments[..] {
        ["say", to, text] => {
            let (mut stream, greeting) = open(to).await?;
            Ok(greeting + &exchange(&mut stream, text).await?)
        }
        ["hold", to] => {
            let (stream, greeting) = open(to).await?;
            *HELD.lock().await = Some(stream);
            Ok(greeting)
        }
        ["again", text] => {
            let mut held = HELD.lock().await;
            exchange(held.as_mut().ok_or("nothing is held")?, text).await
        }
        ["bulk", to, bytes] => {
            let (mut stream, _) = open(to).await?;
            let sent: Vec<u8> = (0..bytes.parse::<usize>()?).map(|number| (number % 251) as u8).collect();
            let mut received = vec![0; sent.len()];
            let (mut from, mut to) = tokio::io::split(&mut stream);
            // It writes as much as it can before it reads, so that queues fill.
            let writing = async {
                to.write_all(&sent).await?;
                to.flush().await
            };
            let reading = async {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                from.read_exact(&mut received).await
            };
            tokio::try_join!(writing, reading)?;
            Ok(if received == sent { "the same came back" } else { "something else came back" }.to_owned())
        }
        ["half", to, text] => {
            let (mut stream, greeting) = open(to).await?;
            stream.write_all(text.as_bytes()).await?;
            stream.shutdown().await?;
            let mut rest = String::new();
            stream.read_to_string(&mut rest).await?;
            Ok(greeting + &rest)
        }
        ["request", to, authority] => {
            let mut stream = BufReader::new(TcpStream::connect(to).await?);
            let head = format!("GET / HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            Ok(line)
        }
        ["keep", to] => {
            let mut stream = TcpStream::connect(to).await?;
            // The connection is established once the peer has answered.
            stream.write_all(b"PING\r\n").await?;
            if stream.read(&mut [0; 16]).await? == 0 {
                return Err("it was closed".into());
            }
            KEPT.lock().await.push(stream);
            Ok("kept".to_owned())
        }
        ["release"] => {
            KEPT.lock().await.clear();
            Ok("released".to_owned())
        }
        ["line", to, command] => {
            let mut stream = BufReader::new(TcpStream::connect(to).await?);
            stream.write_all(format!("{}\r\n", command.replace('+', " ")).as_bytes()).await?;
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            Ok(line)
        }
        ["hello", to, name] => {
            let config = ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
            let mut client = ClientConnection::new(Arc::new(config), name.to_owned().try_into()?)?;
            let mut hello = Vec::new();
            client.write_tls(&mut hello)?;
            let mut stream = BufReader::new(TcpStream::connect(to).await?);
            stream.write_all(&hello).await?;
            let mut greeting = String::new();
            stream.read_line(&mut greeting).await?;
            let mut echoed = vec![0; hello.len()];
            stream.read_exact(&mut echoed).await?;
            Ok(format!("{greeting}{}", if echoed == hello { "the hello arrived" } else { "something else arrived" }))
        }
        _ => Ok(String::new()),
    }
}

async fn open(to: &str) -> Result<(BufReader<TcpStream>, String), Error> {
    let mut stream = BufReader::new(TcpStream::connect(to).await?);
    let mut greeting = String::new();
    if stream.read_line(&mut greeting).await? == 0 {
        return Err("it was closed without a greeting".into());
    }
    Ok((stream, greeting))
}

async fn exchange(stream: &mut BufReader<TcpStream>, text: &str) -> Result<String, Error> {
    stream.write_all(text.as_bytes()).await?;
    let mut echoed = vec![0; text.len()];
    stream.read_exact(&mut echoed).await?;
    Ok(String::from_utf8(echoed)?)
}
