//! HTTP/2 streams that the library refuses by itself: the node answers them as far as the protocol
//! allows, and records and counts them.

use crate::frames::{Connection, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS};
use crate::mesh::{Builder, Mesh};
use crate::raw::Raw;
use crate::upstream::{self, Upstream, echo};
use leno_model::AppProtocol;
use leno_telemetry::ring::Explanation;
use leno_testkit::eventually_async;
use std::fmt::Write;

/// Kind, flags, stream and payload of a frame.
type RawFrame = (u8, u8, u32, Vec<u8>);

const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 7;

async fn mesh() -> (Mesh, Upstream) {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .limits(|limits| limits.h2_streams = 2)
        .start();
    (mesh, upstream)
}

/// A client's connection, with these SETTINGS.
async fn connect(mesh: &Mesh, settings: &[(u16, u32)]) -> Connection {
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let mut connection = Connection(raw);
    let payload: Vec<u8> =
        settings.iter().flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
    connection.send(SETTINGS, 0, 0, &payload).await;
    connection
}

/// A block of fields, none of which is indexed.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| {
        let mut bytes = Vec::new();
        match text.len() {
            length @ ..127 => bytes.push(length as u8),
            length => {
                bytes.push(127);
                let mut rest = length - 127;
                while rest >= 128 {
                    bytes.push(0x80 | (rest % 128) as u8);
                    rest /= 128;
                }
                bytes.push(rest as u8);
            }
        }
        bytes.extend(text.as_bytes());
        bytes
    };
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

const GET: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "http"), (":authority", "web"), (":path", "/")];

/// GET with these fields, which replace the usual ones or are added to them.
fn with<'a>(fields: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let others = GET.into_iter().filter(|(name, _)| fields.iter().all(|(other, _)| other != name));
    let (pseudo, usual): (Vec<_>, Vec<_>) = fields.iter().copied().partition(|(name, _)| name.starts_with(':'));
    others.chain(pseudo).chain(usual).collect()
}

/// Reads a stream until its reset or end. Returns the kinds of the frames, the text of the heads,
/// and the code of the reset.
async fn outcome(connection: &mut Connection, stream: u32) -> (Vec<u8>, String, Option<u32>) {
    let (mut kinds, mut text) = (Vec::new(), String::new());
    while let Some(frame) = connection.next().await {
        if frame.kind == GOAWAY {
            let code = u32::from_be_bytes(frame.payload[4..8].try_into().unwrap());
            let text = format!("GOAWAY {code} {}", String::from_utf8_lossy(&frame.payload[8..]));
            return (vec![GOAWAY], text, Some(code));
        }
        if frame.stream != stream {
            continue;
        }
        kinds.push(frame.kind);
        match frame.kind {
            RST_STREAM => return (kinds, text, Some(u32::from_be_bytes(frame.payload[..4].try_into().unwrap()))),
            HEADERS => {
                let _ = write!(text, "{:#x} {}", frame.payload[0], String::from_utf8_lossy(&frame.payload));
                if frame.flags & END_STREAM != 0 && frame.payload.len() < 10 {
                    return (kinds, text, None);
                }
            }
            DATA if frame.flags & END_STREAM != 0 => return (kinds, text, None),
            _ => {}
        }
    }
    (kinds, text, None)
}

fn records(mesh: &Mesh) -> Vec<Explanation> {
    mesh.node.telemetry.ring.latest(100)
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_heads_are_answered_and_recorded() {
    let attempts: &[(&str, Vec<(&str, &str)>)] = &[
        ("no path", GET[..3].to_vec()),
        ("an empty path", with(&[(":path", "")])),
        ("a relative path", with(&[(":path", "a")])),
        ("a space in the path", with(&[(":path", "/a b")])),
        ("no method", GET[1..].to_vec()),
        ("no scheme", vec![GET[0], GET[2], GET[3]]),
        ("a bad scheme", with(&[(":scheme", "h ttp")])),
        ("a bad authority", with(&[(":authority", "w eb")])),
        ("a status", with(&[(":status", "200")])),
        ("two paths", [&GET[..], &[(":path", "/b")]].concat()),
        ("a pseudo-header at the end", [&GET[..3], &[("x", "1")], &GET[3..]].concat()),
        ("connection", with(&[("connection", "close")])),
        ("keep-alive", with(&[("keep-alive", "1")])),
        ("proxy-connection", with(&[("proxy-connection", "keep-alive")])),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")])),
        ("upgrade", with(&[("upgrade", "h2c")])),
        ("te", with(&[("te", "gzip")])),
        ("a length that is none", with(&[("content-length", "+1")])),
        ("two lengths", with(&[("content-length", "0"), ("content-length", "1")])),
        ("a length without content", with(&[("content-length", "1")])),
        ("a protocol without CONNECT", with(&[(":protocol", "websocket")])),
        ("CONNECT with a path", with(&[(":method", "CONNECT")])),
    ];
    let (mesh, upstream) = mesh().await;
    let mut connection = connect(&mesh, &[]).await;
    for (number, (what, fields)) in attempts.iter().enumerate() {
        let stream = 4 * number as u32 + 1;
        connection.send(HEADERS, END_STREAM | END_HEADERS, stream, &block(fields)).await;
        let (kinds, text, code) = outcome(&mut connection, stream).await;
        assert_eq!((&kinds[..], code), (&[HEADERS, RST_STREAM][..], Some(PROTOCOL_ERROR)), "{what}: {text}");
        assert!(text.starts_with("0x8c ") && text.contains("proxy-status"), "{what}: {text}");
        assert!(text.contains("error=http_request_error; details=\"malformed request"), "{what}: {text}");
        let id = text.split("x-request-id").nth(1).and_then(|rest| rest.get(1..37)).unwrap();
        let told = mesh.told(id, 1).await.remove(0);
        assert_eq!((told.response.status, told.response.flag.as_deref()), (400, Some("DPE")), "{what}: {told:?}");
        // The connection goes on.
        connection.send(HEADERS, END_STREAM | END_HEADERS, stream + 2, &block(&GET)).await;
        let (kinds, text, _) = outcome(&mut connection, stream + 2).await;
        assert!(text.starts_with("0x88 ") && !kinds.contains(&RST_STREAM), "{what}: {kinds:?} {text}");
    }
    assert_eq!(upstream.requests(), attempts.len());
    let refused = records(&mesh).iter().filter(|told| told.response.flag.as_deref() == Some("DPE")).count();
    assert_eq!(refused, attempts.len(), "each has one record");
    assert!(mesh.metrics().contains("response_code=\"400\""), "{}", mesh.metrics());
}

#[tokio::test(flavor = "multi_thread")]
async fn large_heads_are_answered_with_431() {
    let (mesh, upstream) = mesh().await;
    // Some heads exceed only `limits.headBytes`, which is 16 KiB; others also exceed the limit of
    // the library.
    let value = "a".repeat(1500);
    let names: Vec<_> = (0..40).map(|number| format!("x-{number}")).collect();
    for (count, is_own) in [(12, true), (20, true), (30, false), (40, false)] {
        let size = count * value.len();
        let mut connection = connect(&mesh, &[]).await;
        let large: Vec<_> = names[..count].iter().map(|name| (&name[..], &value[..])).collect();
        let fields = block(&with(&large));
        let mut pieces = fields.chunks(16_384).peekable();
        let (mut kind, mut flags) = (HEADERS, END_STREAM);
        while let Some(piece) = pieces.next() {
            flags |= if pieces.peek().is_none() { END_HEADERS } else { 0 };
            connection.send(kind, flags, 1, piece).await;
            (kind, flags) = (9, 0);
        }
        let (kinds, text, _) = outcome(&mut connection, 1).await;
        assert_eq!(kinds[0], HEADERS, "{size}: {kinds:?} {text}");
        assert_eq!(text.len() > 40, is_own, "{size}: {text}");
        eventually_async("the record of the exchange", || {
            records(&mesh).iter().any(|told| told.response.status == 431)
        })
        .await;
        let told = records(&mesh).remove(0);
        assert!(told.response.failure.as_deref().unwrap().contains("limits.headBytes"), "{size}: {told:?}");
    }
    eventually_async("the record of the exchange", || records(&mesh).len() == 4).await;
    assert_eq!(upstream.requests(), 0);
}

/// The library answers a large head itself, and then resets the stream because the client has not
/// ended it.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_head_with_content_has_one_record_and_one_answer() {
    let (mesh, _upstream) = mesh().await;
    let mut connection = connect(&mesh, &[]).await;
    let fields = [block(&with(&[(":method", "POST")])), beyond(30, 1500)].concat();
    let pieces: Vec<_> = fields.chunks(16_384).collect();
    for (number, piece) in pieces.iter().enumerate() {
        let end = if number + 1 == pieces.len() { END_HEADERS } else { 0 };
        connection.send(if number == 0 { HEADERS } else { 9 }, end, 1, piece).await;
    }
    assert_eq!(outcome(&mut connection, 1).await.0, [HEADERS]);
    assert_eq!(outcome(&mut connection, 1).await.0, [RST_STREAM]);
    // The connection goes on.
    connection.send(HEADERS, END_STREAM | END_HEADERS, 3, &block(&GET)).await;
    assert!(outcome(&mut connection, 3).await.1.starts_with("0x88 "));
    eventually_async("the record of the exchange", || records(&mesh).len() >= 2).await;
    let statuses: Vec<_> = records(&mesh).iter().map(|told| told.response.status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 431).count(), 1, "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_a_connection_is_recorded() {
    let enormous = "a".repeat(16_000);
    let frames: &[(&str, u16, Vec<RawFrame>)] = &[
        ("an upper-case name", 400, vec![(HEADERS, END_STREAM | END_HEADERS, 1, block(&with(&[("X-Upper", "1")])))]),
        ("an even stream", 400, vec![(HEADERS, END_STREAM | END_HEADERS, 2, block(&GET))]),
        ("data without a stream", 400, vec![(DATA, 0, 1, b"a".to_vec())]),
        ("a bad index", 400, vec![(HEADERS, END_STREAM | END_HEADERS, 1, vec![0xff, 0x80, 0x01])]),
        ("another frame within a head", 400, vec![(HEADERS, 0, 1, block(&GET)), (DATA, 0, 1, vec![])]),
        (
            "a head without an end",
            431,
            (0..40)
                .map(|number| {
                    let fields = [&with(&[])[..], &[("x-large", &enormous[..])]].concat();
                    let more = block(if number == 0 { &fields } else { &fields[4..] });
                    (if number == 0 { HEADERS } else { 9 }, 0, 1, more)
                })
                .collect(),
        ),
    ];
    for (what, status, frames) in frames {
        let (mesh, _upstream) = mesh().await;
        let mut connection = connect(&mesh, &[]).await;
        for (kind, flags, stream, payload) in frames {
            connection.send(*kind, *flags, *stream, payload).await;
        }
        let (kinds, ..) = outcome(&mut connection, 1).await;
        assert!(kinds.is_empty() || kinds == [GOAWAY], "{what}: {kinds:?}");
        eventually_async("the record of the exchange", || !records(&mesh).is_empty()).await;
        let told = records(&mesh).remove(0);
        assert_eq!((told.response.status, told.response.flag.as_deref()), (*status, Some("DPE")), "{what}: {told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_beyond_the_limit_are_recorded() {
    let (mesh, _upstream) = mesh().await;
    let mut connection = connect(&mesh, &[]).await;
    let post = block(&with(&[(":method", "POST")]));
    for stream in [1, 3, 5] {
        connection.send(HEADERS, END_HEADERS, stream, &post).await;
    }
    let (kinds, _, code) = outcome(&mut connection, 5).await;
    assert_eq!((kinds, code), (vec![RST_STREAM], Some(REFUSED_STREAM)), "it may be sent again");
    eventually_async("the record of the exchange", || !records(&mesh).is_empty()).await;
    let told = records(&mesh).remove(0);
    assert_eq!((told.response.status, told.response.flag.as_deref()), (503, Some("UO")), "{told:?}");
}

/// A client with a small limit on heads gets a reason instead of a head that it would refuse.
#[tokio::test(flavor = "multi_thread")]
async fn the_clients_limit_on_heads_is_heeded() {
    const MAX_HEADER_LIST_SIZE: u16 = 6;
    let address = crate::raw::server(|mut raw| async move {
        raw.head().await;
        let large = "a".repeat(2000);
        // The connection ends with the answer, so the next request must not use it.
        let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\nx-large: {large}\r\ncontent-length: 2\r\n\r\n");
        raw.send(head + "ok").await;
    })
    .await;
    let mesh = Builder::new().function("web", AppProtocol::Http1, address).start();
    for (most, status, flag) in [(16 * 1024, 200, None), (2000, 502, Some("UPE"))] {
        let mut connection = connect(&mesh, &[(MAX_HEADER_LIST_SIZE, most)]).await;
        connection.send(HEADERS, END_STREAM | END_HEADERS, 1, &block(&GET)).await;
        let (kinds, ..) = outcome(&mut connection, 1).await;
        assert_eq!(kinds, [HEADERS, DATA], "{most}");
        eventually_async("the record of the exchange", || {
            records(&mesh).iter().any(|told| told.response.status == status)
        })
        .await;
        let told = records(&mesh).into_iter().find(|told| told.response.status == status).unwrap();
        assert_eq!(told.response.flag.as_deref(), flag, "{told:?}");
        if let Some(failure) = told.response.failure {
            assert!(failure.contains("SETTINGS_MAX_HEADER_LIST_SIZE"), "{failure}");
        }
    }
}

/// Too many fields for the limits, or fields with too many bytes.
fn beyond(count: usize, size: usize) -> Vec<u8> {
    let value = "a".repeat(size);
    let names: Vec<_> = (0..count).map(|number| format!("x-{number}")).collect();
    block(&names.iter().map(|name| (&name[..], &value[..])).collect::<Vec<_>>())
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_requests_have_the_limits_of_heads() {
    let (mesh, upstream) = mesh().await;
    let post = block(&with(&[(":method", "POST")]));
    for (trailers, is_allowed) in [(beyond(10, 10), true), (beyond(60, 1), false), (beyond(11, 1500), false)] {
        let mut connection = connect(&mesh, &[]).await;
        connection.send(HEADERS, END_HEADERS, 1, &post).await;
        connection.send(DATA, 0, 1, b"content").await;
        let last = trailers.len().saturating_sub(16_000);
        let (first, rest) = trailers.split_at(trailers.len() - last);
        let end = if rest.is_empty() { END_HEADERS } else { 0 };
        connection.send(HEADERS, END_STREAM | end, 1, first).await;
        if !rest.is_empty() {
            connection.send(9, END_HEADERS, 1, rest).await;
        }
        let (kinds, text, _) = outcome(&mut connection, 1).await;
        assert_eq!(text.starts_with("0x88 "), is_allowed, "{kinds:?} {text}");
    }
    eventually_async("the count of streams", || {
        records(&mesh).iter().filter(|told| told.response.status == 400).count() == 2
    })
    .await;
    assert!(upstream.requests() <= 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_responses_have_the_limits_of_heads() {
    for (trailers, is_allowed) in [(beyond(10, 10), true), (beyond(300, 1), false), (beyond(10, 6000), false)] {
        let (address, _) = crate::frames::server(move |mut connection, _| {
            let trailers = trailers.clone();
            async move {
                connection.send(SETTINGS, 0, 0, &[]).await;
                while let Some((stream, _)) = connection.request().await {
                    connection.send(HEADERS, END_HEADERS, stream, crate::frames::OK).await;
                    connection.send(DATA, 0, stream, b"content").await;
                    let mut pieces = trailers.chunks(16_000).enumerate().peekable();
                    while let Some((number, piece)) = pieces.next() {
                        let (kind, end) = if number == 0 { (HEADERS, END_STREAM) } else { (9, 0) };
                        let end = if pieces.peek().is_none() { end | END_HEADERS } else { end };
                        connection.send(kind, end, stream, piece).await;
                    }
                }
            }
        })
        .await;
        let mesh = Builder::new().function("web", AppProtocol::H2c, address).start();
        let reply = crate::raw::exchange(
            mesh.gateway(),
            "GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\nte: trailers\r\n\r\n",
        )
        .await;
        assert_eq!(reply.contains("\r\n0\r\n"), is_allowed, "{reply}");
        eventually_async("the record of the exchange", || !records(&mesh).is_empty()).await;
        let failure = records(&mesh).remove(0).response.failure;
        assert_eq!(
            failure.as_deref().is_none_or(|failure| !failure.contains("its trailers have")),
            is_allowed,
            "{failure:?}"
        );
    }
}
