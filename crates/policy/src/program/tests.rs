use super::Program;
use crate::input::RequestInput;
use crate::outcome::{HeaderEdit, PolicyKind, Verdict};
use crate::path::{self, Readings};
use crate::sidecar;
use crate::spec::{
    Action, AuthorizationRule, Authorizer, Breaker, Condition, ConditionKey, Counts, Direction, HeaderRule, Matches,
    Operation, PathMatch, ProgramSpec, Protocol, QuotaAlgorithm, RateLimit, ResponseHeaderRule, Sidecar, StringMatch,
    Target, Tracing,
};
use crate::testing::{self, allowed, decide, denied, header, request};
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

fn sidecar(sidecar: Sidecar) -> ProgramSpec {
    ProgramSpec { sidecar: Sidecar { name: "p/sidecar".to_string(), ..sidecar }, ..testing::inbound() }
}

#[test]
fn ports_and_protocols() {
    let ports = || sidecar(Sidecar { ports: vec![80, 8080], ..Sidecar::default() });
    assert_eq!(allowed(ports(), &request()), "all");
    let denial = denied(ports(), &RequestInput { port: 81, ..request() });
    assert_eq!((denial.status, denial.policy, denial.rule.as_str()), (403, PolicyKind::Sidecar, "p/sidecar"));
    assert_eq!(denial.clause, "ports: 81 is none of [80, 8080]");
    let protocols = || sidecar(Sidecar { protocols: vec![Protocol::Http1, Protocol::Grpc], ..Sidecar::default() });
    assert_eq!(allowed(protocols(), &RequestInput { protocol: Protocol::Grpc, ..request() }), "all");
    for (protocol, name) in [(Protocol::Http2, "http2"), (Protocol::WebSocket, "websocket")] {
        let denial = denied(protocols(), &RequestInput { protocol, ..request() });
        assert_eq!(denial.clause, alloc::format!("protocols: {name} is none of [http1, grpc]"));
    }
}

fn set(name: &str, value: &str) -> HeaderRule {
    HeaderRule::Set(name.to_string(), value.to_string())
}

#[test]
fn a_function_does_not_take_a_clients_field_for_a_policys() {
    let rules =
        vec![set("x-tier", "gold"), HeaderRule::Remove("x-debug".to_string()), set("x_both", "1"), set("x-both", "2")];
    let spec = sidecar(Sidecar { request_headers: rules, ..Sidecar::default() });
    let sent = ["x_tier", "x-tier", "x_debug", "x_both", "x_other"];
    let input = RequestInput { headers: sent.iter().map(|name| header(name, "forged")).collect(), ..request() };
    let edits = decide(spec, &input).request_edits;
    let removed = ["x_tier", "x_debug"].map(|name| HeaderEdit::Remove(name.to_string()));
    assert_eq!(edits[4..], removed);
}

#[test]
fn header_rules() {
    let append = HeaderRule::Append("b".to_string(), "2".to_string());
    let remove = HeaderRule::Remove("c".to_string());
    let spec = sidecar(Sidecar { request_headers: vec![set("a", "1"), append, remove], ..Sidecar::default() });
    let expected = [
        HeaderEdit::Set("a".to_string(), "1".to_string()),
        HeaderEdit::Append("b".to_string(), "2".to_string()),
        HeaderEdit::Remove("c".to_string()),
    ];
    assert_eq!(decide(spec, &request()).request_edits, expected);

    let rule = |statuses: &[(u16, u16)], name: &str| ResponseHeaderRule {
        statuses: statuses.to_vec(),
        edits: vec![set(name, "1")],
    };
    let rules = vec![rule(&[], "all"), rule(&[(500, 599), (404, 404)], "bad"), rule(&[(200, 200)], "good")];
    let sidecar = Sidecar { response_headers: rules, ..Sidecar::default() };
    for (status, names) in
        [(200, vec!["all", "good"]), (404, vec!["all", "bad"]), (503, vec!["all", "bad"]), (301, vec!["all"])]
    {
        let edits = sidecar::response_edits(&sidecar, status);
        let expected: Vec<_> = names.iter().map(|name| HeaderEdit::Set(name.to_string(), "1".to_string())).collect();
        assert_eq!(edits, expected, "{status}");
    }
}

#[test]
fn the_path_that_is_matched_is_forwarded() {
    for (path, forwarded) in [
        ("/a/b?x=1", None),
        ("/a?", None),
        ("/a//b?x=//1", Some("/a/b?x=//1")),
        ("/%61", Some("/a")),
        ("/a/..?", Some("/?")),
        ("//?q=\u{fc}", Some("/?q=%C3%BC")),
    ] {
        let decision = decide(testing::inbound(), &RequestInput { path, ..request() });
        assert_eq!(decision.path.as_deref(), forwarded, "{path}");
    }
    assert_eq!(allowed(testing::inbound(), &RequestInput { path: "*", method: "OPTIONS", ..request() }), "all");
}

#[test]
fn requests_that_can_be_read_in_two_ways() {
    for (path, method, authority) in [
        ("/..", "GET", "a"),
        ("/a%2fb", "GET", "a"),
        ("*", "GET", "a"),
        ("", "CONNECT", "a:80"),
        ("/?a#b", "GET", "a"),
        ("/?a b", "GET", "a"),
        ("/", "GET", "user@a"),
        ("/", "GET", "a:b"),
    ] {
        let denial = denied(testing::inbound(), &RequestInput { path, method, authority, ..request() });
        assert_eq!((denial.status, denial.default), (400, false), "{path} {authority}");
    }
}

/// A function that gets paths as received.
fn as_received() -> ProgramSpec {
    let target = Target { as_received: true, ..testing::target("shop/orders") };
    ProgramSpec { targets: vec![target], ..testing::inbound() }
}

fn path_rule(name: &str, action: Action, path: &str) -> AuthorizationRule {
    let path = match path.strip_suffix('*') {
        Some(prefix) => StringMatch::Prefix(prefix.to_string()),
        None => StringMatch::Exact(path.to_string()),
    };
    let paths = Matches { any: vec![PathMatch::Text(path)], none: vec![] };
    AuthorizationRule { action, to: vec![Operation { paths, ..Operation::default() }], ..testing::rule(name) }
}

#[test]
fn a_path_goes_on_as_it_came_where_the_function_asks_for_that() {
    for path in ["/@scope%2fname", "/b/a//k%2Bv?x=//%2f", "/a/../b", "/%61;x", "//", "/a?", "/a?q=\u{fc}"] {
        let decision = decide(as_received(), &RequestInput { path, ..request() });
        assert_eq!((decision.path, decision.verdict), (None, Verdict::Allow { rule: "all".to_string() }), "{path}");
    }
    for path in ["/a%00", "/..", "/a\\b", "/?a#b", "*"] {
        assert_eq!(denied(as_received(), &RequestInput { path, ..request() }).status, 400, "{path}");
    }
}

#[test]
fn a_deny_rule_matches_a_normalised_path_in_each_spelling() {
    let spec = |rules: &[(&str, Action, &str)]| {
        let authorization = rules.iter().map(|(name, action, path)| path_rule(name, *action, path)).collect();
        ProgramSpec { authorization, ..testing::inbound() }
    };
    let deny = [("admin", Action::Deny, "/@admin*"), ("all", Action::Allow, "/*")];
    for path in ["/@admin", "/%40admin", "/a/../%40admin", "/%40admin%3Bx", "/%40admin;x"] {
        let denial = denied(spec(&deny), &RequestInput { path, ..request() });
        assert_eq!((denial.status, denial.rule.as_str(), denial.default), (403, "admin", false), "{path}");
    }
    assert_eq!(allowed(spec(&deny), &RequestInput { path: "/%2540admin", ..request() }), "all");
    // A rule that allows names the path as it is forwarded.
    let allow = [("encoded", Action::Allow, "/%40a"), ("plain", Action::Allow, "/@b")];
    assert_eq!(allowed(spec(&allow), &RequestInput { path: "/%40a", ..request() }), "encoded");
    assert_eq!(allowed(spec(&allow), &RequestInput { path: "/@b", ..request() }), "plain");
    for path in ["/@a", "/%40b"] {
        assert_eq!(denied(spec(&allow), &RequestInput { path, ..request() }).status, 403, "{path}");
    }
}

#[test]
fn every_reading_has_to_be_allowed() {
    let spec = |rules: &[(&str, Action, &str)]| {
        let authorization = rules.iter().map(|(name, action, path)| path_rule(name, *action, path)).collect();
        ProgramSpec { authorization, ..as_received() }
    };
    let deny = [("admin", Action::Deny, "/admin*"), ("all", Action::Allow, "/*")];
    for path in ["/a/..%2fadmin", "/a/%252e%252e/admin", "//admin", "/a/..;x/admin", "/%61dmin%3Bx", "/.%5cadmin"] {
        let denial = denied(spec(&deny), &RequestInput { path, ..request() });
        assert_eq!((denial.status, denial.rule.as_str(), denial.default), (403, "admin", false), "{path}");
    }
    assert_eq!(allowed(spec(&deny), &RequestInput { path: "/a%2Fadmin", ..request() }), "all");

    let only_raw = [("raw", Action::Allow, "/a%2Fb")];
    let denial = denied(spec(&only_raw), &RequestInput { path: "/a%2Fb", ..request() });
    assert_eq!((denial.rule.as_str(), denial.default), ("raw", true));
    assert_eq!(denial.clause, "to.paths: \"/a/b\" matches none of [\"/a%2Fb\"]");
    let both = [("raw", Action::Allow, "/a%2Fb"), ("split", Action::Allow, "/a/b")];
    for path in ["/a%2Fb", "/a%2fb"] {
        assert_eq!(allowed(spec(&both), &RequestInput { path, ..request() }), "raw", "{path}");
    }
    let health = [("health", Action::Allow, "/health")];
    let denial = denied(spec(&health), &RequestInput { path: "/he%61lth", ..request() });
    assert!(denial.default, "a server that does not decode sees another path");
}

/// The callee decides how it gets paths, for every caller.
#[test]
fn a_caller_sends_a_path_as_it_came_only_where_the_callee_asks_for_that() {
    let callee = Target { as_received: true, ..testing::target("shop/stock") };
    let spec = ProgramSpec { targets: vec![callee, testing::target("shop/mail")], ..outbound() };
    let decision = decide(spec.clone(), &RequestInput { target: "shop/stock", path: "/a%2Fb//c", ..request() });
    assert_eq!(decision.path, None);
    let decision = decide(spec.clone(), &RequestInput { target: "shop/mail", path: "/a//c", ..request() });
    assert_eq!(decision.path.as_deref(), Some("/a/c"));
    for target in ["shop/mail", ""] {
        assert_eq!(denied(spec.clone(), &RequestInput { target, path: "/a%2Fb", ..request() }).status, 400, "{target}");
    }
    let deny = path_rule("deny", Action::Deny, "/a/b");
    let spec = ProgramSpec { authorization: vec![deny], ..spec };
    assert_eq!(denied(spec, &RequestInput { target: "shop/stock", path: "/a%2Fb", ..request() }).rule, "deny");
}

fn outbound() -> ProgramSpec {
    let targets = vec![testing::target("shop/stock"), testing::target("shop/mail")];
    ProgramSpec { direction: Direction::Outbound, authorization: vec![], targets, ..testing::inbound() }
}

#[test]
fn callees() {
    assert_eq!(allowed(outbound(), &RequestInput { target: "shop/stock", ..request() }), "shop/orders/callees");
    for (target, words) in [
        ("shop/other", "`shop/other` is not among the callees: [shop/stock, shop/mail]"),
        ("", "the host names no function that may be called: [shop/stock, shop/mail]"),
    ] {
        let denial = denied(outbound(), &RequestInput { target, ..request() });
        assert_eq!((denial.status, denial.policy, denial.default), (403, PolicyKind::Sidecar, true));
        assert_eq!((denial.rule.as_str(), denial.clause.as_str()), ("shop/orders/callees", words));
    }
}

#[test]
fn a_decision_names_the_target_of_an_allowed_request() {
    let targets = vec![testing::target("shop/cart"), testing::target("shop/orders")];
    let two = ProgramSpec { targets, ..testing::inbound() };
    assert_eq!(decide(two.clone(), &request()).target, Some(1));
    let decision = decide(ProgramSpec { authorization: vec![], ..two }, &request());
    assert!(matches!(decision.verdict, Verdict::Deny(_)));
    assert_eq!((decision.target, decision.request_edits), (None, vec![]), "it is not forwarded");
}

#[test]
fn a_denied_request_takes_nothing_and_is_not_edited() {
    let mut spec = sidecar(Sidecar { request_headers: vec![set("a", "1")], ..Sidecar::default() });
    spec.authorization.clear();
    let decision = decide(spec, &RequestInput { headers: vec![header("x", "y")], ..request() });
    assert_eq!((decision.takes, decision.request_edits, decision.path), (vec![], vec![], None::<String>));
}

#[test]
fn an_inbound_program_is_for_its_own_function() {
    let denial = denied(testing::inbound(), &RequestInput { target: "shop/other", ..request() });
    assert_eq!(denial.status, 403);
    assert_eq!(allowed(testing::inbound(), &request()), "all");
}

#[test]
fn a_program_is_constant_if_no_request_can_change_its_verdict() {
    let constant = |spec: ProgramSpec| Program::new(spec).is_constant();
    let all = testing::inbound();
    assert!(constant(all.clone()));
    assert!(constant(ProgramSpec { authorization: vec![], ..all.clone() }), "denies everything");
    assert!(constant(outbound()));
    // The node does these itself.
    let breaker = Breaker { name: String::new(), max_connections: 1, max_pending: 1, max_requests: 1, outlier: None };
    let response_headers = vec![ResponseHeaderRule { statuses: vec![], edits: vec![set("a", "1")] }];
    for unchanging in [
        ProgramSpec { tracing: Tracing { enabled: true, ..all.tracing.clone() }, ..all.clone() },
        ProgramSpec { targets: vec![Target { breaker: Some(breaker), ..all.targets[0].clone() }], ..all.clone() },
        sidecar(Sidecar { response_headers, ..Sidecar::default() }),
    ] {
        assert!(constant(unchanging.clone()), "{unchanging:?}");
    }

    let mut deny = all.authorization[0].clone();
    deny.action = Action::Deny;
    let mut narrow = all.authorization[0].clone();
    narrow.to = vec![Operation { ports: Matches { any: vec![80], none: vec![] }, ..Operation::default() }];
    let limit = RateLimit {
        name: "limit".to_string(),
        counts: Counts::Requests,
        only: None,
        from: vec![],
        except: vec![],
        audit: false,
        key: vec![],
        algorithm: QuotaAlgorithm::FixedWindow { requests: 1, period_ms: 1000 },
    };
    for changing in [
        ProgramSpec { authorization: vec![all.authorization[0].clone(), deny], ..all.clone() },
        ProgramSpec { authorization: vec![narrow, all.authorization[0].clone()], ..all.clone() },
        ProgramSpec { authentication: vec![testing::issuer()], ..all.clone() },
        ProgramSpec { rate_limits: vec![limit], ..all.clone() },
        sidecar(Sidecar { ports: vec![80], ..Sidecar::default() }),
        sidecar(Sidecar { request_headers: vec![set("a", "1")], ..Sidecar::default() }),
    ] {
        assert!(!constant(changing.clone()), "{changing:?}");
    }
}

/// Two authorizers: one is asked about all requests, the other about all but those below `/open/`.
fn authorized() -> ProgramSpec {
    let authorizer = |name: &str, only, header: &str| Authorizer {
        name: name.to_string(),
        only,
        headers: vec![header.to_string()],
        audit: false,
    };
    let open = Matches { any: vec![], none: vec![PathMatch::Text(StringMatch::Prefix("/open/".to_string()))] };
    let closed = Operation { paths: open, ..Operation::default() };
    let authorizers = vec![authorizer("p/all", vec![], "x-user"), authorizer("p/some", vec![closed], "x-team")];
    ProgramSpec { authorizers, ..testing::inbound() }
}

#[test]
fn authorizers_are_asked_about_what_they_are_for() {
    assert!(!Program::new(authorized()).is_constant());
    // An authorizer is asked about a path with parameters if one of its readings matches.
    for (path, asks) in [
        ("/items/1", &[0, 1][..]),
        ("/open/1", &[0]),
        ("/open/1;a=b", &[0]),
        ("/open;a/1", &[0, 1]),
        ("/open/../items", &[0, 1]),
        ("/open/1?x=/items", &[0]),
    ] {
        let decision = decide(authorized(), &RequestInput { path, ..request() });
        assert_eq!((decision.asks.as_slice(), decision.target), (asks, Some(0)), "{path}");
    }
}

#[test]
fn nobody_is_asked_about_a_request_that_is_refused() {
    let unauthorized = ProgramSpec { authorization: vec![], ..authorized() };
    let other_port = ProgramSpec { sidecar: Sidecar { ports: vec![81], ..Sidecar::default() }, ..authorized() };
    for spec in [unauthorized, other_port] {
        let decision = decide(spec, &request());
        assert!(matches!(decision.verdict, Verdict::Deny(_)) && decision.asks.is_empty());
    }
}

#[test]
fn what_an_answer_may_set_is_gone_before_rules_look_at_it() {
    let sent = vec![header("x-user", "root"), header("x_team", "root"), header("x-other", "1")];
    for path in ["/items", "/open/1"] {
        let decision = decide(authorized(), &RequestInput { path, headers: sent.clone(), ..request() });
        let removed = ["x-user", "x-team", "x_team"].map(|name| HeaderEdit::Remove(name.to_string()));
        assert_eq!(decision.request_edits, removed, "{path}");
    }
    let mut spec = authorized();
    spec.authorization[0].when = vec![Condition {
        key: ConditionKey::Header("x-user".to_string()),
        values: Matches { any: vec![StringMatch::Exact("root".to_string())], none: vec![] },
    }];
    assert_eq!(denied(spec, &RequestInput { headers: sent, ..request() }).rule, "all");
}

proptest! {
    /// The verdict of each reading of an allowed path by itself, for a function that gets
    /// normalised paths and for one that gets paths as received.
    #[test]
    fn no_reading_of_an_allowed_request_is_denied(
        path in r"/(/|\.\.|%2e|%2F|%5c|%252F|a|b|%61|;|%3b){0,8}",
        rules in proptest::collection::vec((any::<bool>(), r"/(a|b|/){0,3}\*?"), 0..6),
    ) {
        let rules = rules.iter().filter_map(|(deny, path)| {
            let action = if *deny { Action::Deny } else { Action::Allow };
            let normal = path::normalise(path).is_ok_and(|normal| normal == path.as_str());
            normal.then(|| path_rule(path, action, path))
        });
        let mut authorization: Vec<_> = rules.collect();
        authorization.push(path_rule("all", Action::Allow, "/a*"));
        let spec = ProgramSpec { authorization, ..as_received() };
        let strict = ProgramSpec { targets: vec![testing::target("shop/orders")], ..spec.clone() };
        let decision = decide(spec.clone(), &RequestInput { path: &path, ..request() });
        if matches!(decision.verdict, Verdict::Allow { .. }) {
            prop_assert_eq!(decision.path, None);
            for reading in Readings::as_received(&path).unwrap().iter() {
                allowed(spec.clone(), &RequestInput { path: reading, ..request() });
                if path::normalise(reading).is_ok() {
                    allowed(strict.clone(), &RequestInput { path: reading, ..request() });
                }
            }
        }
    }
}
