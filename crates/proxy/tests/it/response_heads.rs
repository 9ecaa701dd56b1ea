//! Heads of responses: those of real programs pass on every way, and a refusal of a larger one
//! names the exceeded limit.

use crate::mesh::{Builder, Mesh};
use crate::upstream::{self, Answer, Upstream, answer, connect_h2, empty};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use leno_model::{AppProtocol, UpstreamLimits};

/// Answers `/FIELDS/BYTES` with so many fields of so many bytes each.
async fn many(request: Request<Incoming>) -> Response<upstream::Body> {
    let mut parts = request.uri().path().split('/').skip(1).map(|part| part.parse::<usize>().unwrap());
    let (fields, bytes) = (parts.next().unwrap(), parts.next().unwrap());
    let mut response = Response::new(empty());
    for number in 0..fields {
        let value = format!("{number:03}={}", "v".repeat(bytes));
        response.headers_mut().append("set-cookie", value.parse().unwrap());
    }
    response
}

/// A single node, and a gateway in front of another node.
fn ways(upstream: &Upstream, protocol: AppProtocol, change: impl Fn(&mut UpstreamLimits)) -> Vec<(Mesh, Option<Mesh>)> {
    let web =
        || Builder::new().function("web", protocol, upstream.address).limits(|limits| change(&mut limits.upstream));
    let there = web().start();
    let gateway = web().remote("web").with(&there).start();
    gateway.knows("web", &[(&there, 1)]);
    vec![(web().start(), None), (gateway, Some(there))]
}

async fn both(protocol: AppProtocol) -> Upstream {
    match protocol {
        // hyper's HTTP/1.1 server writes as many fields as it is given.
        AppProtocol::Http1 => upstream::http1(many).await,
        _ => upstream::h2c(many).await,
    }
}

async fn get(mesh: &Mesh, path: &str) -> Answer {
    let request = Request::get(path).header("host", "web").body(empty()).unwrap();
    let stream = tokio::net::TcpStream::connect(mesh.gateway()).await.unwrap();
    // The usual client takes 100 fields.
    let mut builder = hyper::client::conn::http1::Builder::new();
    let (sender, connection) = builder.max_headers(2000).handshake(hyper_util::rt::TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    upstream::Http1(sender).send(request).await
}

fn cookies(answer: &Answer) -> usize {
    answer.headers.get_all("set-cookie").iter().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_programs_send_passes() {
    for protocol in [AppProtocol::Http1, AppProtocol::H2c] {
        let upstream = both(protocol).await;
        for (mesh, _there) in ways(&upstream, protocol, |_| ()) {
            for (fields, bytes) in [(100, 5), (250, 5), (17, 1000), (1, 40_000)] {
                let answer = get(&mesh, &format!("/{fields}/{bytes}")).await;
                assert_eq!((answer.status, cookies(&answer)), (200, fields), "{protocol:?} {fields} {bytes}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_can_be_set() {
    for protocol in [AppProtocol::Http1, AppProtocol::H2c] {
        let upstream = both(protocol).await;
        for (mesh, _there) in ways(&upstream, protocol, |limits| limits.headers = 1000) {
            let answer = get(&mesh, "/900/5").await;
            assert_eq!((answer.status, cookies(&answer)), (200, 900), "{protocol:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_a_limit_the_reason_names_it() {
    for protocol in [AppProtocol::Http1, AppProtocol::H2c] {
        let upstream = both(protocol).await;
        for (mesh, there) in ways(&upstream, protocol, |limits| (limits.headers, limits.head_bytes) = (20, 4096)) {
            for (path, limit) in [
                ("/30/5", "limits.headers"),
                ("/1/5000", "limits.headBytes"),
                ("/10/1000", "limits.headBytes"),
                ("/30/8000", "limits.headBytes"),
            ] {
                let answer = get(&mesh, path).await;
                assert_eq!(answer.status, 502, "{protocol:?} {path}");
                let id = answer.headers["x-request-id"].to_str().unwrap();
                for node in [Some(&mesh), there.as_ref()].into_iter().flatten() {
                    let told = node.told(id, 1).await.remove(0);
                    assert_eq!(told.response.flag.as_deref(), Some("UPE"), "{protocol:?} {path}");
                    let failure = told.response.failure.unwrap();
                    assert!(failure.contains(limit), "{protocol:?} {path}: {failure}");
                }
                assert_eq!(get(&mesh, "/1/5").await.status, 200, "others go on");
            }
        }
    }
}

/// A gRPC server that ends each call at once, with 17 KiB of details in the head, or in trailers
/// after a message.
async fn failing(request: Request<Incoming>) -> Response<upstream::Body> {
    let details = HeaderValue::from_str(&"d".repeat(17 * 1024)).unwrap();
    let status = [
        (HeaderName::from_static("grpc-status"), HeaderValue::from_static("9")),
        (HeaderName::from_static("grpc-status-details-bin"), details),
    ];
    let mut response = Response::new(empty());
    if request.uri().path().ends_with("Trailers") {
        let (sender, body) = upstream::channel();
        tokio::spawn(async move {
            let _ = sender.send(hyper::body::Frame::data("\0\0\0\0\0".into())).await;
            let _ = sender.send(hyper::body::Frame::trailers(HeaderMap::from_iter(status))).await;
        });
        *response.body_mut() = body;
    } else {
        response.headers_mut().extend(status);
    }
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn rich_errors_of_grpc_arrive() {
    let upstream = upstream::h2c(failing).await;
    for (mesh, _there) in ways(&upstream, AppProtocol::Grpc, |_| ()) {
        for method in ["Head", "Trailers"] {
            let request = Request::post(format!("http://web/a.B/{method}"))
                .header("content-type", "application/grpc")
                .body(empty())
                .unwrap();
            let mut client = client(&mesh).await;
            let answer = answer(client.send_request(request).await.unwrap()).await;
            let status = answer.trailers.as_ref().unwrap_or(&answer.headers);
            assert_eq!(status["grpc-status"], "9", "{method}");
            assert_eq!(status["grpc-status-details-bin"].len(), 17 * 1024);
        }
    }
}

/// A client that takes large heads.
async fn client(mesh: &Mesh) -> hyper::client::conn::http2::SendRequest<upstream::Body> {
    let stream = tokio::net::TcpStream::connect(mesh.gateway()).await.unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
    let (sender, connection) =
        builder.max_header_list_size(1 << 20).handshake(hyper_util::rt::TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_error_beyond_the_limit_is_not_called_unavailable() {
    let upstream = upstream::h2c(failing).await;
    for (mesh, _there) in ways(&upstream, AppProtocol::Grpc, |limits| limits.head_bytes = 8192) {
        let request = Request::post("http://web/a.B/Head").header("content-type", "application/grpc");
        let response = connect_h2(mesh.gateway()).await.send_request(request.body(empty()).unwrap()).await.unwrap();
        let answer = answer(response).await;
        assert_eq!((answer.status, &answer.headers["grpc-status"]), (200, &"8".parse().unwrap()));
    }
}
