//! A function for the tests: answers every request with what it got, as JSON, and does what its path says.
//!
//! - `/slow/<milliseconds>` answers after a pause
//! - `/later/<milliseconds>/<host>/<path…>` calls that host after a pause
//! - `/status/<code>` answers with that status
//! - `/call/<host>/<path…>` calls that host through its outbound sidecar and answers with what came back
//! - `/crash` ends the process
//!
//! Everything else is echoed, with the status in the environment variable `STATUS` if there is one: method, path, headers, length of the body, process id, environment.

use base64::prelude::{BASE64_STANDARD, Engine};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let port: u16 = std::env::var("PORT")?.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on {port}");
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Error> {
    let path = request.uri().path().to_owned();
    let mut segments = path.split('/').skip(1);
    match (segments.next(), segments.next()) {
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
            let (status, body) = call(&request, host, &rest.join("/")).await?;
            Ok(Response::builder().status(status).body(Full::new(body))?)
        }
        (Some("later"), Some(milliseconds)) => {
            println!("pausing");
            tokio::time::sleep(Duration::from_millis(milliseconds.parse()?)).await;
            let host = segments.next().ok_or("whom to call?")?;
            let rest: Vec<&str> = segments.collect();
            let (status, body) = call(&request, host, &rest.join("/")).await?;
            Ok(Response::builder().status(status).body(Full::new(body))?)
        }
        (Some("crash"), _) => std::process::exit(3),
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
    let target = request.uri().path_and_query().map(ToString::to_string);
    let length = request.into_body().collect().await?.to_bytes().len();
    let environment: BTreeMap<String, String> = std::env::vars().collect();
    let body = json!({
        "method": method, "path": target, "headers": headers, "length": length,
        "pid": std::process::id(), "environment": environment,
    });
    Ok(Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_string())))?)
}

/// One call through the outbound sidecar, in the way in which every HTTP client calls: through the proxy in its environment or, in a room, by name.
/// No header of the incoming request is passed on.
async fn call(request: &Request<Incoming>, host: &str, path: &str) -> Result<(u16, Bytes), Error> {
    let mut outgoing = Request::builder().method(request.method()).header("host", host);
    let stream = match std::env::var("HTTP_PROXY") {
        Ok(proxy) => {
            let proxy: hyper::Uri = proxy.parse()?;
            let authority = proxy.authority().ok_or("HTTP_PROXY has no authority")?.as_str();
            let (credential, address) = authority.rsplit_once('@').ok_or("HTTP_PROXY has no credential")?;
            let basic = format!("Basic {}", BASE64_STANDARD.encode(credential));
            outgoing = outgoing.uri(format!("http://{host}/{path}")).header("proxy-authorization", basic);
            TcpStream::connect(address).await?
        }
        Err(_) => {
            outgoing = outgoing.uri(format!("/{path}"));
            TcpStream::connect((host, 80)).await?
        }
    };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let outgoing = outgoing.body(Full::new(Bytes::new()))?;
    let response = sender.send_request(outgoing).await?;
    let status = response.status().as_u16();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}
