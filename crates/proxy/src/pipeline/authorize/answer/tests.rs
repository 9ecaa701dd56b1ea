use super::*;
use crate::pipeline::authorize::envoy::{HeaderValue as EnvoyValue, HttpStatus, Status, frame};
use http::{HeaderName, HeaderValue};
use leno_http::edits::Edit;
use leno_model::AuthorizerProtocol;
use leno_policy::reserved::is_reserved;
use proptest::prelude::*;

fn spec() -> leno_model::Authorizer {
    leno_model::Authorizer {
        name: "p/externalAuthorization/a".to_owned(),
        authority: "a.b".to_owned(),
        protocol: AuthorizerProtocol::Grpc,
        path_prefix: String::new(),
        timeout: Duration::from_secs(1),
        status_on_error: 503,
        shown: None,
        upstream_headers: vec!["x-user".to_owned(), "x-groups".to_owned()],
        raw_headers: false,
        client_headers: vec!["www-authenticate".to_owned(), "set-cookie".to_owned()],
        cache: None,
        audit: false,
    }
}

fn header(key: &str, value: &[u8]) -> HeaderValueOption {
    HeaderValueOption { header: Some(EnvoyValue { key: key.to_owned(), value: value.to_vec(), raw_value: Vec::new() }) }
}

fn status(code: i32) -> Option<Status> {
    Some(Status { code, message: String::new() })
}

fn ok(headers: Vec<HeaderValueOption>, removed: &[&str]) -> Option<HttpResponse> {
    let headers_to_remove = removed.iter().map(|name| (*name).to_owned()).collect();
    Some(HttpResponse::Ok(OkHttpResponse { headers, headers_to_remove }))
}

fn denied(code: Option<i32>, headers: Vec<HeaderValueOption>, body: &str) -> Option<HttpResponse> {
    let status = code.map(|code| HttpStatus { code });
    Some(HttpResponse::Denied(DeniedHttpResponse { status, headers, body: body.as_bytes().to_vec() }))
}

fn read(status: Option<Status>, http_response: Option<HttpResponse>) -> Result<Answer, NoAnswer> {
    of_grpc(&spec(), Names::Listed(&spec().upstream_headers), &[], &frame(&CheckResponse { status, http_response }))
}

fn append(name: &'static str, value: &'static str) -> Edit {
    Edit::Append(HeaderName::from_static(name), HeaderValue::from_static(value))
}

#[test]
fn an_answer_that_allows_sets_the_headers_that_are_named() {
    assert_eq!(read(status(0), None).unwrap(), Answer::Allows(vec![]));
    assert_eq!(read(None, ok(vec![], &[])).unwrap(), Answer::Allows(vec![]), "some servers leave the status out");
    let headers =
        vec![header("X-User", b"ann"), header("x-other", b"1"), header("x-groups", b"a"), header("x-groups", b"b")];
    let expected = vec![
        Edit::Remove(HeaderName::from_static("cookie")),
        append("x-user", "ann"),
        append("x-groups", "a"),
        append("x-groups", "b"),
    ];
    assert_eq!(read(status(0), ok(headers, &["Cookie"])).unwrap(), Answer::Allows(expected));
    let raw = EnvoyValue { key: "x-user".to_owned(), value: Vec::new(), raw_value: b"\xe4".to_vec() };
    let Answer::Allows(edits) = read(status(0), ok(vec![HeaderValueOption { header: Some(raw) }], &[])).unwrap() else {
        panic!("it allows");
    };
    assert!(matches!(&edits[..], [Edit::Append(_, value)] if value.as_bytes() == b"\xe4"));
}

#[test]
fn a_refusal_has_the_status_the_headers_that_are_named_and_the_body() {
    let Answer::Refuses(plain) = read(status(7), None).unwrap() else { panic!("it refuses") };
    assert_eq!((plain.status, plain.headers.len(), plain.body.len()), (StatusCode::FORBIDDEN, 0, 0));
    let headers = vec![
        header("www-authenticate", b"Bearer"),
        header("x-secret", b"1"),
        header("set-cookie", b"a"),
        header("set-cookie", b"b"),
        header("content-type", b"text/html"),
    ];
    let Answer::Refuses(refused) = read(status(16), denied(Some(401), headers, "<p>no</p>")).unwrap() else {
        panic!("it refuses");
    };
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert_eq!(refused.headers.len(), 4);
    assert_eq!(refused.headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(refused.headers["content-type"], "text/html");
    assert_eq!(refused.body, "<p>no</p>");
    let message = format!("no\u{1b}[31m{}", "x".repeat(500));
    let Answer::Refuses(told) = read(Some(Status { code: 7, message }), None).unwrap() else { panic!("it refuses") };
    assert!(told.details.starts_with("no\\u{1b}[31m") && told.details.len() < 220, "{}", told.details);
}

#[test]
fn what_is_not_understood_is_no_answer() {
    for (status, response) in [
        (None, None),
        (None, denied(None, vec![], "")),
        (status(0), denied(None, vec![], "")),
        (status(7), ok(vec![], &[])),
    ] {
        assert!(matches!(read(status, response), Err(NoAnswer::Malformed(_))));
    }
    for code in [1, 100, 200, 299, 600, 65_536 + 403, -1] {
        let answer = read(status(7), denied(Some(code), vec![], ""));
        assert!(matches!(answer, Err(NoAnswer::Invalid(BadOutput::Status(_)))), "{code}");
    }
    let good = frame(&CheckResponse { status: status(0), http_response: None });
    let long = [&good[..], &good[..]].concat();
    let compressed = [&[1], &good[1..]].concat();
    for body in [&b""[..], &good[..4], &good[..good.len() - 1], &long, &compressed, &[0, 0, 0, 0, 1, 0xff]] {
        assert!(
            matches!(of_grpc(&spec(), Names::Listed(&spec().upstream_headers), &[], body), Err(NoAnswer::Malformed(_))),
            "{body:?}"
        );
    }
}

#[test]
fn headers_are_held_to_the_rules_of_a_sandbox() {
    let invalid = |response| matches!(read(status(0), response), Err(NoAnswer::Invalid(_)));
    assert!(invalid(ok(vec![header("x-user", b"a\r\nx-admin: 1")], &[])));
    assert!(invalid(ok(vec![], &["x-forwarded-client-cert"])));
    assert!(invalid(ok(vec![], &["Content-Length"])));
    assert!(invalid(ok(vec![header("x-user", b"a"); 257], &[])));
    assert!(read(status(0), ok(vec![header("host", b"elsewhere")], &[])).is_ok(), "nobody named it");
    let issuer = Issuer {
        name: String::new(),
        issuer: String::new(),
        audiences: vec![],
        keys: vec![],
        sources: vec![],
        clock_skew_ms: 0,
        forward: false,
        required: false,
        require_expiration: false,
        keys_pending: false,
        preflight: false,
        space_delimited_claims: vec![],
        claims_to_headers: vec![(vec!["sub".into()], "x-subject".into())],
    };
    let answer = CheckResponse { status: status(0), http_response: ok(vec![], &["X_Subject"]) };
    let answer = of_grpc(&spec(), Names::Listed(&spec().upstream_headers), &[issuer], &frame(&answer));
    assert!(matches!(answer, Err(NoAnswer::Invalid(BadOutput::Claim(_)))));
}

#[test]
fn over_http_200_allows_and_redirections_and_client_errors_refuse() {
    let mut headers = HeaderMap::new();
    headers.insert("x-user", HeaderValue::from_static("ann"));
    headers.insert("www-authenticate", HeaderValue::from_static("Bearer"));
    headers.insert("content-length", HeaderValue::from_static("2"));
    let read = |code: u16| {
        of_http(
            &spec(),
            Names::Listed(&spec().upstream_headers),
            &[],
            StatusCode::from_u16(code).unwrap(),
            &headers,
            Bytes::from("no"),
        )
    };
    assert_eq!(read(200).unwrap(), Answer::Allows(vec![append("x-user", "ann")]));
    for code in [302, 401, 403, 429] {
        let Answer::Refuses(refused) = read(code).unwrap() else { panic!("it refuses") };
        assert_eq!((refused.status.as_u16(), refused.headers.len(), &refused.body[..]), (code, 1, &b"no"[..]));
    }
    for code in [201, 204, 500, 503] {
        assert!(matches!(read(code), Err(NoAnswer::Status(_))), "{code}");
    }
}

/// Checks that each accepted answer can be put into a message.
fn check(answer: Result<Answer, NoAnswer>) {
    match answer {
        Ok(Answer::Allows(edits)) => {
            for edit in edits {
                match edit {
                    Edit::Append(name, _) => assert!(["x-user", "x-groups"].contains(&name.as_str())),
                    Edit::Remove(name) => assert!(!is_reserved(name.as_str())),
                    Edit::Set(name, _) => panic!("{name} is set"),
                }
            }
        }
        Ok(Answer::Refuses(refused)) => {
            assert!((300..=599).contains(&refused.status.as_u16()));
            let known = ["www-authenticate", "set-cookie", "content-type"];
            assert!(refused.headers.keys().all(|name| known.contains(&name.as_str())));
            assert!(refused.details.chars().all(|character| !character.is_control()));
        }
        Err(_) => {}
    }
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check(of_grpc(&spec(), Names::Listed(&spec().upstream_headers), &[], &bytes));
        // With a frame around them, they get as far as the message.
        let framed = [&[0][..], &u32::try_from(bytes.len()).unwrap().to_be_bytes(), &bytes].concat();
        check(of_grpc(&spec(), Names::Listed(&spec().upstream_headers), &[], &framed));
    }

    #[test]
    fn any_message_is_an_answer_or_none(
        code in prop::option::of(-1..20i32), allows in prop::option::of(any::<bool>()), status in -1..700i32,
        headers in prop::collection::vec(("(x-user|X-Groups|host|set-cookie|[ -~]{0,8})", prop::collection::vec(any::<u8>(), 0..8)), 0..8),
        removed in prop::collection::vec("(cookie|x-leno-a|[ -~]{0,8})", 0..4), message in ".{0,300}",
    ) {
        let headers = headers.iter().map(|(name, value)| header(name, value)).collect();
        let http_response = match allows {
            None => None,
            Some(true) => Some(HttpResponse::Ok(OkHttpResponse { headers, headers_to_remove: removed })),
            Some(false) => denied(Some(status), headers, &message),
        };
        let status = code.map(|code| Status { code, message });
        check(of_grpc(&spec(), Names::Listed(&spec().upstream_headers), &[], &frame(&CheckResponse { status, http_response })));
    }
}
