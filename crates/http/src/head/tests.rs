use super::*;
use http::Request;

fn head(request: http::request::Builder) -> request::Parts {
    request.body(()).unwrap().into_parts().0
}

fn http1(target: &str, headers: &[(&str, &str)]) -> request::Parts {
    let request = Request::builder().version(Version::HTTP_11).uri(target);
    head(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)))
}

fn http2(target: &str, headers: &[(&str, &str)]) -> request::Parts {
    let mut head = http1(target, headers);
    head.version = Version::HTTP_2;
    head
}

fn names(headers: &HeaderMap) -> Vec<String> {
    let mut names: Vec<_> = headers.keys().map(|name| name.to_string()).collect();
    names.sort();
    names
}

#[test]
fn hosts() {
    let refused = |mut head: request::Parts| admit(&mut head, TrafficDirection::Gateway).unwrap_err();
    assert_eq!(refused(http1("/", &[])), HeadError::Host);
    assert_eq!(refused(http1("/", &[("host", "a"), ("host", "a")])), HeadError::Host);
    assert_eq!(refused(http1("http://a/", &[])), HeadError::Host);
    for bad in [
        "a b", "user@a", "a:b", "a:99999", "a/b", "a?b", "a#b", "a,b", "[::1", "[x]", "a:1:2", "ä", "a\\b", "a..",
        "a..b", ".a", ".", "[::1].", "[:::]",
    ] {
        let value = HeaderValue::from_bytes(bad.as_bytes()).unwrap();
        let mut head = http1("/", &[]);
        head.headers.insert(header::HOST, value);
        assert_eq!(refused(head), HeadError::Authority, "{bad}");
    }
    for good in ["a", "a:80", "a.b-c_d", "[::1]", "[::1]:8080", "10.0.0.1:1", "a:", "a.", "a.:80", "A.B."] {
        let mut head = http1("/", &[("host", good)]);
        admit(&mut head, TrafficDirection::Gateway).unwrap();
        assert_eq!(authority(&head), good);
    }
    let mut old = http1("/", &[]);
    old.version = Version::HTTP_10;
    admit(&mut old, TrafficDirection::Gateway).unwrap();
    assert_eq!(authority(&old), "");
}

#[test]
fn the_absolute_form_decides() {
    let mut head = http1("http://right:81/x?y", &[("host", "wrong")]);
    admit(&mut head, TrafficDirection::Outbound).unwrap();
    assert_eq!((authority(&head), head.uri.to_string()), ("right:81", "/x?y".to_owned()));
    assert_eq!(head.headers.get(header::HOST).unwrap(), "right:81");
    let mut userinfo = http1("http://user@right/", &[("host", "right")]);
    assert_eq!(admit(&mut userinfo, TrafficDirection::Outbound), Err(HeadError::Authority));
}

#[test]
fn http2_authorities_agree() {
    let mut same = http2("http://Name/x", &[("host", "name")]);
    admit(&mut same, TrafficDirection::Gateway).unwrap();
    assert_eq!((authority(&same), same.headers.contains_key(header::HOST)), ("Name", false));
    for (authority, host) in [("name.:80", "NAME:80"), ("[0::1]", "[::1]")] {
        let mut same = http2(&format!("http://{authority}/x"), &[("host", host)]);
        admit(&mut same, TrafficDirection::Gateway).unwrap_or_else(|error| panic!("{authority} {host}: {error:?}"));
    }
    for (authority, other) in [("name", "other"), ("name", "name:80"), ("name:80", "name:81"), ("[::1]", "[::2]")] {
        let mut other = http2(&format!("http://{authority}/x"), &[("host", other)]);
        assert_eq!(admit(&mut other, TrafficDirection::Gateway), Err(HeadError::TwoAuthorities));
    }
}

#[test]
fn targets_and_methods() {
    let with = |method: Method, target: &str| {
        let mut head = http1(target, &[("host", "a")]);
        head.method = method;
        admit(&mut head, TrafficDirection::Gateway).map(|_| ())
    };
    assert_eq!(with(Method::OPTIONS, "*"), Ok(()));
    assert_eq!(with(Method::GET, "*"), Err(HeadError::Target));
    assert_eq!(with(Method::GET, "a"), Err(HeadError::Target));
    assert_eq!(with(Method::TRACE, "/"), Err(HeadError::Method));
    assert_eq!(with(Method::CONNECT, "a:80"), Err(HeadError::Method));
}

#[test]
fn hop_by_hop_fields_end_here() {
    let mut head = http1(
        "/",
        &[
            ("host", "a"),
            ("connection", "close, X-Private"),
            ("connection", "host, content-length"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic eDp5"),
            ("te", "gzip, trailers;q=0.5"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("content-length", "3"),
            ("accept", "*/*"),
        ],
    );
    let admitted = admit(&mut head, TrafficDirection::Gateway).unwrap();
    assert_eq!(admitted, RequestKind { protocol: Protocol::Http1, upgrade: false });
    assert_eq!(names(&head.headers), ["accept", "content-length", "host", "te"]);
    assert_eq!(head.headers.get(header::TE).unwrap(), "trailers");
}

#[test]
fn only_the_mesh_says_who_is_calling() {
    let forged = [
        ("host", "a"),
        ("x-forwarded-client-cert", "URI=spiffe://x"),
        ("x-leno-protocol", "grpc"),
        ("x-leno-anything", "1"),
        ("x-forwarded-for", "10.0.0.1"),
        ("x-forwarded-proto", "https"),
        ("x-real-ip", "10.0.0.1"),
        ("forwarded", "for=10.0.0.1"),
    ];
    let mut external = http1("/", &forged);
    assert_eq!(admit(&mut external, TrafficDirection::Gateway).unwrap().protocol, Protocol::Http1);
    assert_eq!(names(&external.headers), ["host"]);
    let mut inside = http1("/", &forged);
    admit(&mut inside, TrafficDirection::Outbound).unwrap();
    assert_eq!(names(&inside.headers), ["forwarded", "host", "x-forwarded-for", "x-forwarded-proto", "x-real-ip"]);
    let id = HeaderValue::from_static("id");
    finalize_request(&mut inside.headers, "spiffe://td/ns/n/sa/callee", Some("spiffe://td/ns/n/sa/caller"), &id);
    let expected = "By=spiffe://td/ns/n/sa/callee;URI=spiffe://td/ns/n/sa/caller";
    assert_eq!(inside.headers.get(CLIENT_CERT).unwrap(), expected);
    assert_eq!(inside.headers.get(REQUEST_ID).unwrap(), "id");
    finalize_request(&mut inside.headers, "spiffe://td/ns/n/sa/callee", None, &id);
    assert!(!inside.headers.contains_key(CLIENT_CERT));
    let mut hop = http1("/", &forged);
    assert_eq!(admit(&mut hop, TrafficDirection::Inbound).unwrap().protocol, Protocol::Grpc);
}

/// CGI and WSGI make one variable of a field and its twin with underscores.
#[test]
fn twins_of_what_the_mesh_says_are_removed() {
    let twins = [
        ("host", "a"),
        ("x_forwarded_client_cert", "URI=spiffe://x"),
        ("x-leno_caller", "x"),
        ("x_request-id", "x"),
        ("x_forwarded_for", "10.0.0.1"),
        ("proxy", "http://10.0.0.1"),
        ("x_real_ip", "10.0.0.1"),
        ("x_custom", "1"),
    ];
    let mut external = http1("/", &twins);
    admit(&mut external, TrafficDirection::Gateway).unwrap();
    assert_eq!(names(&external.headers), ["host", "x_custom"]);
    for direction in [TrafficDirection::Outbound, TrafficDirection::Inbound] {
        let mut inside = http1("/", &twins);
        admit(&mut inside, direction).unwrap();
        assert_eq!(names(&inside.headers), ["host", "x_custom", "x_real_ip"]);
    }
}

#[test]
fn what_other_proxies_say_of_a_client_stays_outside() {
    let said = [
        ("host", "a"),
        ("x-forwarded-user", "ann"),
        ("x-forwarded-prefix", "/x"),
        ("x-envoy-original-path", "/admin"),
        ("x-original-url", "/admin"),
        ("x-rewrite-url", "/admin"),
        ("true-client-ip", "10.0.0.1"),
        ("cf-connecting-ip", "10.0.0.1"),
        ("x-http-method-override", "DELETE"),
    ];
    let mut external = http1("/", &said);
    admit(&mut external, TrafficDirection::Gateway).unwrap();
    assert_eq!(names(&external.headers), ["host", "x-http-method-override"]);
    let mut inside = http1("/", &said);
    admit(&mut inside, TrafficDirection::Outbound).unwrap();
    assert_eq!(inside.headers.len(), said.len());
}

#[test]
fn the_gateway_describes_the_client() {
    let mut head = http1("/", &[("host", "a"), ("x-forwarded-for", "1.2.3.4")]);
    admit(&mut head, TrafficDirection::Gateway).unwrap();
    describe_client(&mut head.headers, &address_value("::ffff:192.0.2.7".parse().unwrap()), "https");
    assert_eq!(head.headers.get(FORWARDED_FOR).unwrap(), "192.0.2.7");
    assert_eq!(head.headers.get(FORWARDED_PROTO).unwrap(), "https");
}

#[test]
fn protocols() {
    let protocol = |mut head: request::Parts| admit(&mut head, TrafficDirection::Gateway).unwrap();
    let grpc = |value| protocol(http2("http://a/x", &[("content-type", value)])).protocol;
    assert_eq!(grpc("application/grpc"), Protocol::Grpc);
    assert_eq!(grpc("application/grpc+proto"), Protocol::Grpc);
    assert_eq!(grpc("application/grpc-web"), Protocol::Http2);
    let websocket = [("host", "a"), ("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")];
    let mut head = http1("/", &websocket);
    let admitted = admit(&mut head, TrafficDirection::Gateway).unwrap();
    assert_eq!(admitted, RequestKind { protocol: Protocol::WebSocket, upgrade: true });
    assert_eq!(head.headers.get(header::CONNECTION).unwrap(), "upgrade");
    let mut post = http1("/", &websocket);
    post.method = Method::POST;
    assert!(!protocol(post).upgrade);
}

#[test]
fn expectations() {
    let mut known = http1("/", &[("host", "a"), ("expect", "100-Continue")]);
    admit(&mut known, TrafficDirection::Gateway).unwrap();
    assert!(!known.headers.contains_key(header::EXPECT));
    let mut unknown = http1("/", &[("host", "a"), ("expect", "tea")]);
    assert_eq!(admit(&mut unknown, TrafficDirection::Gateway), Err(HeadError::Expectation));
}

#[test]
fn split_cookies_are_joined() {
    let mut head = http2("http://a/", &[("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")]);
    admit(&mut head, TrafficDirection::Gateway).unwrap();
    let cookies: Vec<_> = head.headers.get_all(header::COOKIE).iter().collect();
    assert_eq!(cookies, ["a=1; b=2; c=3"]);
    // A value with blanks at its end is malformed in HTTP/2.
    let mut empty = http2("http://a/", &[("cookie", ""), ("cookie", "a=1"), ("cookie", " "), ("cookie", "")]);
    admit(&mut empty, TrafficDirection::Gateway).unwrap();
    assert_eq!(empty.headers.get(header::COOKIE).unwrap(), "a=1");
}

#[test]
fn both_versions_from_both() {
    let mut to1 = http2("http://name:81/x?y", &[]);
    into_http1(&mut to1, true);
    assert_eq!(
        (to1.uri.to_string().as_str(), to1.headers.get(header::HOST).unwrap()),
        ("/x?y", &HeaderValue::from_static("name:81"))
    );
    let mut to2 = http1("/x?y", &[("host", "name:81")]);
    into_http2(&mut to2, &Scheme::HTTP).unwrap();
    assert_eq!(to2.uri.to_string(), "http://name:81/x?y");
    assert!(!to2.headers.contains_key(header::HOST));
    let mut unframed = http2("http://name/", &[]);
    into_http1(&mut unframed, false);
    assert_eq!(unframed.headers.get(header::TRANSFER_ENCODING).unwrap(), "chunked");
}

#[test]
fn authorities_are_split() {
    assert_eq!(split_authority("a"), ("a", None));
    assert_eq!(split_authority("a:80"), ("a", Some(80)));
    assert_eq!(split_authority("[::1]"), ("[::1]", None));
    assert_eq!(split_authority("[::1]:80"), ("[::1]", Some(80)));
    assert_eq!(split_authority("a:"), ("a", None));
}

#[test]
fn request_ids() {
    let sane = |text: &'static str| is_sane_request_id(&HeaderValue::from_static(text));
    assert!(sane("0b7c6a9e-1f0d-4b6e-9d1e-8b6a4b1d2c3e"));
    assert!(!sane(""));
    assert!(!sane("a b"));
    assert!(!sane("<script>"));
    assert!(!is_sane_request_id(&HeaderValue::from_str(&"a".repeat(129)).unwrap()));
}

#[test]
fn responses_are_cleaned_and_named() {
    let response = http::Response::builder()
        .header("connection", "x-private")
        .header("x-private", "1")
        .header("keep-alive", "timeout=5")
        .header("transfer-encoding", "chunked")
        .header("x-leno-secret", "1")
        .header("content-type", "text/plain");
    let mut head = response.body(()).unwrap().into_parts().0;
    sanitize_response(&mut head, &HeaderValue::from_static("id"), false);
    assert_eq!(names(&head.headers), ["content-type", "x-request-id"]);
}
