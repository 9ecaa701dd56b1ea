//! Which node gets which resources, when, and how often, over real sockets.

use crate::support::configs::{config, delivered, exposed, function, mesh};
use crate::support::*;
use leno_agent::Change;
use leno_control::{Definitions, PublishError};
use leno_model::{FunctionConfig, Route};
use leno_testkit::eventually_async;
use leno_wire::{Endpoint, Resource, Subject};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

const FRONTEND: &str = "orders/frontend";
const ORDERS: &str = "orders/order-service";
const INVENTORY: &str = "orders/inventory";

#[tokio::test]
async fn each_node_gets_its_part_and_nothing_by_asking() {
    let control = control();
    let (frontend, orders) = (config(FRONTEND, &[ORDERS], 1), config(ORDERS, &[], 1));
    control.publish(&definitions([frontend.clone(), orders.clone(), config(INVENTORY, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let (member_one, member_two) =
        (control.admit("one", only(&[FRONTEND])).unwrap(), control.admit("two", only(&[ORDERS])).unwrap());
    let (one, mut updates_one) = node(&served, &member_one, 1);
    let (two, mut updates_two) = node(&served, &member_two, 2);
    connected(&one).await;
    connected(&two).await;
    eventually_async("the node to be connected", || control.status().nodes.iter().all(|node| node.connected)).await;
    one.subscribe([Subject::Hosted, Subject::Mesh]);
    // The control plane refuses subscriptions that the node may not have; the rest of the message
    // counts.
    two.subscribe([Subject::Routes, config_of(FRONTEND), config_of(ORDERS), endpoints_of(INVENTORY), Subject::Hosted]);
    let got = accepted(&mut updates_one).await;
    assert_eq!(subjects(&got), [Subject::Mesh, config_of(FRONTEND), endpoints_of(ORDERS), Subject::Hosted]);
    assert_eq!(got[0], Change::Set(Resource::Mesh(Box::new(mesh()))));
    assert_eq!(got[1], Change::Set(Resource::FunctionConfig(Box::new(delivered(frontend)))));
    let got = accepted(&mut updates_two).await;
    assert_eq!(got, [Change::Set(Resource::FunctionConfig(Box::new(delivered(orders)))), part(only(&[ORDERS]))]);
    assert_eq!(control.counters("two").unwrap().refused, 4);
    assert_eq!(control.counters("one").unwrap().refused, 0);

    // A change of a third function concerns neither, so the next thing that either hears of is the
    // change after it.
    control
        .publish(&definitions([config(FRONTEND, &[ORDERS], 1), config(ORDERS, &[], 1), config(INVENTORY, &[], 2)]))
        .unwrap();
    control
        .publish(&definitions([config(FRONTEND, &[ORDERS], 2), config(ORDERS, &[], 2), config(INVENTORY, &[], 2)]))
        .unwrap();
    assert_eq!(subjects(&accepted(&mut updates_one).await), [config_of(FRONTEND)]);
    assert_eq!(subjects(&accepted(&mut updates_two).await), [config_of(ORDERS)]);
    assert_eq!(control.counters("two").unwrap().messages, 2);
}

#[tokio::test]
async fn reports_count_only_for_what_a_node_hosts_or_still_has() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[ORDERS], 1), config(ORDERS, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", only(&[ORDERS])).unwrap();
    let (agent, _updates) = node(&served, &member, 1);
    connected(&agent).await;
    let count = |index: usize| control.status().functions[index].instances.len();
    agent.report(&function(FRONTEND), instances(3));
    agent.report_request_counts(&function(FRONTEND), &[(1, Default::default())]);
    agent.report_loads(&[load(FRONTEND, 1, 0)]);
    agent.report(&function(ORDERS), instances(2));
    eventually_async("the count of streams", || count(1) == 2).await;
    assert_eq!((count(0), control.counters("one").unwrap().refused), (0, 3));

    // The function moves away. Its remaining instances drain, and the node may report them until
    // they end.
    control.place("one", only(&[])).unwrap();
    agent.report(&function(ORDERS), instances(1));
    eventually_async("the count of streams", || count(1) == 1).await;
    agent.report(&function(ORDERS), instances(0));
    eventually_async("the count of streams", || count(1) == 0).await;
    agent.report(&function(ORDERS), instances(1));
    eventually_async("the refusals to be counted", || control.counters("one").unwrap().refused == 4).await;
    assert_eq!(count(1), 0);
}

#[tokio::test]
async fn a_function_can_be_added_alone() {
    let control = control();
    let early = control.put(&config(ORDERS, &[], 1)).unwrap_err();
    assert!(early.to_string().contains("nothing was published yet"), "{early}");
    control.publish(&definitions([exposed(config(FRONTEND, &[ORDERS], 1))])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted, Subject::Routes]);
    while !accepted(&mut updates).await.iter().any(|change| change.subject() == Subject::Hosted) {}

    assert!(control.put(&config(ORDERS, &[], 1)).unwrap());
    let mut got = BTreeSet::new();
    while got.len() < 2 {
        got.extend(subjects(&accepted(&mut updates).await));
    }
    // Of the function that was there, only that its callee exists now.
    assert_eq!(got, BTreeSet::from([config_of(ORDERS), endpoints_of(ORDERS)]));
    assert!(!control.put(&config(ORDERS, &[], 1)).unwrap(), "it is there already");

    assert!(control.put(&exposed(config(ORDERS, &[], 2))).unwrap());
    assert_eq!(subjects(&accepted(&mut updates).await), [config_of(ORDERS)]);
    // All at once comes to the same.
    let all = definitions([exposed(config(FRONTEND, &[ORDERS], 1)), exposed(config(ORDERS, &[], 2))]);
    assert_eq!(control.publish(&all).unwrap().changed, 0);
}

#[tokio::test]
async fn a_change_pushes_just_the_difference() {
    let control = control();
    let names: Vec<String> = (0..100).map(|number| format!("many/function-{number}")).collect();
    let edition = |changed: usize, edition| {
        let configs = names.iter().enumerate();
        definitions(configs.map(|(number, name)| config(name, &[], if number == changed { edition } else { 1 })))
    };
    assert_eq!(control.publish(&edition(0, 1)).unwrap().changed, 100);
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted, Subject::Mesh, Subject::Bundle, Subject::Routes]);
    let first = accepted(&mut updates).await;
    assert_eq!(first.len(), 104);
    eventually_async("the acknowledgement", || control.counters("one").unwrap().acks == 1).await;
    let before = control.counters("one").unwrap();

    let published = control.publish(&edition(42, 2)).unwrap();
    assert_eq!((published.functions, published.changed, published.removed), (100, 1, 0));
    let changes = accepted(&mut updates).await;
    assert_eq!(
        changes,
        [Change::Set(Resource::FunctionConfig(Box::new(delivered(config("many/function-42", &[], 2)))))]
    );
    let after = control.counters("one").unwrap();
    assert_eq!((after.messages - before.messages, after.resources - before.resources), (1, 1));
    assert!(after.bytes - before.bytes < before.bytes / 50, "{before:?} {after:?}");

    // The same again is no change at all.
    assert_eq!(control.publish(&edition(42, 2)).unwrap().changed, 0);
    control.publish(&edition(43, 2)).unwrap();
    assert_eq!(subjects(&accepted(&mut updates).await), [config_of("many/function-42"), config_of("many/function-43")]);
    assert_eq!(control.counters("one").unwrap().messages, after.messages + 1);
}

#[tokio::test]
async fn bytes_are_counted_as_they_are_sent() {
    let control = control();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    accepted(&mut updates).await;
    let before = control.counters("one").unwrap().bytes;
    control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    accepted(&mut updates).await;
    let once = control.counters("one").unwrap().bytes - before;
    control.publish(&definitions([config(FRONTEND, &[], 2)])).unwrap();
    accepted(&mut updates).await;
    assert_eq!(control.counters("one").unwrap().bytes, before + 2 * once);
    let mut longer = config(FRONTEND, &[], 2);
    longer.identity = format!("{}{}", longer.identity, "x".repeat(1000)).parse().unwrap();
    control.publish(&definitions([longer])).unwrap();
    accepted(&mut updates).await;
    let more = control.counters("one").unwrap().bytes - before - 3 * once;
    assert!((1000..1010).contains(&more), "{more} more bytes for 1000 more characters");
}

#[tokio::test]
async fn a_rejection_is_recorded_and_the_old_version_stays() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[], 1), config(ORDERS, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    accepted(&mut updates).await;
    let before = agent.held();

    control.publish(&definitions([config(FRONTEND, &[], 2), config(ORDERS, &[], 2)])).unwrap();
    next(&mut updates).await.reject([(config_of(FRONTEND), "its program does not load".to_owned())]);
    assert_eq!(agent.held()[&config_of(FRONTEND)], before[&config_of(FRONTEND)]);
    assert_ne!(agent.held()[&config_of(ORDERS)], before[&config_of(ORDERS)]);
    eventually_async("the rejection to be counted", || control.counters("one").unwrap().rejections == 1).await;
    let rejected = control.status().nodes[0].rejected.clone();
    assert_eq!(rejected.len(), 1);
    assert_eq!(
        (&rejected[0].subject, rejected[0].reason.as_str()),
        (&config_of(FRONTEND), "its program does not load")
    );
    assert_eq!(rejected[0].in_force, Some(before[&config_of(FRONTEND)]));
    let tried = control.status().functions.iter().find(|status| status.function == function(FRONTEND)).unwrap().version;
    assert_eq!(rejected[0].version, tried);

    // It is not tried again until it changes; then the record goes.
    control.publish(&definitions([config(FRONTEND, &[], 2), config(ORDERS, &[], 3)])).unwrap();
    assert_eq!(subjects(&accepted(&mut updates).await), [config_of(ORDERS)]);
    control.publish(&definitions([config(FRONTEND, &[], 3), config(ORDERS, &[], 3)])).unwrap();
    assert_eq!(subjects(&accepted(&mut updates).await), [config_of(FRONTEND)]);
    eventually_async("the node's rejections to change", || control.status().nodes[0].rejected.is_empty()).await;
}

#[tokio::test]
async fn an_update_that_is_dropped_or_refused_as_a_whole_is_rejected() {
    let control = control();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    accepted(&mut updates).await;
    control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    drop(next(&mut updates).await);
    eventually_async("the rejection to be counted", || control.counters("one").unwrap().rejections == 1).await;
    let rejected = control.status().nodes[0].rejected[0].clone();
    assert_eq!((rejected.reason.as_str(), rejected.in_force), ("the node did not apply it", None));
    control.publish(&definitions([config(FRONTEND, &[], 2)])).unwrap();
    next(&mut updates).await.reject_all("no memory");
    eventually_async("the rejection to be counted", || control.counters("one").unwrap().rejections == 2).await;
    assert_eq!(control.status().nodes[0].rejected[0].reason, "no memory");
    assert_eq!(agent.held().len(), 1);
}

#[tokio::test]
async fn removals_are_explicit() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[ORDERS], 1), config(ORDERS, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", only(&[FRONTEND])).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    assert_eq!(subjects(&accepted(&mut updates).await), [config_of(FRONTEND), endpoints_of(ORDERS), Subject::Hosted]);

    // A callee goes, and with it its endpoints.
    control.publish(&definitions([config(FRONTEND, &[ORDERS], 1)])).unwrap();
    assert_eq!(accepted(&mut updates).await, [Change::Removed(endpoints_of(ORDERS))]);
    // The function itself goes.
    let published = control.publish(&definitions([config(INVENTORY, &[], 1)])).unwrap();
    assert_eq!((published.functions, published.changed, published.removed), (1, 1, 1));
    assert_eq!(accepted(&mut updates).await, [Change::Removed(config_of(FRONTEND))]);
    assert_eq!(agent.held().into_keys().collect::<Vec<_>>(), [Subject::Hosted]);

    agent.unsubscribe([Subject::Hosted]);
    assert_eq!(accepted(&mut updates).await, [Change::Removed(Subject::Hosted)]);
    assert!(agent.held().is_empty());
}

#[tokio::test]
async fn a_new_function_costs_its_node_one_message() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    accepted(&mut updates).await;
    let before = control.counters("one").unwrap();
    control.publish(&definitions([config(FRONTEND, &[], 1), config(ORDERS, &[FRONTEND], 1)])).unwrap();
    let changes = accepted(&mut updates).await;
    assert_eq!(subjects(&changes), [config_of(ORDERS), endpoints_of(FRONTEND)]);
    assert_eq!(control.counters("one").unwrap().messages, before.messages + 1);
}

#[tokio::test]
async fn placement_moves_functions_between_nodes() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[ORDERS], 1), config(ORDERS, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let (member_one, member_two) =
        (control.admit("one", only(&[FRONTEND])).unwrap(), control.admit("two", only(&[ORDERS])).unwrap());
    let (one, mut updates_one) = node(&served, &member_one, 1001);
    let (two, mut updates_two) = node(&served, &member_two, 1002);
    connected(&two).await;
    eventually_async("the node to be connected", || control.status().nodes[1].connected).await;
    one.subscribe([Subject::Hosted]);
    two.subscribe([Subject::Hosted]);
    let at = |node: &str, port, ready| Endpoint {
        node: node.to_owned(),
        address: SocketAddr::from(([127, 0, 0, 1], port)),
        ready,
        locality: Default::default(),
    };
    let endpoints = |endpoints: Vec<Endpoint>| Change::Set(Resource::Endpoints(function(ORDERS), endpoints));
    assert_eq!(accepted(&mut updates_one).await[1], endpoints(vec![at("two", 1002, 0)]));
    assert_eq!(accepted(&mut updates_two).await.len(), 2);

    control.place("two", only(&[])).unwrap();
    assert_eq!(accepted(&mut updates_one).await, [endpoints(vec![])]);
    assert_eq!(accepted(&mut updates_two).await, [part(only(&[])), Change::Removed(config_of(ORDERS))]);
    control.place("one", everything()).unwrap();
    assert_eq!(
        accepted(&mut updates_one).await,
        [Change::Set(Resource::FunctionConfig(Box::new(delivered(config(ORDERS, &[], 1))))), part(everything())]
    );
}

#[tokio::test]
async fn endpoints_go_to_callers_at_once_and_to_nobody_else() {
    let control = control();
    control
        .publish(&definitions([config(FRONTEND, &[ORDERS], 1), config(ORDERS, &[], 1), config(INVENTORY, &[], 1)]))
        .unwrap();
    let served = TestServer::start(&control).await;
    let members = [("caller", FRONTEND), ("callee", ORDERS), ("other", INVENTORY)]
        .map(|(name, function)| control.admit(name, only(&[function])).unwrap());
    let (caller, mut to_caller) = node(&served, &members[0], 1001);
    let (callee, mut to_callee) = node(&served, &members[1], 1002);
    let (other, mut to_other) = node(&served, &members[2], 1003);
    eventually_async("the node to be connected", || control.status().nodes.iter().all(|node| node.connected)).await;
    for (agent, updates) in [(&caller, &mut to_caller), (&callee, &mut to_callee), (&other, &mut to_other)] {
        agent.subscribe([Subject::Hosted]);
        accepted(updates).await;
    }
    let messages = |node| control.counters(node).unwrap().messages;
    let before = (messages("caller"), messages("callee"), messages("other"));

    // From zero to one, and on to two; a starting instance changes nothing for callers.
    for ready in [1, 2] {
        callee.report(&function(ORDERS), instances(ready));
        let expected = Endpoint {
            node: "callee".to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], 1002)),
            ready: ready as u32,
            locality: Default::default(),
        };
        assert_eq!(
            accepted(&mut to_caller).await,
            [Change::Set(Resource::Endpoints(function(ORDERS), vec![expected]))]
        );
    }
    let mut starting = instances(3);
    starting[2].state = leno_model::InstanceState::Starting;
    callee.report(&function(ORDERS), starting.clone());
    eventually_async("the reports to arrive", || control.counters("callee").unwrap().reports == 3).await;
    assert_eq!((messages("caller"), messages("callee"), messages("other")), (before.0 + 2, before.1, before.2));
    let status = control.status();
    let orders = status.functions.iter().find(|status| status.function == function(ORDERS)).unwrap();
    assert_eq!(
        orders.instances.iter().map(|hosted| (&*hosted.node, &hosted.instance)).collect::<Vec<_>>(),
        starting.iter().map(|i| ("callee", i)).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn gateways_get_routes_of_documents_and_the_functions_that_they_lead_to() {
    let control = control();
    let routed = FunctionConfig { is_routed: true, ..config(ORDERS, &[], 1) };
    let first = Definitions { routes: gateway_routes(ORDERS), ..definitions([routed.clone()]) };
    control.publish(&first).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("edge", leno_control::Admission { gateway: true, ..only(&[]) }).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Routes]);
    let changes = accepted(&mut updates).await;
    assert_eq!(subjects(&changes), [route_to(ORDERS), endpoints_of(ORDERS), Subject::Routes]);
    assert_eq!(changes[2], Change::Set(Resource::Routes(Box::new(gateway_routes(ORDERS)))));

    // One function alone changes nothing about the routes, and a change of the routes comes alone.
    let plain = config(ORDERS, &[], 1);
    let mut moved = gateway_routes(ORDERS);
    moved.listeners[0].port = 8081;
    control.change_after(&[], &[], Some(&moved), &first.permissions, || Ok::<_, PublishError>(())).unwrap();
    let changes = accepted(&mut updates).await;
    assert_eq!(changes, [Change::Set(Resource::Routes(Box::new(moved)))]);
    let none = Default::default();
    control.change_after(&[&plain], &[], Some(&none), &first.permissions, || Ok::<_, PublishError>(())).unwrap();
    let changes = accepted(&mut updates).await;
    assert!(changes.contains(&Change::Set(Resource::Routes(Box::default()))), "{changes:?}");
    assert!(changes.contains(&Change::Removed(route_to(ORDERS))), "{changes:?}");
}

#[tokio::test]
async fn a_gateway_follows_the_routes() {
    let control = control();
    control.publish(&definitions([exposed(config(FRONTEND, &[ORDERS], 1)), config(ORDERS, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("edge", leno_control::Admission { gateway: true, ..only(&[]) }).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Routes]);
    let changes = accepted(&mut updates).await;
    assert_eq!(subjects(&changes), [route_to(FRONTEND), endpoints_of(FRONTEND), Subject::Routes]);
    assert_eq!(changes[2], Change::Set(Resource::Routes(Box::default())));
    let route = Route::of(&delivered(exposed(config(FRONTEND, &[ORDERS], 1)))).unwrap();
    assert_eq!(changes[0], Change::Set(Resource::Route(Box::new(route))), "no rule, no key, no callee");

    control.publish(&definitions([config(FRONTEND, &[ORDERS], 1), exposed(config(ORDERS, &[], 1))])).unwrap();
    let changes = accepted(&mut updates).await;
    assert_eq!(
        subjects(&changes),
        [route_to(ORDERS), endpoints_of(ORDERS), route_to(FRONTEND), endpoints_of(FRONTEND)]
    );
    assert!(changes[2..].iter().all(|change| matches!(change, Change::Removed(_))));

    // For a function that the node hosts, the route is part of its configuration.
    control.place("edge", leno_control::Admission { gateway: true, ..only(&[ORDERS]) }).unwrap();
    agent.subscribe([Subject::Hosted]);
    let mut got = BTreeSet::new();
    while !got.contains(&route_to(ORDERS)) {
        let changes = accepted(&mut updates).await;
        let removed = |change: &Change| *change == Change::Removed(Subject::Route(function(ORDERS)));
        assert_eq!(changes.iter().any(removed), subjects(&changes).contains(&route_to(ORDERS)));
        got.extend(subjects(&changes));
    }
    assert!(got.contains(&config_of(ORDERS)), "{got:?}");
}

#[tokio::test]
async fn thousands_of_functions_arrive_in_pieces_and_completely() {
    let control = control();
    let names: Vec<String> = (0..5000).map(|number| format!("many/function-{number:04}")).collect();
    control.publish(&definitions(names.iter().map(|name| config(name, &[], 1)))).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    let mut order = Vec::new();
    let mut pieces = 0;
    while order.last() != Some(&Subject::Hosted) {
        order.extend(subjects(&accepted(&mut updates).await));
        pieces += 1;
    }
    assert!(pieces > 1, "{pieces}");
    let expected: Vec<_> = names.iter().map(|name| config_of(name)).chain([Subject::Hosted]).collect();
    assert!(order == expected, "{} resources", order.len());
    let counters = control.counters("one").unwrap();
    assert_eq!((counters.messages, counters.resources), (pieces, 5001));

    // And they go completely, while the stream is served.
    let publishing = control.clone();
    tokio::task::spawn_blocking(move || publishing.publish(&definitions([]))).await.unwrap().unwrap();
    let changes = accepted(&mut updates).await;
    assert_eq!(changes.len(), 5000);
    assert_eq!(agent.held().len(), 1);
}

#[tokio::test]
async fn a_node_that_reads_slowly_gets_the_latest_and_not_the_history() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[], 0)])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    let first = next(&mut updates).await;
    for edition in 1..=500 {
        control.publish(&definitions([config(FRONTEND, &[], edition)])).unwrap();
        tokio::task::yield_now().await;
    }
    first.accept();
    let mut received = 0;
    loop {
        let changes = accepted(&mut updates).await;
        received += 1;
        if changes == [Change::Set(Resource::FunctionConfig(Box::new(delivered(config(FRONTEND, &[], 500)))))] {
            break;
        }
    }
    // Those that were on their way when it began to read, and the latest.
    assert!(received <= 17, "{received} of 500 editions were sent");
}

#[tokio::test]
async fn a_second_stream_of_a_node_ends_the_first() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (first, _updates) = node(&served, &member, 1);
    connected(&first).await;
    eventually_async("the stream to begin", || control.counters("one").unwrap().streams == 1).await;
    let (second, mut updates) = node(&served, &member, 1);
    second.subscribe([Subject::Hosted]);
    assert_eq!(subjects(&accepted(&mut updates).await), [config_of(FRONTEND), Subject::Hosted]);
    drop(first);
    // The process that is left keeps the stream of the node.
    eventually_async("the node to be connected", || control.status().nodes[0].connected).await;
    control.publish(&definitions([config(FRONTEND, &[], 2)])).unwrap();
    loop {
        let changes = accepted(&mut updates).await;
        if changes == [Change::Set(Resource::FunctionConfig(Box::new(delivered(config(FRONTEND, &[], 2)))))] {
            break;
        }
    }
}

#[tokio::test]
async fn endpoints_of_a_lost_node_go_after_a_while() {
    let options = leno_control::Options { node_grace: Duration::from_millis(50) };
    let control = control_with(leno_control::Store::memory(), options);
    control.publish(&definitions([config(FRONTEND, &[ORDERS], 1), config(ORDERS, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let (member_one, member_two) =
        (control.admit("one", only(&[FRONTEND])).unwrap(), control.admit("two", only(&[ORDERS])).unwrap());
    let (two, _updates_two) = node(&served, &member_two, 1002);
    two.report(&function(ORDERS), instances(1));
    eventually_async("the status of the instances", || control.status().functions[1].instances.len() == 1).await;
    let (one, mut updates_one) = node(&served, &member_one, 1001);
    one.subscribe([Subject::Hosted]);
    let expected = Endpoint {
        node: "two".to_owned(),
        address: SocketAddr::from(([127, 0, 0, 1], 1002)),
        ready: 1,
        locality: Default::default(),
    };
    assert_eq!(accepted(&mut updates_one).await[1], Change::Set(Resource::Endpoints(function(ORDERS), vec![expected])));
    drop(two);
    assert_eq!(accepted(&mut updates_one).await, [Change::Set(Resource::Endpoints(function(ORDERS), vec![]))]);
    assert!(control.status().functions[1].instances.is_empty());
}

#[tokio::test]
async fn a_module_comes_before_its_config_and_goes_when_nothing_names_it() {
    let control = control();
    let module: std::sync::Arc<[u8]> = vec![7; 3 << 20].into();
    let hash = leno_wire::module_hash(&module);
    let with = |edition| {
        let mut definitions = definitions([
            configs::extended(config(FRONTEND, &[], edition), &module),
            configs::extended(config(ORDERS, &[], 1), &module),
        ]);
        definitions.modules.insert(hash, module.clone());
        definitions
    };
    control.publish(&with(1)).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    // One delivery for both, before any other.
    let first = accepted(&mut updates).await;
    let Some(Change::Set(Resource::Module(named, bytes))) = first.first() else { panic!("{:?}", subjects(&first)) };
    assert!(*named == hash && *bytes == *module);
    let mut seen = subjects(&first);
    while !seen.contains(&Subject::Hosted) {
        seen.extend(subjects(&accepted(&mut updates).await));
    }
    assert_eq!(seen, [Subject::Module(hash), config_of(FRONTEND), config_of(ORDERS), Subject::Hosted]);
    // A changed function configuration does not deliver its module again.
    control.publish(&with(2)).unwrap();
    assert_eq!(subjects(&accepted(&mut updates).await), [config_of(FRONTEND)]);
    // No function names the module any more.
    control.publish(&definitions([config(FRONTEND, &[], 2), config(ORDERS, &[], 1)])).unwrap();
    let changes = accepted(&mut updates).await;
    assert_eq!(subjects(&changes), [config_of(FRONTEND), config_of(ORDERS), Subject::Module(hash)]);
    assert_eq!(changes.last(), Some(&Change::Removed(Subject::Module(hash))));
}
