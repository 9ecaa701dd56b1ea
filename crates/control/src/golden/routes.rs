//! Routes of Gateway API documents.

use super::{configs, id};
use leno_model::{
    AttachedRoute, Attachment, Authorizer, AuthorizerProtocol, Backend, BackendTarget, CallRoute, Cors, Fault,
    FaultAbort, FieldMatch, FieldValues, FunctionConfig, GatewayRoutes, HeaderModifier, HttpRoute, HttpRouteKind,
    Mirror, PathChange, PathPattern, Precedence, Redirect, Rewrite, RouteAuthorizer, RouteFilter, RouteListener,
    RouteMatch, RouteRetry, RouteRule, RouteTimeouts, SecretBytes, SecretValues, StoredKey, StreamBackend,
    StreamListener, StreamRoute, StreamTls, ValuePattern,
};
use leno_policy::spec::StringMatch;
use std::time::Duration;

/// A function to which a route leads, and whose calls follow routes.
pub(super) fn routed() -> FunctionConfig {
    let mut config = FunctionConfig { is_routed: true, ..configs::command() };
    config.callees.iter_mut().for_each(|callee| {
        callee.routes = [call_route(http_route(), None), call_route(grpc_route(), Some(8080))].into()
    });
    config
}

pub(super) fn gateway_routes() -> GatewayRoutes {
    let listener = |name: &str, tls, host: Option<&str>| RouteListener {
        name: format!("shop/edge/{name}"),
        port: if tls { 443 } else { 80 },
        tls,
        host: host.map(str::to_owned),
        opened: false,
        certificates: Vec::new(),
    };
    let attached = |route, listener: &str, hosts: &[&str]| AttachedRoute {
        route,
        attachments: vec![Attachment {
            listener: format!("shop/edge/{listener}"),
            hosts: hosts.iter().map(ToString::to_string).collect(),
        }],
    };
    GatewayRoutes {
        streams: Vec::new(),
        listeners: vec![listener("plain", false, None), listener("tls", true, Some("*.shop.example"))],
        routes: vec![
            attached(http_route(), "tls", &["a.shop.example", "*.b.shop.example"]),
            attached(grpc_route(), "plain", &["*"]),
        ],
    }
}

/// A listener whose port the gateway opens.
pub(super) fn opened() -> GatewayRoutes {
    let mut routes = gateway_routes();
    routes.listeners.iter_mut().for_each(|listener| listener.opened = true);
    routes
}

/// A listener with certificates of stored secrets.
pub(super) fn certified() -> GatewayRoutes {
    let mut routes = gateway_routes();
    routes.listeners.retain(|listener| listener.tls);
    routes.listeners.iter_mut().for_each(|listener| listener.certificates = vec!["shop/edge-tls".to_owned()]);
    routes
}

/// Listeners for TLS and TCP.
pub(super) fn streams() -> GatewayRoutes {
    let backend = |target: Option<&str>, host: &str| StreamBackend {
        target: target.map(id),
        port: 5432,
        tls: target.is_none(),
        host: host.to_owned(),
        weight: 3,
    };
    let routes = vec![StreamRoute {
        name: "shop/db".to_owned(),
        hosts: vec!["*.shop.example".to_owned()],
        backends: vec![backend(Some("shop/db"), ""), backend(Some("shop/depot"), "db.example"), backend(None, "")],
    }];
    let listener = |name: &str, tls| StreamListener {
        name: format!("shop/edge/{name}"),
        port: 5432,
        tls,
        host: Some("*.shop.example".to_owned()),
        certificates: vec!["shop/edge-tls".to_owned()],
        routes: routes.clone(),
    };
    let streams = vec![
        listener("passed", Some(StreamTls::Passthrough)),
        listener("tcp", None),
        listener("tls", Some(StreamTls::Terminate)),
    ];
    GatewayRoutes { streams, ..GatewayRoutes::default() }
}

/// The stored secrets of [`certified`].
pub(super) fn certificates() -> SecretValues {
    let value = |(key, value): (&str, &str)| {
        let stored = StoredKey { secret: "shop/edge-tls".to_owned(), key: key.to_owned() };
        (stored, SecretBytes::new(value.as_bytes().to_vec().into(), [7; 16]))
    };
    [("tls.crt", "a chain"), ("tls.key", "a key")].map(value).into()
}

/// The same with faults.
pub(super) fn faulty() -> FunctionConfig {
    let mut config = FunctionConfig { faults: faults(), ..routed() };
    for callee in &mut config.callees {
        let mut routes = callee.routes.to_vec();
        routes.iter_mut().for_each(|call| with_faults(&mut call.route));
        callee.routes = routes.into();
    }
    config
}

pub(super) fn faulty_gateway_routes() -> GatewayRoutes {
    let mut routes = gateway_routes();
    routes.routes.iter_mut().for_each(|attached| with_faults(&mut attached.route));
    routes
}

fn with_faults(route: &mut HttpRoute) {
    route.rules.iter_mut().for_each(|rule| rule.faults = faults());
}

fn faults() -> Vec<Fault> {
    let values = vec![StringMatch::Exact("testers".to_owned()), StringMatch::Prefix("qa-".to_owned())];
    let slow = Fault {
        name: "chaos/faults/slow".to_owned(),
        when: vec![FieldValues { name: "x-group".to_owned(), values }],
        per_10k: 1250,
        delay: Duration::from_millis(1500),
        abort: None,
        until_ms: 1_795_867_200_000,
    };
    let abort = |name: &str, abort| Fault {
        name: format!("chaos/faults/{name}"),
        when: Vec::new(),
        per_10k: 10_000,
        delay: Duration::ZERO,
        abort: Some(abort),
        ..slow.clone()
    };
    vec![abort("down", FaultAbort::Status(503)), abort("ended", FaultAbort::Grpc(14)), slow]
}

/// Routes, of which one asks an authorizer.
pub(super) fn with_authorizer() -> GatewayRoutes {
    let mut routes = gateway_routes();
    let authorizer = Authorizer {
        name: "shop/checkout/externalAuth/0".to_owned(),
        authority: "login.example".to_owned(),
        protocol: AuthorizerProtocol::Http,
        path_prefix: "/check".to_owned(),
        timeout: Duration::from_millis(200),
        status_on_error: 503,
        shown: Some(vec!["authorization".to_owned()]),
        raw_headers: false,
        upstream_headers: vec!["x-user".to_owned()],
        client_headers: vec!["location".to_owned()],
        cache: None,
        audit: false,
    };
    let asked = RouteAuthorizer { target: BackendTarget::Function(id("shop/login")), authorizer, sets_all: true };
    routes.routes[0].route.rules[0].filters = vec![RouteFilter::Authorize(Box::new(asked))];
    routes
}

fn call_route(route: HttpRoute, port: Option<u16>) -> CallRoute {
    CallRoute { route, port }
}

fn http_route() -> HttpRoute {
    let named = |name: &str, value: ValuePattern| FieldMatch { name: name.to_owned(), value };
    let every = |path: PathPattern| RouteMatch { path, method: String::new(), headers: Vec::new(), query: Vec::new() };
    let regex = || ValuePattern::Regex("[ab]+".to_owned());
    let matches = vec![
        RouteMatch {
            method: "GET".to_owned(),
            headers: vec![named("x-group", ValuePattern::Exact("staff".to_owned())), named("x-try", regex())],
            query: vec![named("page", ValuePattern::Exact("2".to_owned())), named("sort", regex())],
            ..every(PathPattern::Exact("/checkout".to_owned()))
        },
        every(PathPattern::Prefix("/checkout".to_owned())),
        every(PathPattern::Literal("/check".to_owned())),
        every(PathPattern::Regex("/check.*".to_owned())),
    ];
    let prefix = |path: &str| Some(PathChange::Prefix(path.to_owned()));
    let full = |path: &str| Some(PathChange::Full(path.to_owned()));
    let filters = vec![
        RouteFilter::RequestHeaders(modifier()),
        RouteFilter::Rewrite(Rewrite { host: Some("stock.example".to_owned()), path: prefix("/new") }),
        RouteFilter::Rewrite(Rewrite { host: None, path: full("/new") }),
        RouteFilter::Mirror(Mirror {
            target: BackendTarget::Function(id("shop/copies")),
            numerator: 1,
            denominator: 10,
        }),
        RouteFilter::Cors(Cors {
            allow_origins: vec!["https://*.shop.example".to_owned()],
            allow_credentials: true,
            allow_methods: vec!["PUT".to_owned()],
            allow_headers: vec!["x-group".to_owned()],
            expose_headers: vec!["x-pages".to_owned()],
            max_age: Duration::from_secs(60),
        }),
    ];
    let backend = |target, weight, filters| Backend { target, weight, filters };
    let backends = vec![
        backend(BackendTarget::Function(id("shop/stock")), 90, Vec::new()),
        backend(BackendTarget::External(id("shop/depot"), 443), 5, Vec::new()),
        backend(
            BackendTarget::Revision(id("shop/stock"), "next".to_owned()),
            4,
            vec![RouteFilter::ResponseHeaders(modifier())],
        ),
        backend(BackendTarget::Invalid("there is no function shop/old".to_owned()), 1, Vec::new()),
    ];
    let redirect = Redirect {
        scheme: Some("https".to_owned()),
        host: Some("www.shop.example".to_owned()),
        path: full("/"),
        port: Some(8443),
        status: 301,
    };
    let moved = RouteRule {
        matches: vec![every(PathPattern::Prefix("/old".to_owned()))],
        filters: vec![RouteFilter::Redirect(redirect)],
        ..plain_rule()
    };
    let rule = RouteRule {
        name: "checkout".to_owned(),
        matches,
        filters,
        backends,
        timeouts: RouteTimeouts {
            request: Some(Duration::from_secs(10)),
            backend_request: Some(Duration::from_millis(2500)),
        },
        retry: Some(RouteRetry { codes: vec![502, 503], attempts: Some(2), backoff: Some(Duration::from_millis(50)) }),
        faults: Vec::new(),
    };
    HttpRoute {
        name: "shop/checkout".to_owned(),
        kind: HttpRouteKind::Http,
        precedence: Precedence::MostSpecific,
        rules: vec![rule, moved],
    }
}

fn grpc_route() -> HttpRoute {
    let rules = vec![plain_rule()];
    HttpRoute { name: "shop/calls".to_owned(), kind: HttpRouteKind::Grpc, precedence: Precedence::First, rules }
}

fn plain_rule() -> RouteRule {
    RouteRule {
        name: String::new(),
        matches: Vec::new(),
        filters: Vec::new(),
        backends: Vec::new(),
        timeouts: RouteTimeouts::default(),
        retry: None,
        faults: Vec::new(),
    }
}

fn modifier() -> HeaderModifier {
    HeaderModifier {
        set: vec![("x-set".to_owned(), "1".to_owned())],
        add: vec![("x-add".to_owned(), "2".to_owned())],
        remove: vec!["x-gone".to_owned()],
    }
}
