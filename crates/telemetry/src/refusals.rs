//! The attempts of an instance that were refused while it handled a request.

use crate::exchange::ExchangeRecord;
use crate::flows::{ConnectionEvent, ConnectionFlows, HandledRequests};
use crate::ring::{Explanation, RefusedAttempt, Ring};
use leno_http::peer::TrafficDirection;
use std::collections::BTreeSet;

/// Limit on the different refused attempts of one request.
const MOST: usize = 32;

type Hop = (Explanation, ExchangeRecord<Box<str>>);

/// Explains a request: one explanation for each hop, in the order in which the hops began, with
/// refusals of the instances that handled it. The ID may also be that of a trace. Empty if no record
/// is kept.
pub(super) fn explain(ring: &Ring, others: &ConnectionFlows, id: &str) -> Vec<Explanation> {
    let found = ring.hops(id);
    let requests: BTreeSet<Box<str>> = found.iter().map(|observed| observed.request_id.clone()).collect();
    let mut hops: Vec<_> = found.into_iter().map(|observed| (Explanation::new(&observed), observed)).collect();
    add(&mut hops, others.during(&requests));
    hops.into_iter().map(|(explanation, _)| explanation).collect()
}

/// Adds refused attempts to the hops of a request, which are in the order in which they began. Each
/// goes to the latest hop at which the sidecar of its function, or a gateway, handed the request to
/// an instance.
fn add(hops: &mut [Hop], refused: Vec<ConnectionEvent>) {
    for event in refused {
        let Some(during) = &event.during else { continue };
        let function = during.function().to_string();
        let is_of = |(_, record): &&mut Hop| {
            record.direction != TrafficDirection::Outbound
                && record.started <= event.at
                && record.target.as_deref() == Some(&*function)
        };
        let Some((hop, record)) = hops.iter_mut().rev().find(is_of) else { continue };
        let at_us = event.at.saturating_duration_since(record.started).as_secs_f64() * 1e6;
        let attempt = attempt(&event, during, &function, at_us);
        let is_same = |known: &&mut RefusedAttempt| {
            (&known.kind, &known.what, &known.host, &known.rule, &known.reason, known.among)
                == (&attempt.kind, &attempt.what, &attempt.host, &attempt.rule, &attempt.reason, attempt.among)
        };
        let has_space = hop.refusals.len() < MOST;
        match hop.refusals.iter_mut().find(is_same) {
            Some(known) => known.count += 1,
            None if has_space => hop.refusals.push(attempt),
            None => {}
        }
    }
}

fn attempt(event: &ConnectionEvent, during: &HandledRequests, function: &str, at_us: f64) -> RefusedAttempt {
    let flow = &event.flow;
    RefusedAttempt {
        kind: flow.kind.clone(),
        what: flow.what.clone(),
        host: flow.host.clone(),
        target: flow.target.clone(),
        rule: flow.rule.clone(),
        reason: flow.reason.clone(),
        fix: fix(event, function),
        at_us,
        count: 1,
        among: during.count(),
    }
}

/// The setting that would allow the attempt; empty: it is not its `callees`.
fn fix(event: &ConnectionEvent, function: &str) -> String {
    let flow = &event.flow;
    if !flow.rule.ends_with("/callees") {
        return String::new();
    }
    let wanted = flow.target.as_ref().unwrap_or(&flow.host);
    format!("if {function} may call {wanted}, list the function or External in its `callees`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::{Connection, ConnectionFailure, Refusal};
    use crate::testing::observed;
    use leno_model::FunctionId;
    use std::time::{Duration, Instant, SystemTime};

    fn handled(ids: &[&str]) -> Option<HandledRequests> {
        let function = FunctionId::new("orders", "order-service").unwrap();
        Some(HandledRequests::new(&function, ids.iter().copied()))
    }

    fn look_up(host: &str, ids: &[&str]) -> Refusal {
        Refusal {
            kind: "name",
            instance: "orders/order-service-00001/0".into(),
            during: handled(ids),
            rule: "orders/order-service/callees".into(),
            what: "look-up".into(),
            host: host.into(),
            reason: "no callee of this function has this name, so it has no address",
        }
    }

    #[test]
    fn a_refusal_belongs_to_the_requests_that_the_instance_was_handling() {
        let (ring, others) = (Ring::default(), ConnectionFlows::default());
        let shard = ring.shard();
        shard.push(&observed());
        shard.push(&ExchangeRecord { request_id: "req-2".into(), ..observed() });
        others.push(look_up("stock", &["req-1"]));
        others.push(look_up("stock", &["req-1"]));
        others.push(look_up("mail", &["req-1", "req-2"]));
        others.push(look_up("idle", &[]));
        let connection = |outcome| Connection {
            instance: "orders/order-service-00001/0",
            during: handled(&["req-2"]),
            target: None,
            address: ([192, 0, 2, 7], 5432).into(),
            protocol: "tcp",
            rule: "orders/order-service/callees",
            outcome,
            bytes: [0; 2],
            spliced: false,
            started: (SystemTime::now(), Instant::now()),
        };
        others.push(connection(Err(ConnectionFailure::Refused("no function that it may call has this address"))));
        let refusals = |id| explain(&ring, &others, id).remove(0).refusals;
        let found =
            |id| -> Vec<_> { refusals(id).into_iter().map(|found| (found.host, found.count, found.among)).collect() };
        assert_eq!(found("req-1"), [("stock".to_owned(), 2, 1), ("mail".to_owned(), 1, 2)]);
        assert_eq!(found("req-2"), [("mail".to_owned(), 1, 2), ("192.0.2.7:5432".to_owned(), 1, 1)]);
        let [first, _] = &refusals("req-1")[..] else { panic!() };
        assert_eq!((first.kind.as_str(), first.rule.as_str()), ("name", "orders/order-service/callees"));
        assert!(first.at_us > 0.0 && first.fix.contains("list the function or External in its `callees`"), "{first:?}");
        let flows = crate::flows::Flows::after(&ring, &others, None).flows;
        let ids = |host: &str| {
            let found = flows.iter().filter(|flow| flow.host == host);
            found.map(|flow| flow.request_id.as_str()).collect::<Vec<_>>()
        };
        assert_eq!((ids("stock"), ids("mail"), ids("idle")), (vec!["req-1"; 2], vec![""], vec![""]));
    }

    #[test]
    fn it_is_told_at_the_hop_of_its_function_and_is_bounded() {
        let (ring, others) = (Ring::default(), ConnectionFlows::default());
        let shard = ring.shard();
        let hop = |direction, target: &str, after: u64| {
            let started = observed().started + Duration::from_secs(after);
            shard.push(&ExchangeRecord { direction, target: Some(target.into()), started, ..observed() });
        };
        hop(TrafficDirection::Gateway, "orders/order-service", 0);
        hop(TrafficDirection::Outbound, "orders/order-service", 0);
        hop(TrafficDirection::Inbound, "orders/stock", 0);
        // A later request of a client that repeats an ID.
        hop(TrafficDirection::Inbound, "orders/order-service", 1000);
        for number in 0..2 * MOST {
            others.push(look_up(&format!("n{number}"), &["req-1"]));
        }
        let told: Vec<usize> = explain(&ring, &others, "req-1").iter().map(|hop| hop.refusals.len()).collect();
        assert_eq!(told.iter().sum::<usize>(), MOST);
        let at = explain(&ring, &others, "req-1").iter().position(|hop| !hop.refusals.is_empty()).unwrap();
        assert_eq!(explain(&ring, &others, "req-1")[at].hop, "gateway");
    }

    #[test]
    fn of_many_requests_some_are_noted() {
        let ids: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let handled = handled(&ids).unwrap();
        assert!(handled.ids().count() < 100 && handled.count() == 1000 && handled.only().is_none());
    }
}
