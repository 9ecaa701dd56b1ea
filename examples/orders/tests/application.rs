//! The three programs together, with a proxy in place of the mesh that only forwards: it shows that
//! they call each other as the mesh expects.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// The requests that the stand-in has seen: user, version, method, address.
type RequestLog = Arc<Mutex<Vec<(String, Version, Method, String)>>>;

struct Application {
    children: BTreeMap<&'static str, Child>,
    frontend: SocketAddr,
    seen: RequestLog,
}

impl Drop for Application {
    fn drop(&mut self) {
        for child in self.children.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn start() -> Application {
    let programs = [
        ("frontend-api", env!("CARGO_BIN_EXE_frontend-api")),
        ("order-service", env!("CARGO_BIN_EXE_order-service")),
        ("inventory-service", env!("CARGO_BIN_EXE_inventory-service")),
    ];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let mut addresses = BTreeMap::new();
    let mut children = BTreeMap::new();
    for (name, program) in programs {
        let (address, child) = start_program(name, program, proxy).await;
        addresses.insert(name, address);
        children.insert(name, child);
    }
    let seen = RequestLog::default();
    tokio::spawn(carry(listener, addresses.clone(), Arc::clone(&seen)));
    Application { children, frontend: addresses["frontend-api"], seen }
}

/// Another process may take a port between its choice and its use. Then the program reports that
/// and ends, and this function tries another port.
async fn start_program(name: &str, program: &str, proxy: SocketAddr) -> (SocketAddr, Child) {
    for _ in 0..10 {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut child = Command::new(program)
            .env("PORT", address.port().to_string())
            .env("HTTP_PROXY", format!("http://{name}:secret@{proxy}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while child.try_wait().unwrap().is_none() {
            if TcpStream::connect(address).await.is_ok() {
                return (address, child);
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    panic!("{name} does not start");
}

async fn carry(listener: TcpListener, addresses: BTreeMap<&'static str, SocketAddr>, seen: RequestLog) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (addresses, seen) = (addresses.clone(), Arc::clone(&seen));
        let service = service_fn(move |request| {
            let (addresses, seen) = (addresses.clone(), Arc::clone(&seen));
            async move { Ok::<_, hyper::Error>(forward(request, &addresses, &seen).await) }
        });
        tokio::spawn(async move {
            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn forward(
    mut request: Request<Incoming>,
    addresses: &BTreeMap<&'static str, SocketAddr>,
    seen: &RequestLog,
) -> Response<Body> {
    let credentials = request.headers_mut().remove("proxy-authorization").expect("credentials");
    let credentials = BASE64_STANDARD.decode(credentials.to_str().unwrap().strip_prefix("Basic ").unwrap()).unwrap();
    let user = String::from_utf8(credentials).unwrap().strip_suffix(":secret").unwrap().to_owned();
    let uri = request.uri().to_string();
    seen.lock().unwrap().push((user, request.version(), request.method().clone(), uri));

    let stream = TcpStream::connect(addresses[request.uri().host().expect("an absolute address")]).await.unwrap();
    if request.version() == Version::HTTP_2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap().map(BodyExt::boxed_unsync)
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        *request.uri_mut() = request.uri().path().parse().unwrap();
        sender.send_request(request).await.unwrap().map(BodyExt::boxed_unsync)
    }
}

impl Application {
    async fn ask(&self, method: Method, path: &str, body: impl Into<Bytes>) -> (StatusCode, Value) {
        let stream = TcpStream::connect(self.frontend).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request =
            Request::builder().method(method).uri(path).header("host", "shop.example").header("x-user", "ann");
        let response = sender.send_request(request.body(Full::new(body.into())).unwrap()).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn order(&self, id: &str, item: &str, quantity: u32) -> StatusCode {
        self.ask(Method::POST, "/orders", json!({"id": id, "item": item, "quantity": quantity}).to_string()).await.0
    }
}

#[tokio::test]
async fn orders_go_through_all_three() {
    let application = start().await;
    assert_eq!(application.order("o-1", "lamp", 2).await, StatusCode::CREATED);
    assert_eq!(application.order("o-1", "lamp", 2).await, StatusCode::OK, "the same order is not made twice");
    assert_eq!(application.order("o-1", "lamp", 3).await, StatusCode::CONFLICT);
    assert_eq!(application.order("o-2", "table", 4).await, StatusCode::CONFLICT, "not enough of them");
    assert_eq!(application.order("o-3", "unicorn", 1).await, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(application.order("o-4", "lamp", 0).await, StatusCode::BAD_REQUEST);
    assert_eq!(application.ask(Method::POST, "/orders", "nonsense").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(application.ask(Method::POST, "/orders", vec![b' '; 70_000]).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(application.ask(Method::GET, "/nowhere", "").await.0, StatusCode::NOT_FOUND);

    let seen = application.seen.lock().unwrap().clone();
    let from = |user: &str| seen.iter().find(|(other, ..)| other == user).cloned().unwrap();
    let (_, version, method, uri) = from("frontend-api");
    assert_eq!((version, method, uri.as_str()), (Version::HTTP_11, Method::POST, "http://order-service/orders"));
    let (_, version, _, uri) = from("order-service");
    assert_eq!(
        (version, uri.as_str()),
        (Version::HTTP_2, "http://inventory-service/inventory.v1.Inventory/CheckStock")
    );
}

#[tokio::test]
async fn failures_are_as_announced() {
    let application = start().await;
    let flaky: Vec<u16> = vec![
        application.order("flaky-2-a", "lamp", 1).await.as_u16(),
        application.order("flaky-2-a", "lamp", 1).await.as_u16(),
        application.order("flaky-2-a", "lamp", 1).await.as_u16(),
    ];
    assert_eq!(flaky, [503, 503, 201]);
    assert_eq!(application.order("broken-1", "lamp", 1).await, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn the_caller_is_shown_what_came_with_the_request() {
    let application = start().await;
    let (status, body) = application.ask(Method::GET, "/whoami", "").await;
    assert_eq!((status, &body["user"]), (StatusCode::OK, &json!("ann")));
    assert_eq!(body["headers"]["host"], "shop.example");
}

#[tokio::test]
async fn all_end_when_told_to() {
    let mut application = start().await;
    for (name, child) in &mut application.children {
        let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        assert!(child.wait().unwrap().success(), "{name}");
    }
}

#[test]
fn the_documents_are_in_order() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("mesh");
    let snapshot = leno_config::load(&folder).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let id = "orders/order-service".parse().unwrap();
    let slice = snapshot.function_config(&id).expect("order-service has a slice");
    let callees: Vec<String> = slice.callees.iter().map(|callee| callee.id.to_string()).collect();
    assert_eq!(callees, ["orders/inventory-service"]);
}
