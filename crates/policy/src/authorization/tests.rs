use crate::input::RequestInput;
use crate::matching;
use crate::outcome::{Denial, PolicyKind};
use crate::spec::{
    Action, AuthorizationRule, Cidr, Condition, ConditionKey, Direction, Matches, Operation, PathMatch, PrincipalMatch,
    ProgramSpec, Segment, Source, StringMatch,
};
use crate::testing::{self, allowed, denied, header, request};
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

/// `abc`, `abc*`, `*abc`, `*`.
fn text(text: &str) -> StringMatch {
    match (text.strip_prefix('*'), text.strip_suffix('*')) {
        (Some(""), _) => StringMatch::Present,
        (Some(rest), _) => StringMatch::Suffix(rest.to_string()),
        (_, Some(rest)) => StringMatch::Prefix(rest.to_string()),
        _ => StringMatch::Exact(text.to_string()),
    }
}

fn any(texts: &[&str]) -> Matches<StringMatch> {
    Matches { any: texts.iter().map(|one| text(one)).collect(), none: Vec::new() }
}

fn none(texts: &[&str]) -> Matches<StringMatch> {
    Matches { any: Vec::new(), none: texts.iter().map(|one| text(one)).collect() }
}

fn paths(texts: &[&str]) -> Matches<PathMatch> {
    Matches { any: texts.iter().map(|one| PathMatch::Text(text(one))).collect(), none: Vec::new() }
}

fn from(name: &str, source: Source) -> AuthorizationRule {
    AuthorizationRule { from: vec![source], ..testing::rule(name) }
}

fn to(name: &str, operation: Operation) -> AuthorizationRule {
    AuthorizationRule { to: vec![operation], ..testing::rule(name) }
}

fn when(name: &str, key: ConditionKey, values: Matches<StringMatch>) -> AuthorizationRule {
    AuthorizationRule { when: vec![Condition { key, values }], ..testing::rule(name) }
}

fn deny(rule: AuthorizationRule) -> AuthorizationRule {
    AuthorizationRule { action: Action::Deny, ..rule }
}

fn spec(rules: Vec<AuthorizationRule>) -> ProgramSpec {
    ProgramSpec { authorization: rules, ..testing::inbound() }
}

fn clause(rules: Vec<AuthorizationRule>, input: &RequestInput<'_>) -> String {
    let denial = denied(spec(rules), input);
    assert_eq!((denial.status, denial.policy, denial.default), (403, PolicyKind::Authorization, true));
    denial.clause
}

const CALLER: &str = "spiffe://shop.example/ns/shop/sa/web";

fn by(identity: &'static str) -> RequestInput<'static> {
    let mut input = request();
    input.peer.identity = Some(identity);
    input
}

#[test]
fn without_rules_everything_is_denied() {
    let Denial { rule, default, clause, .. } = denied(spec(vec![]), &request());
    assert_eq!((rule.as_str(), default, clause.as_str()), ("", true, "no rule allows anything"));
    let only_deny = vec![deny(to("d", Operation { methods: any(&["POST"]), ..Operation::default() }))];
    assert_eq!(denied(spec(only_deny), &request()).rule, "", "deny rules allow nothing");
}

#[test]
fn deny_rules_come_before_allow_rules() {
    let rules =
        || vec![testing::rule("all"), deny(to("d", Operation { paths: paths(&["/admin*"]), ..Operation::default() }))];
    assert_eq!(allowed(spec(rules()), &request()), "all");
    let mut input = request();
    input.path = "/admin";
    let denial = denied(spec(rules()), &input);
    assert_eq!((denial.rule.as_str(), denial.default), ("d", false));
    assert_eq!(denial.clause, r#"the deny rule matches "GET" "/admin""#);
}

#[test]
fn identities() {
    let rules = |identities| vec![from("r", Source { identities, ..Source::default() })];
    for (identities, input, holds) in [
        (any(&[CALLER]), by(CALLER), true),
        (any(&[CALLER]), by("spiffe://shop.example/ns/shop/sa/web2"), false),
        (any(&[CALLER]), by("spiffe://shop.example/ns/shop/sa/WEB"), false),
        (any(&["spiffe://shop.example/ns/shop/*"]), by(CALLER), true),
        (any(&["*"]), by(CALLER), true),
        (any(&["*"]), request(), false),
        (any(&[CALLER]), request(), false),
        (none(&[CALLER]), by(CALLER), false),
        (none(&[CALLER]), by("spiffe://shop.example/ns/x/sa/y"), true),
        (none(&[CALLER]), request(), true),
    ] {
        let spec = spec(rules(identities.clone()));
        assert_eq!(
            testing::decide(spec, &input).verdict == crate::outcome::Verdict::Allow { rule: "r".to_string() },
            holds,
            "{identities:?} {:?}",
            input.peer
        );
    }
    assert_eq!(
        clause(rules(any(&["a", "b*"])), &request()),
        r#"from.identities: the peer has no identity; expected one of ["a", "b*"]"#
    );
    assert_eq!(clause(rules(none(&["*"])), &by(CALLER)), format_excluded());
}

fn format_excluded() -> String {
    alloc::format!("from.identities: \"{CALLER}\" is excluded by [\"*\"]")
}

#[test]
fn a_deny_rule_for_all_but_some_denies_whoever_is_not_known() {
    let rules =
        vec![testing::rule("all"), deny(from("d", Source { identities: none(&[CALLER]), ..Source::default() }))];
    assert_eq!(allowed(spec(rules.clone()), &by(CALLER)), "all");
    assert_eq!(denied(spec(rules), &request()).rule, "d");
}

#[test]
fn namespaces_and_addresses() {
    let namespace = |name| vec![from("r", Source { namespaces: any(&[name]), ..Source::default() })];
    assert_eq!(allowed(spec(namespace("shop")), &by(CALLER)), "r");
    assert_eq!(clause(namespace("sho"), &by(CALLER)), r#"from.namespaces: "shop" matches none of ["sho"]"#);
    assert!(clause(namespace("*"), &by("spiffe://shop.example/other")).contains("the peer has no namespace"));

    let block = Cidr { address: "10.0.0.0".parse().unwrap(), prefix: 8 };
    let inside = Source { addresses: Matches { any: vec![block], none: vec![] }, ..Source::default() };
    let excluding = Source { addresses: Matches { any: vec![], none: vec![block] }, ..Source::default() };
    let mut input = request();
    assert_eq!(
        clause(vec![from("r", inside.clone())], &input),
        "from.addresses: 127.0.0.1 matches none of [10.0.0.0/8]"
    );
    assert_eq!(allowed(spec(vec![from("r", excluding.clone())]), &input), "r");
    input.peer.address = Some("::ffff:10.1.2.3".parse().unwrap());
    assert_eq!(allowed(spec(vec![from("r", inside)]), &input), "r");
    assert!(clause(vec![from("r", excluding)], &input).contains("is excluded by [10.0.0.0/8]"));
}

#[test]
fn methods_hosts_and_ports() {
    let one = |operation: Operation| vec![to("r", operation)];
    let methods = one(Operation { methods: any(&["POST"]), ..Operation::default() });
    assert_eq!(clause(methods.clone(), &request()), r#"to.methods: "GET" matches none of ["POST"]"#);
    let mut input = request();
    input.method = "POST";
    assert_eq!(allowed(spec(methods.clone()), &input), "r");
    input.method = "post";
    assert!(clause(methods, &input).contains("\"post\""), "methods have case");

    for (configured, authority, holds) in [
        ("shop.example", "SHOP.example:8080", true),
        ("Shop.Example", "shop.example.", true),
        ("*.example", "shop.example", true),
        ("*.example", "example", false),
        ("shop.*", "shop.other", true),
        ("[::1]", "[0:0::1]:80", true),
        ("*", "anything", true),
        ("*", "", false),
    ] {
        let rules = one(Operation { hosts: any(&[configured]), ..Operation::default() });
        let mut input = request();
        input.authority = authority;
        let verdict = testing::decide(spec(rules), &input).verdict;
        assert_eq!(matches!(verdict, crate::outcome::Verdict::Allow { .. }), holds, "{configured} {authority}");
    }

    let ports = one(Operation { ports: Matches { any: vec![8080], none: vec![] }, ..Operation::default() });
    assert_eq!(clause(ports.clone(), &request()), "to.ports: 80 matches none of [8080]");
    input = request();
    input.port = 8080;
    assert_eq!(allowed(spec(ports), &input), "r");
}

#[test]
fn paths_are_compared_in_their_normal_form() {
    let admin =
        || vec![testing::rule("all"), deny(to("d", Operation { paths: paths(&["/admin/*"]), ..Operation::default() }))];
    for path in [
        "/admin/x",
        "/%61dmin/x",
        "//admin//x",
        "/a/../admin/x",
        "/./admin/./x",
        "/a/%2e%2E/admin/x?q=1",
        "/admin;y/x",
        "/admin/;=x;y",
    ] {
        let mut input = request();
        input.path = path;
        let denial = denied(spec(admin()), &input);
        assert!(denial.rule == "d" || denial.status == 400, "{path}: {denial:?}");
    }
    let orders = PathMatch::Template(vec![Segment::Literal("orders".to_string()), Segment::One("id".to_string())]);
    let template =
        vec![to("r", Operation { paths: Matches { any: vec![orders], none: vec![] }, ..Operation::default() })];
    let mut input = request();
    input.path = "/orders/7?x=/admin";
    assert_eq!(allowed(spec(template.clone()), &input), "r");
    input.path = "/orders/7/8";
    assert_eq!(clause(template, &input), r#"to.paths: "/orders/7/8" matches none of ["/orders/{id}"]"#);
}

#[test]
fn a_path_with_parameters_must_be_allowed_under_both_readings() {
    let rules = |text| vec![to("r", Operation { paths: paths(&[text]), ..Operation::default() })];
    let mut input = request();
    input.path = "/files;v=1/a";
    assert_eq!(allowed(spec(rules("/files*")), &input), "r");
    denied(spec(rules("/files/*")), &input);
    denied(spec(rules("/files;v=1/*")), &input);
    let except = Operation {
        paths: Matches { none: paths(&["/files/secret*"]).any, ..paths(&["/files*"]) },
        ..Operation::default()
    };
    input.path = "/files;v=1/secret";
    assert!(clause(vec![to("r", except)], &input).contains("is excluded by"));
}

#[test]
fn headers() {
    let one = |values| vec![when("r", ConditionKey::Header("x-team".to_string()), values)];
    let with = |values: &[&'static str]| {
        let mut input = request();
        input.headers = values.iter().map(|value| header("x-team", value)).collect();
        input
    };
    assert_eq!(allowed(spec(one(any(&["a"]))), &with(&["a"])), "r");
    assert_eq!(allowed(spec(one(any(&["a"]))), &with(&["b", "a"])), "r", "each value counts by itself");
    denied(spec(one(any(&["a"]))), &with(&["a, b"]));
    denied(spec(one(any(&["a"]))), &with(&[]));
    denied(spec(one(any(&["*"]))), &with(&[""]));
    assert_eq!(allowed(spec(one(none(&["a"]))), &with(&[])), "r");
    denied(spec(one(none(&["a"]))), &with(&["b", "a"]));
    let secret = clause(one(any(&["a"])), &with(&["s3cret"]));
    assert_eq!(secret, r#"when.header `x-team`: its value matches none of ["a"]"#);

    let mut input = request();
    input.headers = vec![crate::input::Header { name: "x-team", value: b"evil\xff" }];
    let evil = vec![testing::rule("all"), deny(when("d", ConditionKey::Header("x-team".to_string()), any(&["evil*"])))];
    assert_eq!(denied(spec(evil), &input).rule, "d", "what is not text is compared all the same");
}

#[test]
fn claims_without_a_token_are_absent() {
    let claim = || ConditionKey::Claim(vec!["role".to_string()]);
    for (key, name) in [(claim(), "when.claim `role`"), (ConditionKey::Audience, "when.audience")] {
        assert!(clause(vec![when("r", key.clone(), any(&["*"]))], &request()).starts_with(name));
        assert_eq!(allowed(spec(vec![when("r", key, none(&["*"]))]), &request()), "r");
    }
    let principals = vec![from("r", Source { request_principals: anybody(), ..Source::default() })];
    assert!(clause(principals, &request()).contains("no verified token"));
}

fn anybody() -> Matches<PrincipalMatch> {
    Matches { any: vec![PrincipalMatch { issuer: StringMatch::Present, subject: StringMatch::Present }], none: vec![] }
}

/// `https://a` with the subject `b/x` is not a user of `https://a/b`, though both are the same text
/// when joined.
#[test]
fn issuer_and_subject_are_matched_apart() {
    let of =
        |issuer: &str| PrincipalMatch { issuer: StringMatch::Exact(issuer.to_string()), subject: StringMatch::Present };
    assert!(matching::principal(&of("https://a/b"), ("https://a/b", "x")));
    assert!(!matching::principal(&of("https://a/b"), ("https://a", "b/x")));
    assert!(!matching::principal(&of("https://a"), ("https://a/b", "x")));
}

#[test]
fn alternatives_and_conjunctions() {
    let mut rule = from("r", Source { identities: any(&["x"]), ..Source::default() });
    rule.from.push(Source { identities: any(&[CALLER]), namespaces: none(&["shop"]), ..Source::default() });
    denied(spec(vec![rule.clone()]), &by(CALLER));
    rule.from.push(Source { identities: any(&[CALLER]), namespaces: any(&["shop"]), ..Source::default() });
    assert_eq!(allowed(spec(vec![rule.clone()]), &by(CALLER)), "r");
    rule.when = vec![
        Condition { key: ConditionKey::Header("a".to_string()), values: any(&["1"]) },
        Condition { key: ConditionKey::Header("b".to_string()), values: any(&["2"]) },
    ];
    let mut input = by(CALLER);
    input.headers = vec![header("a", "1")];
    assert_eq!(clause(vec![rule.clone()], &input), r#"when.header `b`: its value matches none of ["2"]"#);
    input.headers.push(header("b", "2"));
    assert_eq!(allowed(spec(vec![rule]), &input), "r");
}

#[test]
fn the_nearest_rule_is_the_one_of_which_most_fields_hold() {
    let far = to("far", Operation { methods: any(&["POST"]), ..Operation::default() });
    let near = Operation {
        methods: any(&["GET"]),
        hosts: any(&["shop.example"]),
        paths: paths(&["/orders"]),
        ..Operation::default()
    };
    let mut near = to("near", near);
    near.to.insert(0, Operation { methods: any(&["PUT"]), ..Operation::default() });
    let second = to("second", Operation { methods: any(&["GET"]), paths: paths(&["/x"]), ..Operation::default() });
    let denial = denied(spec(vec![far.clone(), near, second]), &request());
    assert_eq!(
        (denial.rule.as_str(), denial.clause.as_str()),
        ("near", r#"to.paths: "/" matches none of ["/orders"]"#)
    );
    assert_eq!(
        denied(spec(vec![far.clone(), to("also", far.to[0].clone())]), &request()).rule,
        "far",
        "the first of equals"
    );
}

#[test]
fn outbound_rules_narrow_the_callees() {
    let outbound = |rules| ProgramSpec { direction: Direction::Outbound, ..spec(rules) };
    assert_eq!(allowed(outbound(vec![]), &request()), "shop/orders/callees");
    let posts = Operation { methods: any(&["POST"]), ..Operation::default() };
    assert_eq!(allowed(outbound(vec![deny(to("d", posts.clone()))]), &request()), "shop/orders/callees");
    assert_eq!(denied(outbound(vec![to("r", posts.clone())]), &request()).rule, "r");
    let mut input = request();
    input.method = "POST";
    assert_eq!(allowed(outbound(vec![to("r", posts.clone())]), &input), "r");
    assert_eq!(denied(outbound(vec![deny(to("d", posts))]), &input).rule, "d");
    let admin = deny(to("d", Operation { paths: paths(&["/admin/*"]), ..Operation::default() }));
    input.path = "/admin;x/y";
    assert_eq!(denied(outbound(vec![admin]), &input).rule, "d");
}
