//! Copies of requests for other back ends, as routes say.
//!
//! A copy is a separate call: the judge decides about it, and it has a record. Nothing waits for
//! it, no instance starts for it, and its response is discarded. A copy that cannot follow its
//! request is cut off.

pub(crate) mod copies;

use crate::pipeline::exchange::Exchange;
use crate::pipeline::route::followed::FollowedRoute;
use crate::pipeline::route::{Route, Upstream};
use crate::pipeline::upstream::copy_head;
use crate::pipeline::worker::Worker;
use copies::Place;
use http::request;
use http_body_util::BodyExt;
use leno_http::body::{Body, CopyState};
use leno_model::BackendTarget;
use leno_runtime::schedule;
use std::pin::Pin;
use std::sync::Arc;

/// Milliseconds that a copy may take if the policies of its back end set no limit.
pub(super) const LONGEST_MS: u64 = 60_000;

/// A copy that begins if its request is permitted.
pub(super) struct PreparedCopy {
    target: BackendTarget,
    route: Box<Route>,
    head: Box<request::Parts>,
    place: Place,
}

/// Prepares the copies of a request, whose head is the one that its route made.
pub(super) fn prepare(exchange: &Exchange, followed: &FollowedRoute, head: &request::Parts) -> Vec<PreparedCopy> {
    // A tunnel has two ends.
    let mirrors = followed.mirrors().filter(|_| !exchange.upgrade && !exchange.connects);
    let prepared = mirrors.filter_map(|mirror| {
        if !leno_routing::is_mirrored(mirror, exchange.worker.random.next()) {
            return None;
        }
        let rule = &followed.matched.rule;
        let skip = |reason| {
            exchange.record.metrics().route_copy(&rule.route, reason);
            None
        };
        let Some(route) = followed.mirrored(exchange, &mirror.target) else { return skip("no_back_end") };
        if !is_ready(&exchange.worker, &route) {
            return skip("no_instance");
        }
        let Some(place) = exchange.worker.copies.take(rule.namespace()) else { return skip("too_many") };
        let (target, route) = (mirror.target.clone(), Box::new(route));
        Some(PreparedCopy { target, route, head: copy_head(head), place })
    });
    prepared.collect()
}

/// Sends the copies of a permitted request on their way. Returns the request's body.
pub(super) fn start(exchange: &Exchange, route: &Route, copies: Vec<PreparedCopy>, mut body: Body) -> Body {
    let Some(followed) = &route.followed else { return body };
    for PreparedCopy { target, route, mut head, place } in copies {
        let Ok(copy) = followed.begin_copy(exchange, &target, &mut head) else { continue };
        let (original, copied, state) = body.copied();
        body = original;
        let name = followed.matched.rule.route.clone();
        schedule::spawn_for(route.judge.class, carry((copy, route), (head, copied), (name, place, state)));
    }
    body
}

/// Carries a copy, and discards its answer.
fn carry(
    (exchange, route): (Exchange, Box<Route>),
    (head, body): (Box<request::Parts>, Body),
    (name, place, state): (Arc<str>, Place, CopyState),
) -> Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async move {
        let record = exchange.record.clone();
        let mut response = exchange.run(head, body, Some(route)).await.into_body();
        while let Some(Ok(_)) = response.frame().await {}
        drop((response, place));
        record.metrics().route_copy(&name, if state.is_cut() { "cut" } else { "sent" });
    })
}

/// Whether an instance is there for a copy.
fn is_ready(worker: &Worker, route: &Route) -> bool {
    match &route.upstream {
        Upstream::Instance(entry) | Upstream::LocalDelivery(entry) => {
            entry.external.is_some() || worker.node.instances.count(&entry.config.id) > 0
        }
        Upstream::Egress(..) => true,
        Upstream::Remote(callee) => {
            let is_here = callee.here.is_some() && worker.node.instances.count(&callee.id) > 0;
            is_here || worker.node.endpoints.of(&callee.id).is_some_and(|known| known.any_ready())
        }
        // The judge refuses it.
        Upstream::NotACallee => true,
    }
}
