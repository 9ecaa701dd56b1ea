//! A function for the tests. It answers each request with a JSON description of that request, and
//! the path selects further actions:
//!
//! - `/slow/<milliseconds>` answers after a pause
//! - `/later/<milliseconds>/<host>/<path…>` calls that host after a pause
//! - `/status/<code>` answers with that status
//! - `/fails/<times>/<code>` answers the first requests of a case (`x-case`) with that status
//! - `/seen/<case>` answers with the requests of a case
//! - `/call/<host>/<path…>` calls that host through the outbound sidecar and answers with the
//!   response
//! - `/send` makes the calls that its body lists (`Call`, as JSON), and answers with the status of
//!   each, or with the reason why a call got no response
//! - `/exchange` makes the call in its body, and answers with the whole response
//! - `/websocket` answers with 101, and then echoes the bytes that it receives
//! - `/stream` answers with an endless response, with a gRPC message each tenth of a second
//! - `/crash` ends the process
//! - `/deaf` closes the listener; open connections continue
//! - `/sick` has `/healthz` answer with 503 from now on
//!
//! With `CHAIN` in its environment it is a function of a chain. Then it also has
//!
//! - `/forward/<host>/<path…>`: delegates the call to that host, and passes the body without
//!   copying it; so does `/call`
//! - `/all/<host>,<host>…/<path…>`: calls all of them at once with the same body, and answers with
//!   their statuses
//! - `/same`: answers with the received body without copying it
//! - `/hold`: keeps the body for ten minutes
//! - `/hostile/<milliseconds>`: for this time, sends random messages to the node and on its
//!   channels
//!
//! It echoes all other requests: method, path, headers, length of the body, process ID,
//! environment. The environment variable `STATUS` sets the status of these responses.

mod chain;
mod hostile;
mod seen;

use base64::prelude::{BASE64_STANDARD, Engine};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Notified when the listener shall close.
static DEAF: Notify = Notify::const_new();
/// Whether `/healthz` answers with 503.
static SICK: AtomicBool = AtomicBool::new(false);

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    if std::env::var_os("CHAIN").is_some() {
        return chain::serve();
    }
    serve()
}

#[tokio::main]
async fn serve() -> Result<(), Error> {
    let port: u16 = std::env::var("PORT")?.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on {port}");
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            () = DEAF.notified() => break,
        };
        tokio::spawn(async move {
            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection_with_upgrades(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
    drop(listener);
    std::future::pending().await
}

async fn answer(request: Request<Incoming>) -> Result<Response<Either<Full<Bytes>, Channel<Bytes>>>, Error> {
    if request.uri().path() != "/stream" {
        let fields = seen::fields(&request);
        let mut response = reply(request).await?;
        response.headers_mut().extend(fields);
        return Ok(response.map(Either::Left));
    }
    let (mut sender, body) = Channel::new(1);
    tokio::spawn(async move {
        while sender.send_data(Bytes::from_static(b"\0\0\0\0\x05event")).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    Ok(Response::builder().header("content-type", "application/grpc").body(Either::Right(body))?)
}

async fn reply(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Error> {
    if let Some(case) = seen::asked(request.uri()) {
        return Ok(Response::new(Full::new(seen::of(case).to_string().into())));
    }
    let times = seen::remember(&request);
    let path = request.uri().path().to_owned();
    let mut segments = path.split('/').skip(1);
    match (segments.next(), segments.next()) {
        (Some("fails"), Some(most)) if times > 0 => {
            let status = if times > most.parse()? { 200 } else { segments.next().ok_or("which status?")?.parse()? };
            echo(request, status).await
        }
        (Some("slow"), Some(milliseconds)) => {
            println!("pausing");
            tokio::time::sleep(Duration::from_millis(milliseconds.parse()?)).await;
            echo(request, 200).await
        }
        (Some("status"), Some(code)) => {
            let code = code.parse()?;
            echo(request, code).await
        }
        (Some("call"), Some(host)) => {
            let rest: Vec<&str> = segments.collect();
            let answer = call(&request, host, &rest.join("/")).await?;
            Ok(Response::builder().status(answer.status()).body(Full::new(answer.into_body()))?)
        }
        (Some("send"), None) => {
            let calls = request.into_body().collect().await?.to_bytes();
            let mut answers: Vec<Value> = Vec::new();
            for call in serde_json::from_slice::<Vec<Call>>(&calls)? {
                let sent = send(&call).await;
                answers
                    .push(sent.map_or_else(|error| error.to_string().into(), |answer| answer.status().as_u16().into()));
            }
            Ok(Response::new(Full::new(Value::from(answers).to_string().into())))
        }
        (Some("exchange"), None) => {
            let call: Call = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
            let answer = send(&call).await?;
            let text = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let headers: Vec<_> = answer.headers().iter().map(|(name, value)| (name.as_str(), text(value))).collect();
            let all = json!({"status": answer.status().as_u16(), "headers": headers, "body": answer.body().as_ref()});
            Ok(Response::new(Full::new(all.to_string().into())))
        }
        (Some("later"), Some(milliseconds)) => {
            println!("pausing");
            tokio::time::sleep(Duration::from_millis(milliseconds.parse()?)).await;
            let host = segments.next().ok_or("whom to call?")?;
            let rest: Vec<&str> = segments.collect();
            let answer = call(&request, host, &rest.join("/")).await?;
            Ok(Response::builder().status(answer.status()).body(Full::new(answer.into_body()))?)
        }
        (Some("websocket"), None) => {
            let upgrade = hyper::upgrade::on(request);
            tokio::spawn(async move {
                let upgraded = upgrade.await?;
                let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
                tokio::io::copy(&mut reader, &mut writer).await?;
                writer.shutdown().await?;
                Ok::<_, Error>(())
            });
            let response =
                Response::builder().status(101).header("connection", "upgrade").header("upgrade", "websocket");
            Ok(response.body(Full::default())?)
        }
        (Some("crash"), _) => std::process::exit(3),
        (Some("deaf"), _) => {
            DEAF.notify_one();
            echo(request, 200).await
        }
        (Some("sick"), _) => {
            SICK.store(true, Ordering::Relaxed);
            echo(request, 200).await
        }
        (Some("healthz"), _) if SICK.load(Ordering::Relaxed) => echo(request, 503).await,
        _ => {
            let status = std::env::var("STATUS").map_or(Ok(200), |status| status.parse())?;
            echo(request, status).await
        }
    }
}

async fn echo(request: Request<Incoming>, status: u16) -> Result<Response<Full<Bytes>>, Error> {
    let mut headers = BTreeMap::<String, Vec<String>>::new();
    for (name, value) in request.headers() {
        headers.entry(name.to_string()).or_default().push(String::from_utf8_lossy(value.as_bytes()).into_owned());
    }
    let method = request.method().to_string();
    let host = seen::host(&request).map(str::to_owned);
    let target = request.uri().path_and_query().map(ToString::to_string);
    let length = request.into_body().collect().await?.to_bytes().len();
    let environment: BTreeMap<String, String> = std::env::vars().collect();
    let body = json!({
        "method": method, "path": target, "host": host, "headers": headers, "length": length,
        "pid": std::process::id(), "environment": environment,
    });
    Ok(Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_string())))?)
}

/// One call through the outbound sidecar, with the method of the incoming request and none of its
/// headers.
async fn call(request: &Request<Incoming>, host: &str, path: &str) -> Result<Response<Bytes>, Error> {
    send(&Call {
        method: request.method().to_string(),
        host: host.to_owned(),
        path: format!("/{path}"),
        headers: Vec::new(),
        http2: false,
        connect: None,
        bind: None,
        keep: false,
    })
    .await
}

/// A call to make.
#[derive(Deserialize)]
struct Call {
    method: String,
    /// The host to call, with a port unless it is 80.
    host: String,
    /// Path and query, sent unchanged.
    path: String,
    headers: Vec<(String, String)>,
    http2: bool,
    /// For an instance in a jail: the address to connect to, if it is not the host.
    connect: Option<String>,
    /// The source address, if it is not the kernel's choice.
    bind: Option<std::net::Ipv4Addr>,
    /// Whether the connection stays open, over HTTP/2.
    #[serde(default)]
    keep: bool,
}

/// Connections that stay open.
static KEPT: Mutex<Vec<SendRequest<Full<Bytes>>>> = Mutex::new(Vec::new());

/// Calls as ordinary HTTP clients do: through the proxy in the environment or, in a jail, by name.
/// Trailers become header fields of the response.
async fn send(call: &Call) -> Result<Response<Bytes>, Error> {
    let Call { method, host, path, headers, http2, connect, bind, keep } = call;
    let mut request = Request::builder().method(method.as_str());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let (stream, uri) = match std::env::var("HTTP_PROXY") {
        Ok(proxy) => {
            let proxy: hyper::Uri = proxy.parse()?;
            let authority = proxy.authority().ok_or("HTTP_PROXY has no authority")?.as_str();
            let (credential, address) = authority.rsplit_once('@').ok_or("HTTP_PROXY has no credential")?;
            let basic = format!("Basic {}", BASE64_STANDARD.encode(credential));
            request = request.header("proxy-authorization", basic);
            (open(*bind, address).await?, format!("http://{host}{path}"))
        }
        Err(_) => {
            let (name, port) = host.split_once(':').unwrap_or((host, "80"));
            let stream = open(*bind, (connect.as_deref().unwrap_or(name), port.parse::<u16>()?)).await?;
            (stream, if *http2 { format!("http://{host}{path}") } else { path.clone() })
        }
    };
    let request = request.uri(uri);
    let response = if *http2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        if *keep {
            KEPT.lock().map_err(|_| "another call panicked")?.push(sender.clone());
        }
        sender.send_request(request.body(Full::new(Bytes::new()))?).await?
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        sender.send_request(request.header("host", host).body(Full::new(Bytes::new()))?).await?
    };
    let (mut head, body) = response.into_parts();
    let body = body.collect().await?;
    head.headers.extend(body.trailers().cloned().unwrap_or_default());
    Ok(Response::from_parts(head, body.to_bytes()))
}

async fn open(bind: Option<std::net::Ipv4Addr>, to: impl tokio::net::ToSocketAddrs) -> Result<TcpStream, Error> {
    let Some(bind) = bind else { return Ok(TcpStream::connect(to).await?) };
    let address = tokio::net::lookup_host(to).await?.next().ok_or("nobody has this name")?;
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind((bind, 0).into())?;
    Ok(socket.connect(address).await?)
}
