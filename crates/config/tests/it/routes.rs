//! Documents of the Gateway API: routes of the model, conditions and warnings.

mod capacity;
mod listeners;
mod streams;

use leno_config::{Condition, Problem, Snapshot, load_text};
use leno_model::{
    Backend, BackendTarget, CallRoute, FieldMatch, HttpRoute, HttpRouteKind, PathChange, PathPattern, RouteFilter,
    RouteMatch, ValuePattern,
};
use std::path::Path;
use std::time::Duration;

const ACCEPTED: &str = "Accepted=True Accepted, ResolvedRefs=True ResolvedRefs";

const RULE: &str = "rules: [{backendRefs: [{name: front, port: 80}]}]";
const MESH: &str = "\
apiVersion: leno.dev/v1alpha1
kind: Mesh
metadata: {name: mesh}
spec:
  gateway: {http: '127.0.0.1:80', https: {listen: '127.0.0.1:443', certificate: CRATE/Cargo.toml, key: CRATE/Cargo.toml}}
---
";

const GATEWAY: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: leno
  listeners:
  - {name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
  - name: shop
    port: 80
    protocol: HTTP
    hostname: '*.shop.example'
    allowedRoutes:
      kinds: [{kind: HTTPRoute}]
      namespaces: {from: Selector, selector: {matchLabels: {kubernetes.io/metadata.name: shop}}}
---
";

fn function(id: &str, more: &str) -> String {
    let (namespace, name) = id.split_once('/').unwrap();
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{external: {{addresses: ['127.0.0.1:1']}}{more}}}\n---\n"
    )
}

/// Functions, a job and an External for back ends.
fn functions() -> String {
    let other = "\
apiVersion: leno.dev/v1alpha1
kind: Job
metadata: {name: nightly, namespace: shop}
spec: {command: [a]}
---
apiVersion: leno.dev/v1alpha1
kind: External
metadata: {name: bank, namespace: shop}
spec: {hosts: [bank.example], ports: [{port: 8443, protocol: https}, {port: 5432, protocol: tcp}]}
---
";
    [
        function("shop/front", ", callees: [stock]"),
        function("shop/stock", ""),
        function("shop/stock-v2", ", traffic: [{revision: stock-v2-00001, percent: 100, tag: canary}]"),
        function("blog/posts", ", callees: [shop/stock, shop/stock-v2]"),
        other.to_owned(),
    ]
    .concat()
}

fn route(kind: &str, id: &str, spec: &str) -> String {
    let (namespace, name) = id.split_once('/').unwrap();
    let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n{spec}---\n"
    )
}

fn http(id: &str, spec: &str) -> String {
    route("HTTPRoute", id, spec)
}

fn compiled(documents: &[&str]) -> Result<Snapshot, Vec<Problem>> {
    let mesh = MESH.replace("CRATE", env!("CARGO_MANIFEST_DIR"));
    load_text(Path::new("mesh.yaml"), &[&*mesh, &documents.concat()].concat())
}

fn parse(documents: &[&str]) -> Snapshot {
    compiled(documents).unwrap_or_else(|problems| {
        panic!("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    })
}

/// `Accepted=False NoMatchingParent` of each parent of a route.
fn conditions(snapshot: &Snapshot, id: &str) -> Vec<String> {
    let status = snapshot.route_report().routes.iter().find(|it| format!("{}/{}", it.namespace, it.name) == id);
    status.unwrap().parents.iter().map(|parent| shown(&parent.conditions)).collect()
}

fn shown(conditions: &[Condition]) -> String {
    let one = |it: &Condition| format!("{}={} {}", it.name, if it.status { "True" } else { "False" }, it.reason);
    conditions.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn warnings(snapshot: &Snapshot) -> Vec<String> {
    snapshot.warnings().iter().map(ToString::to_string).collect()
}

fn attached(snapshot: &Snapshot, id: &str) -> Vec<(String, Vec<String>)> {
    let routes = &snapshot.gateway_routes().routes;
    let found = routes.iter().find(|attached| attached.route.name == id);
    let all = found.into_iter().flat_map(|attached| &attached.attachments);
    all.map(|attachment| (attachment.listener.clone(), attachment.hosts.clone())).collect()
}

/// The only rule of a route that is attached to the Gateway.
fn only_rule(rule: &str) -> (HttpRoute, Vec<String>) {
    let indented: String = rule.lines().map(|line| format!("\n  {line}")).collect();
    let spec =
        format!("parentRefs: [{{name: web, namespace: infra}}]\nhostnames: [a.example]\nrules:\n-{}", &indented[2..]);
    let snapshot = parse(&[GATEWAY, &functions(), &http("shop/r", &spec)]);
    let route = snapshot.gateway_routes().routes.first().map(|attached| attached.route.clone());
    (route.unwrap_or_else(|| panic!("{:?}", warnings(&snapshot))), conditions(&snapshot, "shop/r"))
}

#[test]
fn matches_are_of_the_model() {
    let exact =
        |name: &str, value: &str| FieldMatch { name: name.to_owned(), value: ValuePattern::Exact(value.to_owned()) };
    let (route, _) = only_rule(
        "matches:\n- {path: {type: Exact, value: /a/%7Eb}, method: GET, headers: [{name: X-A, value: '1'}, {name: x-a, value: '2'}], queryParams: [{name: q, value: '1'}]}\n- {path: {value: /a/}}\n- {path: {type: RegularExpression, value: '/v[12]/.*'}}\n- {headers: [{name: v, type: RegularExpression, value: 'a|b'}]}\nbackendRefs: [{name: front, port: 80}]",
    );
    let matched = |path| RouteMatch { path, method: String::new(), headers: Vec::new(), query: Vec::new() };
    let v = FieldMatch { name: "v".to_owned(), value: ValuePattern::Regex("a|b".to_owned()) };
    assert_eq!(
        route.rules[0].matches,
        [
            RouteMatch {
                method: "GET".to_owned(),
                headers: vec![exact("x-a", "1")],
                query: vec![exact("q", "1")],
                ..matched(PathPattern::Exact("/a/~b".to_owned()))
            },
            matched(PathPattern::Prefix("/a".to_owned())),
            matched(PathPattern::Regex("/v[12]/.*".to_owned())),
            RouteMatch { headers: vec![v], ..matched(PathPattern::Prefix(String::new())) },
        ]
    );
}

#[test]
fn services_and_methods_of_grpc_are_paths() {
    let spec = "\
parentRefs: [{name: web, namespace: infra}]
hostnames: [a.example]
rules:
- matches:
  - {method: {service: a.B, method: C}}
  - {method: {service: a.B}}
  - {method: {method: C}}
  - {method: {type: RegularExpression, service: 'a[.]B+', method: 'C|D'}}
  - {headers: [{name: v, value: '1'}]}
  backendRefs: [{name: front, port: 80}]
";
    let snapshot = parse(&[GATEWAY, &functions(), &route("GRPCRoute", "shop/r", spec)]);
    let route = &snapshot.gateway_routes().routes[0].route;
    assert_eq!(route.kind, HttpRouteKind::Grpc);
    let paths: Vec<PathPattern> = route.rules[0].matches.iter().map(|it| it.path.clone()).collect();
    let text = str::to_owned;
    assert_eq!(
        paths,
        [
            PathPattern::Exact(text("/a.B/C")),
            PathPattern::Prefix(text("/a.B")),
            PathPattern::Regex(text("/[^/]+/C")),
            PathPattern::Regex(text("/(?:a[.]B+)/(?:C|D)")),
            PathPattern::Prefix(text("")),
        ]
    );
}

/// A gateway takes no route if one of them has an expression that it cannot use.
#[test]
fn expressions_of_services_and_methods_are_checked_together() {
    let deep = format!("{}a{}", "(".repeat(49), ")".repeat(49));
    for (service, method, reason) in
        [(&*deep, "a", "UnsupportedValue"), ("a", "b", "Accepted"), ("a)(b", "a", "UnsupportedValue")]
    {
        let spec = format!(
            "parentRefs: [{{name: web, namespace: infra}}]\nhostnames: [a.example]\nrules: [{{matches: [{{method: {{type: RegularExpression, service: '{service}', method: '{method}'}}}}], backendRefs: [{{name: front, port: 80}}]}}]"
        );
        let snapshot = parse(&[GATEWAY, &functions(), &route("GRPCRoute", "shop/r", &spec)]);
        let accepted = if reason == "Accepted" { "True" } else { "False" };
        assert_eq!(
            conditions(&snapshot, "shop/r"),
            [format!("Accepted={accepted} {reason}, ResolvedRefs=True ResolvedRefs")],
            "{service}"
        );
    }
}

#[test]
fn back_ends_are_functions_externals_and_revisions() {
    let function = |name: &str| BackendTarget::Function(name.parse().unwrap());
    for (reference, wanted) in [
        ("{name: front, port: 80}", Ok(function("shop/front"))),
        ("{group: leno.dev, kind: Function, name: front}", Ok(function("shop/front"))),
        ("{name: bank, port: 8443}", Ok(BackendTarget::External("shop/bank".parse().unwrap(), 8443))),
        (
            "{group: leno.dev, kind: External, name: bank}",
            Ok(BackendTarget::External("shop/bank".parse().unwrap(), 8443)),
        ),
        (
            "{group: leno.dev, kind: Revision, name: stock-v2.canary}",
            Ok(BackendTarget::Revision("shop/stock-v2".parse().unwrap(), "canary".to_owned())),
        ),
        ("{group: leno.dev, kind: Revision, name: stock-v2.other}", Err("BackendNotFound")),
        ("{group: leno.dev, kind: Function, name: bank}", Err("BackendNotFound")),
        ("{group: leno.dev, kind: External, name: front}", Err("BackendNotFound")),
        ("{name: bank, port: 5432}", Err("UnsupportedProtocol")),
        ("{name: nightly, port: 80}", Err("InvalidKind")),
        ("{group: example.com, kind: Bucket, name: a}", Err("InvalidKind")),
        ("{name: absent, port: 80}", Err("BackendNotFound")),
        ("{name: posts, namespace: blog, port: 80}", Err("RefNotPermitted")),
        ("{name: absent, namespace: blog, port: 80}", Err("RefNotPermitted")),
    ] {
        let (route, conditions) =
            only_rule(&format!("backendRefs: [{reference}, {{name: front, port: 80, weight: 9}}]"));
        let [Backend { target, weight: 1, .. }, Backend { weight: 9, .. }] = &route.rules[0].backends[..] else {
            panic!("{route:?}")
        };
        match wanted {
            Ok(wanted) => {
                assert_eq!(*target, wanted);
                assert_eq!(conditions, [ACCEPTED]);
            }
            Err(reason) => {
                assert!(matches!(target, BackendTarget::Invalid(_)), "{reference}: {target:?}");
                assert_eq!(conditions, [format!("Accepted=True Accepted, ResolvedRefs=False {reason}")], "{reference}");
            }
        }
    }
}

#[test]
fn a_grant_lets_routes_of_another_namespace_refer() {
    let spec = "parentRefs: [{name: web, namespace: infra}]\nhostnames: [a.example]\nrules: [{backendRefs: [{name: posts, namespace: blog, port: 80}]}]";
    let grant = |from: &str, to: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {{name: g, namespace: blog}}\nspec: {{from: [{{group: gateway.networking.k8s.io, {from}}}], to: [{to}]}}\n---\n"
        )
    };
    for (from, to, permits) in [
        ("kind: HTTPRoute, namespace: shop", "{group: '', kind: Service}", true),
        ("kind: HTTPRoute, namespace: shop", "{group: leno.dev, kind: Function, name: posts}", true),
        ("kind: HTTPRoute, namespace: shop", "{group: '', kind: Service, name: other}", false),
        ("kind: HTTPRoute, namespace: shop", "{group: leno.dev, kind: External}", false),
        ("kind: HTTPRoute, namespace: other", "{group: '', kind: Service}", false),
        ("kind: GRPCRoute, namespace: shop", "{group: '', kind: Service}", false),
    ] {
        let snapshot = parse(&[GATEWAY, &functions(), &http("shop/r", spec), &grant(from, to)]);
        let resolved = if permits { "True ResolvedRefs" } else { "False RefNotPermitted" };
        assert_eq!(conditions(&snapshot, "shop/r"), [format!("Accepted=True Accepted, ResolvedRefs={resolved}")]);
        let config = snapshot.function_config(&"blog/posts".parse().unwrap()).unwrap();
        assert_eq!(config.is_routed, permits, "{from} {to}");
    }
}

#[test]
fn filters_limits_and_retries_are_of_the_model() {
    let (route, conditions) = only_rule(
        "matches: [{path: {value: /a}}]
filters:
- {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-A, value: b}], add: [{name: c, value: d}], remove: [e]}}
- {type: URLRewrite, urlRewrite: {hostname: b.example, path: {type: ReplacePrefixMatch, replacePrefixMatch: /b/}}}
- {type: RequestMirror, requestMirror: {backendRef: {name: stock, port: 80}, percent: 5}}
- {type: RequestMirror, requestMirror: {backendRef: {name: absent, port: 80}}}
- {type: CORS, cors: {allowOrigins: ['https://a.example'], allowHeaders: [Authorization], maxAge: 9}}
backendRefs: [{name: front, port: 80}]
timeouts: {request: 1m30s, backendRequest: 0s}
retry: {codes: [500, 503], attempts: 3, backoff: 100ms}",
    );
    assert_eq!(conditions, ["Accepted=True Accepted, ResolvedRefs=False BackendNotFound"]);
    let rule = &route.rules[0];
    let [
        RouteFilter::RequestHeaders(headers),
        RouteFilter::Rewrite(rewrite),
        RouteFilter::Mirror(mirror),
        RouteFilter::Cors(cors),
    ] = &rule.filters[..]
    else {
        panic!("{rule:?}")
    };
    let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    assert_eq!(
        (&headers.set, &headers.add, &headers.remove),
        (&pair("x-a", "b"), &pair("c", "d"), &vec!["e".to_owned()])
    );
    assert_eq!(rewrite.host.as_deref(), Some("b.example"));
    assert_eq!(rewrite.path, Some(PathChange::Prefix("/b/".to_owned())));
    assert_eq!((mirror.numerator, mirror.denominator), (5, 100));
    assert_eq!((&*cors.allow_headers[0], cors.max_age), ("Authorization", Duration::from_secs(9)));
    assert_eq!(rule.timeouts.request, Some(Duration::from_secs(90)));
    assert_eq!(rule.timeouts.backend_request, Some(Duration::ZERO));
    let retry = rule.retry.as_ref().unwrap();
    assert_eq!(
        (&retry.codes[..], retry.attempts, retry.backoff),
        (&[500, 503][..], Some(3), Some(Duration::from_millis(100)))
    );
    let (route, _) =
        only_rule("filters: [{type: RequestRedirect, requestRedirect: {scheme: https, port: 8443, statusCode: 308}}]");
    let [RouteFilter::Redirect(redirect)] = &route.rules[0].filters[..] else { panic!("{route:?}") };
    assert_eq!((redirect.scheme.as_deref(), redirect.port, redirect.status), (Some("https"), Some(8443), 308));
}

/// Requests of such a rule get an error: they do not pass without the filter.
#[test]
fn a_filter_that_is_not_carried_out_lets_nothing_pass() {
    for filter in [
        "{type: ExtensionRef, extensionRef: {group: example.com, kind: Filter, name: a}}",
        "{type: ExternalAuth, externalAuth: {protocol: GRPC, grpc: {}, backendRef: {name: stock, port: 80}}}",
    ] {
        let (route, conditions) = only_rule(&format!("filters: [{filter}]\nbackendRefs: [{{name: front, port: 80}}]"));
        assert!(
            matches!(&route.rules[0].backends[..], [Backend { target: BackendTarget::Invalid(_), .. }]),
            "{route:?}"
        );
        assert_eq!(conditions, ["Accepted=True Accepted, ResolvedRefs=False InvalidKind"]);
        let (route, _) = only_rule(&format!(
            "backendRefs: [{{name: front, port: 80, filters: [{filter}]}}, {{name: stock, port: 80}}]"
        ));
        let targets: Vec<bool> =
            route.rules[0].backends.iter().map(|it| matches!(it.target, BackendTarget::Invalid(_))).collect();
        assert_eq!(targets, [true, false]);
    }
}

#[test]
fn a_rule_that_cannot_be_carried_out_is_not_in_force() {
    for (rule, message) in [
        ("sessionPersistence: {sessionName: a}", "sessions are not kept"),
        ("matches: [{path: {type: RegularExpression, value: 'a(b'}}]", "is not a regular expression"),
        ("matches: [{path: {type: RegularExpression, value: '(?=a)b'}}]", "is not a regular expression"),
        ("matches: [{headers: [{name: a, type: RegularExpression, value: 'a{1000}{1000}'}]}]", "too large"),
        ("matches: [{headers: [{name: Connection, value: a}]}]", "`connection` belongs to the connection"),
        ("matches: [{headers: [{name: Host, value: a/b}]}]", "no host is `a/b`"),
        (
            "filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: Host, value: a}]}}]",
            "`host` cannot be changed",
        ),
        (
            "filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [X-Forwarded-Client-Cert]}}]",
            "`x-forwarded-client-cert` cannot be changed",
        ),
        (
            "filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: content-length, value: '1'}]}}]",
            "`content-length` cannot be changed",
        ),
        (
            "filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: a}], remove: [A]}}]",
            "`a` is in `set` too",
        ),
        (
            "filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /a/../b}}}]",
            "is not a path in its normal form",
        ),
        (
            "filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: '/a?b=c'}}}]",
            "is not a path in its normal form",
        ),
        (
            "filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: a}}}]",
            "is not a path in its normal form",
        ),
        (
            "matches: [{path: {value: /a}}]\n  filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b//c}}}]",
            "is not a path in its normal form",
        ),
        ("retry: {attempts: 11}", "11 attempts"),
        ("timeouts: {request: 25h}", "`25h` is too long"),
    ] {
        let spec = |rules: &str| {
            format!("parentRefs: [{{name: web, namespace: infra}}]\nhostnames: [a.example]\nrules:\n{rules}")
        };
        let wrong = format!("- {rule}\n  backendRefs: [{{name: front, port: 80}}]\n");
        let good = "- {matches: [{path: {value: /good}}], backendRefs: [{name: front, port: 80}]}\n";
        let snapshot = parse(&[GATEWAY, &functions(), &http("shop/r", &spec(&wrong))]);
        let refused = "Accepted=False UnsupportedValue, ResolvedRefs=True ResolvedRefs";
        assert_eq!(conditions(&snapshot, "shop/r"), [refused], "{rule}");
        assert!(snapshot.gateway_routes().routes.is_empty(), "{rule}");
        let found = warnings(&snapshot).into_iter().find(|warning| warning.contains("spec.rules[0]"));
        let found = found.unwrap_or_else(|| panic!("{rule}: {:?}", warnings(&snapshot)));
        assert!(found.contains("the rule is not in force") && found.contains(message), "{rule}: {found}");
        let snapshot = parse(&[GATEWAY, &functions(), &http("shop/r", &spec(&[good, &wrong].concat()))]);
        let partly = format!("{ACCEPTED}, PartiallyInvalid=True UnsupportedValue");
        assert_eq!(conditions(&snapshot, "shop/r"), [partly], "{rule}");
        assert_eq!(snapshot.gateway_routes().routes[0].route.rules.len(), 1);
        let snapshot = parse(&[GATEWAY, &functions(), &http("shop/r", &spec(&[&*wrong, good].concat()))]);
        assert_eq!(snapshot.gateway_routes().routes[0].route.rules[0].name, "1", "its number in the document");
        let snapshot = parse(&[GATEWAY, &functions(), &http("shop/r", &spec(&[good, &wrong].concat()))]);
        let conditions = &snapshot.route_report().routes[0].parents[0].conditions;
        assert!(conditions[2].message.starts_with("Dropped Rule 1: "), "{conditions:?}");
    }
}

#[test]
fn routes_of_functions_are_for_their_callers() {
    let documents = [
        http(
            "shop/producer",
            "parentRefs: [{kind: Service, group: '', name: stock}]\nrules: [{backendRefs: [{name: stock-v2, port: 80}]}]",
        ),
        http(
            "blog/consumer",
            "parentRefs: [{kind: Function, group: leno.dev, name: stock, namespace: shop, port: 8080}]\nrules: [{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}]}}]}]",
        ),
        http("shop/job", "parentRefs: [{kind: Service, group: '', name: nightly}]"),
        http("shop/port", "parentRefs: [{kind: Service, group: '', name: bank, port: 5432}]"),
        http("shop/name", "parentRefs: [{kind: Service, group: '', name: stock, sectionName: http}]"),
        http("shop/other", "parentRefs: [{kind: Bucket, group: example.com, name: stock}]"),
    ];
    // Calls need no grant, and requests of the gateway do.
    let foreign = http(
        "shop/foreign",
        "parentRefs: [{kind: Service, group: '', name: stock-v2}, {name: web, namespace: infra}]\nhostnames: [a.example]\nrules: [{backendRefs: [{name: posts, namespace: blog, port: 80}]}]",
    );
    let snapshot = parse(&[GATEWAY, &functions(), &documents.concat(), &foreign]);
    let routes = |caller: &str| -> Vec<(String, Option<u16>)> {
        let config = snapshot.function_config(&caller.parse().unwrap()).unwrap();
        let callees = config.callees.iter().filter(|callee| callee.id.name == "stock");
        callees
            .flat_map(|callee| callee.routes.iter())
            .map(|CallRoute { route, port }| (route.name.clone(), *port))
            .collect()
    };
    assert_eq!(routes("shop/front"), [("shop/producer".to_owned(), None)]);
    assert_eq!(routes("blog/posts"), [("blog/consumer".to_owned(), Some(8080))]);
    assert_eq!(conditions(&snapshot, "shop/producer"), [ACCEPTED]);
    assert_eq!(conditions(&snapshot, "blog/consumer"), [ACCEPTED]);
    for name in ["shop/job", "shop/port", "shop/name", "shop/other"] {
        let refused = "Accepted=False NoMatchingParent, ResolvedRefs=True ResolvedRefs";
        assert_eq!(conditions(&snapshot, name), [refused], "{name}");
    }
    assert_eq!(
        conditions(&snapshot, "shop/foreign"),
        [ACCEPTED, "Accepted=True Accepted, ResolvedRefs=False RefNotPermitted"]
    );
    let foreign = attached(&snapshot, "shop/foreign");
    assert_eq!(foreign.len(), 1);
    let warnings = warnings(&snapshot);
    let refused = "`shop/front` calls `shop/stock`, and `shop/stock-v2` is not among its callees";
    assert!(warnings.iter().any(|warning| warning.contains(refused)), "{warnings:?}");
    assert!(!snapshot.function_config(&"shop/stock-v2".parse().unwrap()).unwrap().is_routed);
}

#[test]
fn rules_that_are_very_likely_wrong_are_reported() {
    let other = function("shop/exposed", ", expose: [{hosts: [b.example], path: /x}]");
    let received = function("shop/received", ", paths: {send: asReceived}");
    let redirect = |path: &str, to: &str| {
        format!(
            "- {{matches: [{{path: {{value: {path}}}}}], filters: [{{type: RequestRedirect, requestRedirect: {to}}}]}}\n"
        )
    };
    let front = "backendRefs: [{name: front, port: 80}]";
    for (rules, warned) in [
        (format!("- {{{front}}}\n"), None),
        (format!("- {{{front}}}\n- {{{front}}}\n"), Some("rule 0 has the same, and comes first")),
        (format!("- {{matches: [{{path: {{value: /a}}}}, {{path: {{value: /a/}}}}], {front}}}\n"), Some("the rule has it twice")),
        (format!("- {{matches: [{{path: {{value: /a}}}}], {front}}}\n- {{matches: [{{path: {{value: /a}}, method: GET}}], {front}}}\n"), None),
        (format!("- {{matches: [{{path: {{value: /x}}}}], {front}}}\n"), Some("`shop/exposed` is exposed at b.example/x too")),
        ("- {backendRefs: [{name: front, port: 80, weight: 0}]}\n".to_owned(), Some("all weights are 0")),
        ("- {matches: [{path: {value: /a}}]}\n".to_owned(), Some("the rule leads nowhere")),
        (
            "- {matches: [{path: {value: /a}}], filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}], backendRefs: [{name: received, port: 80}]}\n".to_owned(),
            Some("`shop/received` gets paths as they come"),
        ),
        (redirect("/a", "{path: {type: ReplaceFullPath, replaceFullPath: /b}}"), Some("leads to http://b.example/b, where the gateway has nothing")),
        (redirect("/a", "{path: {type: ReplaceFullPath, replaceFullPath: /x/y}}"), None),
        (redirect("/a", "{hostname: other.example}"), None),
        (redirect("/x/a", "{scheme: https}"), None),
        (redirect("/a", "{scheme: https}"), Some("leads to https://b.example/a, where the gateway has nothing")),
        (redirect("/a", "{statusCode: 301}"), Some("comes back to http://b.example/a")),
        (
            [redirect("/a", "{path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}"), redirect("/b", "{path: {type: ReplaceFullPath, replaceFullPath: /a}}")].concat(),
            Some("comes back to http://b.example/a"),
        ),
    ] {
        let spec = format!("parentRefs: [{{name: web, namespace: infra}}]\nhostnames: [b.example]\nrules:\n{rules}");
        let snapshot = parse(&[GATEWAY, &functions(), &other, &received, &http("shop/r", &spec)]);
        let found: Vec<String> = warnings(&snapshot).into_iter().filter(|warning| warning.contains("spec.rules")).collect();
        match warned {
            None => assert!(found.is_empty(), "{rules}: {found:?}"),
            Some(wanted) => assert!(found.iter().any(|warning| warning.contains(wanted)), "{rules}: {found:?}"),
        }
    }
    let spec = format!("parentRefs: [{{name: web, namespace: infra}}]\nhostnames: [b.example]\n{RULE}");
    let two = [http("shop/a", &spec), http("shop/b", &spec)].concat();
    let found = warnings(&parse(&[GATEWAY, &functions(), &two]));
    assert!(found.iter().any(|warning| warning.contains("`shop/a` has the same, and comes first")), "{found:?}");
}

#[test]
fn a_host_of_another_namespace_is_refused() {
    let exposed = function("blog/site", ", expose: [{hosts: [blog.example]}]");
    let spec = |host: &str| format!("parentRefs: [{{name: web, namespace: infra}}]\nhostnames: [{host}]\n{RULE}");
    let problems = compiled(&[GATEWAY, &functions(), &exposed, &http("shop/r", &spec("blog.example"))]).unwrap_err();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(
        problem.field == "spec.hostnames[0]" && problem.message.starts_with("`blog.example` is taken"),
        "{problem}"
    );
    let steals = GATEWAY.replace("'*.shop.example'", "blog.example");
    let problems = compiled(&[&steals, &functions(), &exposed]).unwrap_err();
    assert_eq!(problems[0].field, "spec.listeners[1].hostname", "{problems:?}");
    // The namespace itself can have both, and a Gateway can share its hosts.
    let own = spec("blog.example").replace("front", "posts");
    assert_eq!(conditions(&parse(&[GATEWAY, &functions(), &exposed, &http("blog/r", &own)]), "blog/r"), [ACCEPTED]);
    let both = [http("shop/r", &spec("a.example")), http("blog/r", &spec("a.example").replace("front", "posts"))];
    assert_eq!(parse(&[GATEWAY, &functions(), &both.concat()]).gateway_routes().routes.len(), 2);
}
