use super::*;
use leno_model::{
    AttachedRoute, Attachment, FieldMatch, HttpRouteKind, PathPattern, RouteListener, RouteRule, RouteTimeouts,
    ValuePattern,
};
use proptest::prelude::*;

fn route(name: &str, precedence: Precedence, matches: Vec<RouteMatch>) -> HttpRoute {
    let rule = |pattern| RouteRule {
        name: String::new(),
        matches: vec![pattern],
        filters: Vec::new(),
        backends: Vec::new(),
        timeouts: RouteTimeouts::default(),
        retry: None,
        faults: Vec::new(),
    };
    let rules = matches.into_iter().map(rule).collect();
    HttpRoute { name: name.to_owned(), kind: HttpRouteKind::Http, precedence, rules }
}

fn at(path: PathPattern) -> RouteMatch {
    RouteMatch { path, method: String::new(), headers: Vec::new(), query: Vec::new() }
}

/// Two of these are too large for one automaton.
fn large(index: usize) -> RouteMatch {
    at(PathPattern::Regex(format!("/r{index:02}/[ab]*a[ab]{{10}}")))
}

fn header(text: &str) -> RouteMatch {
    let value = ValuePattern::Regex(text.to_owned());
    RouteMatch {
        headers: vec![FieldMatch { name: "x-a".to_owned(), value }],
        ..at(PathPattern::Prefix("/a".to_owned()))
    }
}

fn table(routes: &[HttpRoute]) -> Result<RouteTable<()>, crate::BadPattern> {
    let entries = routes.iter().flat_map(|HttpRoute { name, kind, rules, .. }| {
        let entry =
            |pattern: &RouteMatch| Entry { route: name.clone(), kind: *kind, pattern: pattern.clone(), value: () };
        rules.iter().flat_map(|rule| &rule.matches).map(entry)
    });
    RouteTable::new(routes[0].precedence, entries)
}

/// Takes rules out until nothing is too much.
fn fitted(mut routes: Vec<HttpRoute>) -> (Vec<HttpRoute>, usize) {
    for rounds in 0.. {
        let found = excess(&routes.iter().collect::<Vec<_>>());
        if found.is_empty() {
            return (routes, rounds);
        }
        for ExcessRule { route, rule, .. } in found.iter().rev() {
            routes[*route].rules.remove(*rule);
        }
    }
    unreachable!()
}

#[test]
fn rules_of_the_last_routes_are_too_much() {
    for precedence in [Precedence::MostSpecific, Precedence::First] {
        let plain = at(PathPattern::Exact("/plain".to_owned()));
        // By their texts, the last ones come first.
        let mut routes: Vec<HttpRoute> =
            (0..17).map(|index| route("a/a", precedence, vec![large(99 - 2 * index), large(98 - 2 * index)])).collect();
        routes.push(route("a/b", precedence, vec![plain]));
        let found = excess(&routes.iter().collect::<Vec<_>>());
        let places: Vec<_> = found.iter().map(|rule| (rule.route, rule.rule)).collect();
        let without_plain: Vec<_> = places.iter().filter(|place| **place != (17, 0)).copied().collect();
        assert_eq!(without_plain, [(16, 0), (16, 1)], "{precedence:?}");
        assert!(precedence == Precedence::First || places.len() == 2, "{places:?}");
        assert!(found[0].reason.contains("32 automata"), "{found:?}");
        let (fitting, rounds) = fitted(routes);
        assert_eq!(rounds, 1);
        table(&fitting).unwrap();
    }
}

#[test]
fn listeners_of_one_port_and_host_share_tables() {
    let listener = |name: &str, port, host: Option<&str>| RouteListener {
        name: name.to_owned(),
        port,
        tls: false,
        host: host.map(str::to_owned),
        opened: false,
        certificates: Vec::new(),
    };
    let attached = |name: &str, attachments: &[(&str, &[&str])]| AttachedRoute {
        route: route(name, Precedence::MostSpecific, vec![]),
        attachments: attachments
            .iter()
            .map(|(listener, hosts)| Attachment {
                listener: (*listener).to_owned(),
                hosts: hosts.iter().map(ToString::to_string).collect(),
            })
            .collect(),
    };
    let routes = GatewayRoutes {
        streams: Vec::new(),
        listeners: vec![
            listener("a", 80, None),
            listener("b", 80, Some("*")),
            listener("c", 80, Some("*.Example")),
            listener("d", 81, None),
        ],
        routes: vec![
            attached("a/a", &[("a", &["x.example"]), ("b", &["X.example", "*"]), ("missing", &["x.example"])]),
            attached("a/b", &[("c", &["x.example"]), ("d", &["x.example"]), ("b", &["x.example"])]),
        ],
    };
    let found: Vec<_> = gateway_tables(&routes)
        .into_iter()
        .map(|(GatewaySite { port, listener, host }, routes)| (format!("{port} {listener} {host}"), routes))
        .collect();
    let expected = [
        ("80 * *", vec![0]),
        ("80 * x.example", vec![0, 1]),
        ("80 *.example x.example", vec![1]),
        ("81 * x.example", vec![1]),
    ];
    assert_eq!(found, expected.map(|(site, routes)| (site.to_owned(), routes)));
}

#[test]
fn a_port_of_calls_has_its_own_routes_and_those_of_all_ports() {
    let call = |name: &str, port| CallRoute { route: route(name, Precedence::MostSpecific, vec![]), port };
    let calls = [call("shop/a", None), call("shop/b", Some(8080)), call("blog/c", Some(9000))];
    let tables = |calls: &[CallRoute]| call_tables("shop", &calls.iter().collect::<Vec<_>>());
    assert_eq!(
        tables(&calls),
        BTreeMap::from([(None, vec![0]), (Some(8080), vec![0, 1]), (Some(9000), vec![2])]),
        "routes of consumers take the place of the others"
    );
    assert_eq!(tables(&calls[1..2]), BTreeMap::from([(Some(8080), vec![0])]));
    assert!(tables(&[]).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Without the rules that are too much, a node takes all.
    #[test]
    fn a_table_takes_the_rest(
        texts in proptest::collection::vec("[ab]{0,2}(\\.\\*)?[ab]{0,3}(\\.\\*)?[ab]{1,3}", 0..60),
        in_headers: bool,
    ) {
        let matches = texts.iter().map(|text| match in_headers {
            true => header(text),
            false => at(PathPattern::Regex(text.clone())),
        });
        let routes = vec![route("a/a", Precedence::MostSpecific, matches.collect())];
        let refused = table(&routes).is_err();
        let (fitting, rounds) = fitted(routes);
        prop_assert!(table(&fitting).is_ok());
        prop_assert_eq!(refused, rounds > 0);
    }
}
