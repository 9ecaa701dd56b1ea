//! Rules that are too much for the tables of nodes.

use super::{ACCEPTED, GATEWAY, conditions, functions, http, parse, warnings};
use leno_config::Snapshot;
use leno_model::HttpRoute;
use leno_routing::{Entry, RouteTable, call_tables, gateway_tables};

/// The only parent and host.
const AT_GATEWAY: &str = "parentRefs: [{name: web, namespace: infra}]\nhostnames: [a.example]\n";
const PARTLY: &str = "PartiallyInvalid=True UnsupportedValue";
const REFUSED: &str = "Accepted=False UnsupportedValue, ResolvedRefs=True ResolvedRefs";

/// Rules of which a table has 32 at most.
fn rules(range: std::ops::Range<usize>) -> String {
    let rule = |at| {
        format!(
            "- {{matches: [{{path: {{type: RegularExpression, value: '/r{at}/[ab]*a[ab]{{10}}'}}}}], backendRefs: [{{name: stock-v2, namespace: shop, port: 80}}]}}\n"
        )
    };
    format!("rules:\n{}", range.map(rule).collect::<String>())
}

fn table(routes: impl Iterator<Item = HttpRoute>) {
    let routes: Vec<HttpRoute> = routes.collect();
    let entries = routes.iter().flat_map(|HttpRoute { name, kind, rules, .. }| {
        let matches = rules.iter().flat_map(|rule| &rule.matches);
        matches.map(|it| Entry { route: name.clone(), kind: *kind, pattern: it.clone(), value: () })
    });
    RouteTable::new(routes[0].precedence, entries).unwrap();
}

/// Fails unless all nodes take the routes.
fn is_taken(snapshot: &Snapshot) {
    let routes = snapshot.gateway_routes();
    for places in gateway_tables(routes).into_values() {
        table(places.into_iter().map(|at| routes.routes[at].route.clone()));
    }
    for caller in ["shop/front", "blog/posts"] {
        let config = snapshot.function_config(&caller.parse().unwrap()).unwrap();
        for callee in &config.callees {
            let calls: Vec<_> = callee.routes.iter().collect();
            for places in call_tables(&callee.id.namespace, &calls).into_values() {
                table(places.into_iter().map(|at| calls[at].route.clone()));
            }
        }
    }
}

#[test]
fn rules_beyond_the_bound_of_a_host_are_not_in_force() {
    let of = |name: &str, range| http(name, &format!("{AT_GATEWAY}{}", rules(range)));
    let plain = "rules: [{matches: [{path: {value: /plain}}], backendRefs: [{name: front, port: 80}]}]";
    let documents = [
        of("shop/a", 0..16),
        of("shop/b", 16..30),
        of("shop/c", 30..34),
        of("shop/d", 34..36),
        http("shop/e", &format!("{AT_GATEWAY}{plain}")),
        // Each host has its own bound.
        of("shop/f", 36..40).replace("a.example", "b.example"),
    ];
    let snapshot = parse(&[GATEWAY, &functions(), &documents.concat()]);
    is_taken(&snapshot);
    for (name, expected) in [
        ("a", ACCEPTED.to_owned()),
        ("b", ACCEPTED.to_owned()),
        ("c", format!("{ACCEPTED}, {PARTLY}")),
        ("d", REFUSED.to_owned()),
        ("e", ACCEPTED.to_owned()),
        ("f", ACCEPTED.to_owned()),
    ] {
        assert_eq!(conditions(&snapshot, &format!("shop/{name}")), [expected], "{name}");
    }
    let warned = warnings(&snapshot);
    let about = |field: &str| warned.iter().filter(|warning| warning.contains(field)).count();
    assert_eq!((about("spec.rules[2]: the rule is not in force"), about("32 automata")), (1, 4), "{warned:?}");
    let names: Vec<_> = snapshot.gateway_routes().routes.iter().map(|attached| &*attached.route.name).collect();
    assert_eq!(names, ["shop/a", "shop/b", "shop/c", "shop/e", "shop/f"]);
    let message = &snapshot.route_report().routes[2].parents[0].conditions[2].message;
    assert!(message.starts_with("Dropped Rule 2: ") && message.contains("; Dropped Rule 3: "), "{message}");
}

#[test]
fn rules_beyond_the_bound_of_a_callee_are_not_in_force() {
    let of = |name: &str, port: &str, range| {
        let parent = format!("parentRefs: [{{kind: Service, group: '', name: stock, namespace: shop{port}}}]\n");
        http(name, &format!("{parent}{}", rules(range)))
    };
    let documents = [
        of("blog/consumer", "", 0..2),
        of("shop/a", "", 0..16),
        of("shop/b", "", 16..31),
        // Both ports have the rules above.
        of("shop/c", ", port: 8080", 31..33),
        of("shop/d", ", port: 9090", 33..34),
    ];
    let snapshot = parse(&[GATEWAY, &functions(), &documents.concat()]);
    is_taken(&snapshot);
    for name in ["blog/consumer", "shop/a", "shop/b", "shop/d"] {
        assert_eq!(conditions(&snapshot, name), [ACCEPTED], "{name}");
    }
    assert_eq!(conditions(&snapshot, "shop/c"), [format!("{ACCEPTED}, {PARTLY}")]);
}
