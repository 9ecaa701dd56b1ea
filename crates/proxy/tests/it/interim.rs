//! Interim responses: 102 and 103 reach the client, and 100 makes it send its body.

use crate::frames::{self, DATA, END_HEADERS, END_STREAM, HEADERS, OK, SETTINGS};
use crate::hops::basic;
use crate::mesh::{Builder, Mesh, allow_all};
use crate::nodes::egress::{block, carrier};
use crate::raw::{self, Raw, server};
use crate::upstream::{echo, http1};
use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request, StatusCode};
use leno_model::{AppProtocol, EgressProtocol, Run};
use leno_testkit::eventually_async;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::Poll;
use tokio::net::TcpStream;

const INTERIM: &str = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\nlink: </b.css>\r\n\
    connection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nx-leno-failure: connect\r\ncontent-length: 7\r\n\r\n";
const FINAL: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// An HTTP/1.1 function that sends early hints, in pieces of so many bytes.
async fn hints(piece: usize) -> SocketAddr {
    server(move |mut raw: Raw| async move {
        loop {
            raw.head().await;
            for piece in (INTERIM.to_owned() + FINAL).as_bytes().chunks(piece) {
                raw.send(piece).await;
                tokio::task::yield_now().await;
            }
        }
    })
    .await
}

/// An HTTP/2 function that sends early hints.
async fn http2_hints() -> SocketAddr {
    let field = |name: &str, value: &str| {
        [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    let fields = [("link", "</a.css>"), ("link", "</b.css>"), ("x-leno-failure", "connect")];
    let hint = [&b"\x08\x03103"[..], &fields.map(|(name, value)| field(name, value)).concat()].concat();
    let length = field("content-length", "2");
    let (address, _) = frames::server(move |mut connection, _| {
        let (hint, length) = (hint.clone(), length.clone());
        async move {
            connection.send(SETTINGS, 0, 0, &[]).await;
            while let Some((stream, _)) = connection.request().await {
                connection.send(HEADERS, END_HEADERS, stream, b"\x08\x03102").await;
                connection.send(HEADERS, END_HEADERS, stream, &hint).await;
                connection.send(HEADERS, END_HEADERS, stream, &[OK, &length].concat()).await;
                connection.send(DATA, END_STREAM, stream, b"ok").await;
            }
        }
    })
    .await;
    address
}

/// An HTTP/2 client.
async fn h2(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender.ready().await.unwrap()
}

/// The interim responses to a request, and the status of the final one.
async fn answers(mut response: h2::client::ResponseFuture) -> (Vec<(u16, HeaderMap)>, StatusCode) {
    let mut interim = Vec::new();
    let last = poll_fn(|cx| {
        while let Poll::Ready(Some(Ok(head))) = response.poll_informational(cx) {
            interim.push((head.status().as_u16(), head.headers().clone()));
        }
        Pin::new(&mut response).poll(cx)
    });
    let status = last.await.unwrap().status();
    (interim, status)
}

fn get(host: &str) -> Request<()> {
    Request::get(format!("http://{host}/")).body(()).unwrap()
}

fn expect_hints((interim, status): (Vec<(u16, HeaderMap)>, StatusCode)) {
    assert_eq!((interim.len(), status.as_u16()), (2, 200));
    assert_eq!((interim[0].0, interim[0].1.len(), interim[1].0), (102, 0, 103));
    let links: Vec<_> = interim[1].1.get_all("link").iter().map(|link| link.to_str().unwrap()).collect();
    assert_eq!((links, interim[1].1.len()), (vec!["</a.css>", "</b.css>"], 2));
}

async fn expect_hints_over_http1(mut raw: Raw, head: &str) {
    for _ in 0..3 {
        raw.send(head).await;
        assert_eq!(raw.head().await, "HTTP/1.1 102 Processing\r\n\r\n");
        assert_eq!(raw.head().await, "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\nlink: </b.css>\r\n\r\n");
        let last = raw.head().await;
        assert!(raw::status(&last) == 200 && !last.contains("link"), "{last}");
        assert_eq!(raw.until("ok").await, "ok");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_of_an_http1_function_reach_both_kinds_of_clients() {
    for piece in [1, 7, 1000] {
        let mesh = Mesh::web(hints(piece).await);
        expect_hints_over_http1(Raw::connect(mesh.gateway()).await, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let (response, _) = h2(mesh.gateway()).await.send_request(get("web"), true).unwrap();
        expect_hints(answers(response).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_go_from_node_to_node_and_over_http2() {
    for (protocol, address) in [(AppProtocol::Http1, hints(1000).await), (AppProtocol::H2c, http2_hints().await)] {
        let web = || Builder::new().function("web", protocol, address);
        let there = web().start();
        let gateway = web().remote("web").with(&there).start();
        gateway.knows("web", &[(&there, 1)]);
        for mesh in [&there, &gateway] {
            expect_hints_over_http1(Raw::connect(mesh.gateway()).await, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
            let (response, _) = h2(mesh.gateway()).await.send_request(get("web"), true).unwrap();
            expect_hints(answers(response).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_hints_are_a_bad_gateway() {
    let address = server(|mut raw: Raw| async move {
        raw.head().await;
        raw.send("HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n".repeat(1000) + FINAL).await;
    })
    .await;
    let mesh = Mesh::web(address);
    let answer = raw::exchange(mesh.gateway(), "GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 103 ") && answer.contains("HTTP/1.1 502 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_reach_a_calling_function() {
    let address = hints(1000).await;
    let mesh = Builder::new()
        .function("caller", AppProtocol::Http1, address)
        .function("callee", AppProtocol::Http1, address)
        .call("caller", "callee")
        .start();
    let head = format!(
        "GET http://callee/ HTTP/1.1\r\nhost: callee\r\nproxy-authorization: {}\r\n\r\n",
        basic(&mesh.mint("caller"))
    );
    expect_hints_over_http1(Raw::connect(mesh.outbound()).await, &head).await;
}

/// Early hints of an external service reach the calling function, regardless of which node connects
/// to the service.
#[tokio::test(flavor = "multi_thread")]
async fn hints_from_the_outside_reach_a_calling_function() {
    for http2 in [false, true] {
        let external = if http2 { http2_hints().await } else { hints(7).await };
        let local = Ipv4Addr::LOCALHOST;
        let carrier = || {
            carrier(local, &[(external.port(), EgressProtocol::Http)], allow_all()).config("callee", |config| {
                let Run::Egress(egress) = &mut config.run else { panic!("it is not external") };
                egress.ports[0].http2 = http2;
            })
        };
        let with_caller = |builder: Builder| {
            let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
            let builder = builder.function("caller", AppProtocol::Http1, nowhere).call("caller", "callee");
            builder.config("caller", |config| config.callees[0].addresses = vec![block(local)])
        };
        let there = carrier().start();
        let here = with_caller(Builder::new().with(&there)).start();
        here.knows("callee", &[(&there, 1)]);
        for mesh in [with_caller(carrier()).start(), here] {
            let credential = basic(&mesh.mint("caller"));
            let head = format!(
                "GET http://{external}/ HTTP/1.1\r\nhost: {external}\r\nproxy-authorization: {credential}\r\n\r\n"
            );
            expect_hints_over_http1(Raw::connect(mesh.outbound()).await, &head).await;
            let mut request = get(&external.to_string());
            request.headers_mut().insert("proxy-authorization", credential.parse().unwrap());
            let (response, _) = h2(mesh.outbound()).await.send_request(request, true).unwrap();
            expect_hints(answers(response).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_1_0_has_no_hints() {
    let mesh = Mesh::web(hints(1000).await);
    let answer = raw::exchange(mesh.gateway(), "GET / HTTP/1.0\r\nhost: web\r\n\r\n").await;
    assert!(raw::status(&answer) == 200 && answer.ends_with("ok"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_record_is_of_the_final_response() {
    let mesh = Mesh::web(hints(1000).await);
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send("GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
    for _ in 0..2 {
        assert!(!raw.head().await.contains("x-request-id"));
    }
    let last = raw.head().await;
    let id = last.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap();
    raw.until("ok").await;
    let told = mesh.told(id, 1).await.remove(0);
    assert_eq!((told.response.status, told.response.bytes_out, told.attempts.len()), (200, 2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_expects_to_go_on_is_told_so_over_http2() {
    let upstream = http1(echo).await;
    let mesh = Mesh::web(upstream.address);
    let request = |deny: bool| {
        let request = Request::post("http://web/").header("expect", "100-continue").header("content-length", "5");
        if deny { request.header("x-deny", "1") } else { request }.body(()).unwrap()
    };
    let (mut response, mut body) = h2(mesh.gateway()).await.send_request(request(false), false).unwrap();
    let go_on = poll_fn(|cx| response.poll_informational(cx)).await.unwrap().unwrap();
    assert_eq!(go_on.status(), 100);
    body.send_data("hello".into(), true).unwrap();
    let mut response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    let mut text = Vec::new();
    while let Some(data) = response.body_mut().data().await {
        text.extend_from_slice(&data.unwrap());
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.ends_with("hello") && !text.contains("expect"), "{text}");

    let (response, _body) = h2(mesh.gateway()).await.send_request(request(true), false).unwrap();
    let (interim, status) = answers(response).await;
    assert_eq!((interim.len(), status.as_u16()), (0, 403));
    eventually_async("the requests to arrive upstream", || upstream.requests() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_its_body_at_once_needs_no_permission() {
    let upstream = http1(echo).await;
    let mesh = Mesh::web(upstream.address);
    let request = Request::post("http://web/").header("expect", "100-continue").body(()).unwrap();
    let (response, mut body) = h2(mesh.gateway()).await.send_request(request, false).unwrap();
    body.send_data("hello".into(), true).unwrap();
    assert_eq!(answers(response).await.1, 200);
}

/// Sends a body after 100 Continue, and prints the version, the status, and whether the body came
/// back.
const JAVA: &str = r#"
import java.net.Socket;
import java.net.URI;
import java.net.http.*;
import java.security.cert.X509Certificate;
import java.time.Duration;
import javax.net.ssl.*;

public class Expect {
    static class Anybody extends X509ExtendedTrustManager {
        public void checkClientTrusted(X509Certificate[] chain, String type) {}
        public void checkServerTrusted(X509Certificate[] chain, String type) {}
        public void checkClientTrusted(X509Certificate[] chain, String type, Socket socket) {}
        public void checkServerTrusted(X509Certificate[] chain, String type, Socket socket) {}
        public void checkClientTrusted(X509Certificate[] chain, String type, SSLEngine engine) {}
        public void checkServerTrusted(X509Certificate[] chain, String type, SSLEngine engine) {}
        public X509Certificate[] getAcceptedIssuers() { return new X509Certificate[0]; }
    }

    public static void main(String[] arguments) throws Exception {
        SSLContext tls = SSLContext.getInstance("TLS");
        tls.init(null, new TrustManager[] {new Anybody()}, null);
        HttpClient client = HttpClient.newBuilder().sslContext(tls).build();
        for (int call = 0; call < 2; call++) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0])).expectContinue(true)
                .timeout(Duration.ofSeconds(60)).POST(HttpRequest.BodyPublishers.ofString("hello")).build();
            HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(response.version() + " " + response.statusCode() + " " + response.body().endsWith("hello"));
        }
    }
}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn javas_client_is_told_to_go_on_over_tls() {
    let (mesh, _) = crate::https::mesh_with(|builder| builder).await;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("Expect.java");
    std::fs::write(&program, JAVA).unwrap();
    let url = format!("https://{}/", mesh.handle.addresses.gateway_https.unwrap());
    let mut java = tokio::process::Command::new("java");
    java.args(["-XX:TieredStopAtLevel=1", "-Xshare:auto"]).arg(program).arg(url);
    let run = java.kill_on_drop(true).output().await;
    match run {
        Err(error) => eprintln!("SKIPPED: Java's HttpClient is not tried, for there is no `java`: {error}"),
        Ok(run) => {
            let (out, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
            assert_eq!(out, "HTTP_2 200 true\n".repeat(2), "{errors}");
        }
    }
}
