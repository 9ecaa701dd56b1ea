//! The client's address behind a load balancer: by `x-forwarded-for`, and by the PROXY protocol.

use crate::https;
use crate::mesh::{Builder, Mesh};
use crate::raw::{self, Raw};
use crate::upstream::{self, Upstream, connect_http1, echo, empty};
use http::Request;
use leno_model::{AppProtocol, TrustedProxies};
use leno_policy::spec::{Cidr, Counts, KeyPart, Matches, QuotaAlgorithm, RateLimit, Source};
use leno_testkit::eventually_async;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CLIENT: &str = "203.0.113.9";

fn loopback() -> TrustedProxies {
    TrustedProxies::Addresses(vec![Cidr { address: "127.0.0.0".parse().unwrap(), prefix: 8 }])
}

/// The function admits only clients in 203.0.113.0/24, and each of them three times.
async fn mesh(trusted: TrustedProxies, proxy_protocol: bool) -> (Mesh, Upstream) {
    let upstream = upstream::http1(echo).await;
    let mut builder = Builder::new().function("web", AppProtocol::Http1, upstream.address).config("web", |config| {
        let clients = Cidr { address: "203.0.113.0".parse().unwrap(), prefix: 24 };
        let addresses = Matches { any: vec![clients], none: vec![] };
        config.inbound.authorization.last_mut().unwrap().from = vec![Source { addresses, ..Source::default() }];
        config.inbound.rate_limits.push(RateLimit {
            name: "test/limit".into(),
            counts: Counts::Requests,
            only: None,
            from: vec![],
            except: vec![],
            audit: false,
            key: vec![KeyPart::Address],
            algorithm: QuotaAlgorithm::FixedWindow { requests: 3, period_ms: 365 * 86_400_000 },
        });
    });
    (builder.mesh.trusted_proxies, builder.mesh.proxy_protocol) = (trusted, proxy_protocol);
    (builder.start(), upstream)
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_see_the_client_behind_trusted_proxies() {
    for trusted in [loopback(), TrustedProxies::Hops(1)] {
        let (mesh, _) = mesh(trusted, false).await;
        let mut client = connect_http1(mesh.gateway()).await;
        let ask = |address: &str| {
            let chain = format!("198.51.100.1, {address}");
            let request = Request::get("/").header("host", "web").header("x-forwarded-proto", "https");
            request.header("x-forwarded-for", chain).body(empty()).unwrap()
        };
        for _ in 0..3 {
            let reply = client.send(ask(CLIENT)).await;
            assert_eq!(reply.status, 200);
            assert!(reply.text.contains("\nx-forwarded-for: 203.0.113.9\n"), "{}", reply.text);
            assert!(reply.text.contains("\nx-forwarded-proto: https\n"), "{}", reply.text);
            let told = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await;
            assert!(told[0].peer.address.starts_with("203.0.113.9:"), "{}", told[0].peer.address);
        }
        assert_eq!(client.send(ask(CLIENT)).await.status, 429);
        assert_eq!(client.send(ask("203.0.113.10")).await.status, 200, "each client has its own limit");
        assert_eq!(client.send(ask("198.51.100.2")).await.status, 403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_is_believed() {
    let unrelated = Cidr { address: "10.0.0.0".parse().unwrap(), prefix: 8 };
    for trusted in [TrustedProxies::None, TrustedProxies::Addresses(vec![unrelated])] {
        let (mesh, upstream) = mesh(trusted, false).await;
        let request = Request::get("/").header("host", "web").header("x-forwarded-for", CLIENT).body(empty()).unwrap();
        assert_eq!(connect_http1(mesh.gateway()).await.send(request).await.status, 403);
        assert_eq!(upstream.requests(), 0);
    }
}

const ASK: &str = "GET /seen HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";

fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[command, family][..], &length, body].concat()
}

fn v2_of_client() -> Vec<u8> {
    // With an extension (TLV) as balancers add it.
    v2(0x21, 0x11, &[203, 0, 113, 9, 127, 0, 0, 1, 0xc8, 0x22, 0, 80, 0x04, 0, 2, 1, 1])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_protocol_names_the_client() {
    let (mesh, _) = mesh(loopback(), true).await;
    let headers = [b"PROXY TCP4 203.0.113.9 127.0.0.1 51234 80\r\n".to_vec(), v2_of_client()];
    for header in &headers {
        let reply = raw::exchange(mesh.gateway(), [header, ASK.as_bytes()].concat()).await;
        assert_eq!(raw::status(&reply), 200, "{reply}");
        assert!(reply.contains("\nx-forwarded-for: 203.0.113.9\n"), "{reply}");
    }
    // One byte at a time.
    let mut raw = Raw::connect(mesh.gateway()).await;
    for byte in [&headers[1], ASK.as_bytes()].concat() {
        raw.send([byte]).await;
        tokio::task::yield_now().await;
    }
    let reply = raw.rest().await;
    assert_eq!(raw::status(&reply), 200, "{reply}");
    assert_eq!(raw::status(&raw::exchange(mesh.gateway(), [&headers[0], ASK.as_bytes()].concat()).await), 429);
    // IPv4-mapped addresses are IPv4 addresses; the proxy's own health check comes from the proxy.
    let mapped = format!("PROXY TCP6 ::ffff:203.0.113.10 ::1 1 2\r\n{ASK}");
    assert_eq!(raw::status(&raw::exchange(mesh.gateway(), mapped).await), 200);
    let local = [v2(0x20, 0x00, &[]), ASK.into()].concat();
    assert_eq!(raw::status(&raw::exchange(mesh.gateway(), local).await), 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_sound_proxy_header_a_connection_is_closed_and_counted() {
    let refusals = |mesh: &Mesh, reason: &str| {
        let line = format!("leno_proxy_protocol_refusals_total{{reason=\"{reason}\"}} ");
        let text = mesh.node.telemetry.exposition(mesh.node.policy_state.entries()).finish();
        let count = text.lines().find_map(|text| text.strip_prefix(&line)).map(str::to_owned);
        count.map_or(0, |count| count.parse::<u32>().unwrap())
    };
    let (mesh, upstream) = mesh(loopback(), true).await;
    for (reason, bytes) in [
        ("missing", ASK.as_bytes().to_vec()),
        ("malformed", format!("PROXY TCP4 203.0.113.9\r\n{ASK}").into_bytes()),
        ("malformed", [v2(0x21, 0x11, &[203, 0, 113, 9]), ASK.into()].concat()),
    ] {
        let before = refusals(&mesh, reason);
        assert_eq!(raw::exchange(mesh.gateway(), bytes).await, "");
        eventually_async("the refusal to be counted", || refusals(&mesh, reason) == before + 1).await;
    }
    let (strangers, other) =
        self::mesh(TrustedProxies::Addresses(vec![Cidr { address: "10.0.0.0".parse().unwrap(), prefix: 8 }]), true)
            .await;
    assert_eq!(raw::exchange(strangers.gateway(), [v2_of_client(), ASK.into()].concat()).await, "");
    eventually_async("the refusal to be counted", || refusals(&strangers, "untrusted") == 1).await;
    assert_eq!(upstream.requests() + other.requests(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_header_comes_before_tls() {
    let (mesh, root) = https::mesh_with(|mut builder| {
        (builder.mesh.trusted_proxies, builder.mesh.proxy_protocol) = (loopback(), true);
        builder
    })
    .await;
    let mut stream = TcpStream::connect(mesh.handle.addresses.gateway_https.unwrap()).await.unwrap();
    stream.write_all(&v2_of_client()).await.unwrap();
    let mut stream = https::handshake(stream, &root, &[b"http/1.1"]).await;
    stream.write_all(ASK.as_bytes()).await.unwrap();
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply).await;
    let reply = String::from_utf8_lossy(&reply);
    assert!(reply.contains("\nx-forwarded-for: 203.0.113.9\n"), "{reply}");
    assert!(reply.contains("\nx-forwarded-proto: https\n"), "{reply}");
}
