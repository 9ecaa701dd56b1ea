//! Requests that follow routes of documents: at the gateway, between functions, and between nodes.

mod authorizers;
mod calls;
mod egress;
mod faults;
mod gateway;
mod mirrors;
mod ports;
mod streams;
mod terms;

use crate::mesh::{Mesh, id};
use crate::upstream::{self, Upstream};
use http::{Request, Response};
use hyper::body::Incoming;
use leno_model::{
    AttachedRoute, Attachment, Backend, BackendTarget, GatewayRoutes, HeaderModifier, HttpRoute, HttpRouteKind,
    PathChange, PathPattern, Precedence, Rewrite, RouteFilter, RouteListener, RouteMatch, RouteRule, RouteTimeouts,
};
use leno_policy::spec::{Action, AuthorizationRule, Matches, Operation, PathMatch, StringMatch};
use leno_proxy::GatewayTables;
use std::sync::Arc;

fn at(path: PathPattern) -> RouteMatch {
    RouteMatch { path, method: String::new(), headers: Vec::new(), query: Vec::new() }
}

fn below(path: &str) -> RouteMatch {
    at(PathPattern::Prefix(path.to_owned()))
}

fn target(name: &str) -> BackendTarget {
    BackendTarget::Function(id(name))
}

fn backend(target: BackendTarget, weight: u32) -> Backend {
    Backend { target, weight, filters: Vec::new() }
}

/// A rule that leads to one function.
fn to(matches: RouteMatch, name: &str) -> RouteRule {
    RouteRule {
        name: String::new(),
        matches: vec![matches],
        filters: Vec::new(),
        backends: vec![backend(target(name), 1)],
        timeouts: RouteTimeouts::default(),
        retry: None,
        faults: Vec::new(),
    }
}

fn filtered(rule: RouteRule, filters: Vec<RouteFilter>) -> RouteRule {
    RouteRule { filters, ..rule }
}

fn route(name: &str, rules: Vec<RouteRule>) -> HttpRoute {
    HttpRoute { name: name.to_owned(), kind: HttpRouteKind::Http, precedence: Precedence::MostSpecific, rules }
}

fn rewrite(host: Option<&str>, path: Option<PathChange>) -> RouteFilter {
    RouteFilter::Rewrite(Rewrite { host: host.map(str::to_owned), path })
}

fn full(path: &str) -> Option<PathChange> {
    Some(PathChange::Full(path.to_owned()))
}

fn prefix(path: &str) -> Option<PathChange> {
    Some(PathChange::Prefix(path.to_owned()))
}

fn field(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn set(name: &str, value: &str) -> HeaderModifier {
    HeaderModifier { set: vec![field(name, value)], ..HeaderModifier::default() }
}

/// A rule of policies that refuses paths.
fn forbids(path: &str) -> AuthorizationRule {
    let paths = Matches { any: vec![PathMatch::Text(StringMatch::Exact(path.to_owned()))], none: Vec::new() };
    let to = vec![Operation { paths, ..Operation::default() }];
    AuthorizationRule {
        name: format!("test/forbids{path}"),
        action: Action::Deny,
        from: Vec::new(),
        to,
        when: Vec::new(),
        audit: false,
    }
}

/// Attaches routes to a listener for all hosts of the plain gateway.
fn attach(mesh: &Mesh, routes: &[(&str, HttpRoute)]) {
    let listener = RouteListener {
        name: "shop/edge/all".to_owned(),
        port: mesh.gateway().port(),
        tls: false,
        host: None,
        opened: false,
        certificates: Vec::new(),
    };
    let attached = routes.iter().map(|(host, route)| AttachedRoute {
        route: route.clone(),
        attachments: vec![Attachment { listener: listener.name.clone(), hosts: vec![(*host).to_owned()] }],
    });
    publish(
        mesh,
        &GatewayRoutes { routes: attached.collect(), listeners: vec![listener.clone()], streams: Vec::new() },
    );
}

fn publish(mesh: &Mesh, routes: &GatewayRoutes) {
    let mut next = mesh.node.snapshot.load().change();
    next.gateway_routes(Arc::new(GatewayTables::new(routes).unwrap()));
    mesh.node.publish(Arc::new(next.finish()));
}

/// Answers with the name of the function and the echoed request.
async fn named(name: &'static str) -> Upstream {
    upstream::http1(move |request| echoed(name, request)).await
}

async fn echoed(name: &'static str, request: Request<Incoming>) -> Response<upstream::Body> {
    let mut response = upstream::echo(request).await;
    response.headers_mut().insert("x-function", name.parse().unwrap());
    response
}
