use super::*;
use std::time::Duration;

fn list(items: &[&str]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

fn cors(origins: &[&str]) -> Cors {
    Cors {
        allow_origins: list(origins),
        allow_credentials: false,
        allow_methods: list(&["GET", "PUT"]),
        allow_headers: list(&["x-one", "x-two"]),
        expose_headers: list(&["x-three"]),
        max_age: Duration::from_secs(5),
    }
}

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap());
    }
    headers
}

/// The fields but for `vary`, sorted.
fn shown(headers: &HeaderMap) -> Vec<String> {
    let fields = headers.iter().filter(|(name, _)| **name != VARY);
    let mut shown: Vec<String> = fields
        .map(|(name, value)| {
            format!("{}: {}", name.as_str().trim_start_matches("access-control-"), value.to_str().unwrap())
        })
        .collect();
    shown.sort();
    shown
}

fn asks(origin: &str) -> HeaderMap {
    let method = ("access-control-request-method", "PUT");
    headers(&[("origin", origin), method, ("access-control-request-headers", "x-one, x-nine")])
}

#[test]
fn origins_match_their_patterns() {
    for (pattern, origin, matches) in [
        ("https://shop.example", "https://shop.example", true),
        ("https://shop.example", "https://SHOP.example", true),
        ("https://shop.example", "http://shop.example", false),
        ("https://shop.example", "https://shop.example:443", true),
        ("https://shop.example:443", "https://shop.example", true),
        ("https://shop.example", "https://shop.example:8443", false),
        ("https://shop.example:8443", "https://shop.example:8443", true),
        ("http://shop.example", "http://shop.example:80", true),
        ("https://shop.example", "https://shop.example.evil.example", false),
        ("https://shop.example", "https://evilshop.example", false),
        ("https://*.shop.example", "https://a.shop.example", true),
        ("https://*.shop.example", "https://a.b.shop.example", true),
        ("https://*.shop.example", "https://shop.example", false),
        ("https://*.shop.example", "https://.shop.example", false),
        ("https://*.shop.example", "https://evilshop.example", false),
        ("https://*.shop.example", "https://evil.example/.shop.example", false),
        ("https://*.shop.example:8443", "https://a.shop.example:8443", true),
        ("https://*.shop.example:8443", "https://a.shop.example", false),
        ("https://*", "https://anything.example", true),
        ("https://*", "http://anything.example", false),
        ("https://*", "https://anything.example:8443", false),
        ("http://*:8080", "http://[::1]:8080", true),
        ("*", "null", true),
        ("https://*", "null", false),
        ("https://*", "", false),
        ("https://*", "https://", false),
        ("https://*", "https://a:b", false),
    ] {
        let found = allowed_origin(&cors(&[pattern]), &headers(&[("origin", origin)])).is_some();
        assert_eq!(found, matches, "{pattern} {origin}");
    }
    let several = headers(&[("origin", "https://a.example"), ("origin", "https://b.example")]);
    assert!(allowed_origin(&cors(&["https://a.example", "https://b.example"]), &several).is_none());
    assert!(allowed_origin(&cors(&[]), &asks("https://a.example")).is_none());
}

#[test]
fn preflight_requests_are_those_of_fetch() {
    let request = asks("https://a.example");
    assert!(is_preflight(&Method::OPTIONS, &request));
    assert!(!is_preflight(&Method::PUT, &request));
    assert!(!is_preflight(&Method::OPTIONS, &headers(&[("origin", "https://a.example")])));
    assert!(!is_preflight(&Method::OPTIONS, &headers(&[("access-control-request-method", "PUT")])));
}

#[test]
fn preflight_answers_list_what_is_allowed() {
    let (status, answer) = preflight(&cors(&["https://a.example"]), &asks("https://a.example"));
    assert_eq!(status, StatusCode::NO_CONTENT);
    let fields = [
        "allow-headers: x-one, x-two",
        "allow-methods: GET, PUT",
        "allow-origin: https://a.example",
        "expose-headers: x-three",
        "max-age: 5",
    ];
    assert_eq!(shown(&answer), fields);
    assert!(varies_by_origin(&answer));

    let (status, answer) = preflight(&cors(&["https://a.example"]), &asks("https://b.example"));
    assert_eq!((status, shown(&answer)), (StatusCode::FORBIDDEN, vec![]));
    assert!(varies_by_origin(&answer));
}

#[test]
fn wildcards_are_sent_only_without_credentials() {
    let any =
        Cors { allow_methods: list(&["*"]), allow_headers: list(&["*"]), expose_headers: list(&["*"]), ..cors(&["*"]) };
    let (_, answer) = preflight(&any, &asks("https://a.example"));
    let fields = ["allow-headers: *", "allow-methods: *", "allow-origin: *", "expose-headers: *", "max-age: 5"];
    assert_eq!(shown(&answer), fields);
    assert!(!answer.contains_key(VARY));

    let any = Cors { allow_credentials: true, ..any };
    let mut request = asks("https://a.example");
    let (_, answer) = preflight(&any, &request);
    let fields = [
        "allow-credentials: true",
        "allow-headers: x-one, x-nine",
        "allow-methods: PUT",
        "allow-origin: https://a.example",
        "max-age: 5",
    ];
    assert_eq!(shown(&answer), fields);
    assert!(varies_by_origin(&answer));
    request.remove(ACCESS_CONTROL_REQUEST_HEADERS);
    assert!(!preflight(&any, &request).1.contains_key(ACCESS_CONTROL_ALLOW_HEADERS));

    let mut answer = headers(&[("content-type", "text/plain"), ("x-nine", "9"), ("set-cookie", "a=b")]);
    response(&any, &request, &mut answer);
    let fields = [
        "allow-credentials: true",
        "allow-origin: https://a.example",
        "content-type: text/plain",
        "expose-headers: content-type, vary, x-nine",
        "set-cookie: a=b",
        "x-nine: 9",
    ];
    assert_eq!(shown(&answer), fields);
}

#[test]
fn lists_that_are_empty_are_left_out() {
    let none = Cors { allow_methods: vec![], allow_headers: vec![], expose_headers: vec![], ..cors(&["*"]) };
    assert_eq!(shown(&preflight(&none, &asks("https://a.example")).1), ["allow-origin: *", "max-age: 5"]);
}

#[test]
fn the_gateway_alone_decides_about_responses() {
    let own = [("access-control-allow-origin", "*"), ("access-control-allow-credentials", "true")];
    for (origin, expected) in [
        ("https://a.example", vec!["allow-origin: https://a.example", "expose-headers: x-three"]),
        ("https://b.example", vec![]),
    ] {
        let mut answer = headers(&own);
        response(&cors(&["https://a.example"]), &asks(origin), &mut answer);
        assert_eq!(shown(&answer), expected);
        assert_eq!(answer.get_all(VARY).iter().count(), 1);
        response(&cors(&["https://a.example"]), &asks(origin), &mut answer);
        assert_eq!(answer.get_all(VARY).iter().count(), 1);
    }
    let mut answer = headers(&[("vary", "accept, Origin")]);
    response(&cors(&["https://a.example"]), &HeaderMap::new(), &mut answer);
    assert_eq!(answer, headers(&[("vary", "accept, Origin")]));
}

#[test]
fn without_credentials_no_page_reads_the_response_to_a_request_that_has_them() {
    for field in [("cookie", "a=b"), ("authorization", "Bearer x")] {
        let request = headers(&[("origin", "https://a.example"), field]);
        let answered = |cors: Cors| {
            let mut answer = HeaderMap::new();
            response(&cors, &request, &mut answer);
            answer.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN)
        };
        assert!(!answered(cors(&["*"])) && !answered(cors(&["https://a.example"])));
        assert!(answered(Cors { allow_credentials: true, ..cors(&["*"]) }));
    }
}
