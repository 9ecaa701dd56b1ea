//! Which node gets which stored secrets, and when they are withdrawn.

use crate::support::configs::{config, function};
use crate::support::*;
use leno_agent::Change;
use leno_control::{Definitions, Secrets};
use leno_model::{FunctionConfig, ModuleUrl, Run, Secret, SecretBytes, SecretSource, SecretValues, StoredKey, Wasm};
use leno_testkit::eventually_async;
use leno_wire::{ListenerFault, ListenerFaultKind, Resource, Subject};
use std::collections::BTreeMap;
use std::time::Duration;

const SHOP: &str = "orders/shop";
const OTHER: &str = "orders/other";

fn key(key: &str) -> StoredKey {
    StoredKey { secret: "db".to_owned(), key: key.to_owned() }
}

/// A function that names these keys.
fn with_keys(name: &str, keys: &[&str], edition: u32) -> FunctionConfig {
    let mut config = config(name, &[], edition);
    let secret =
        |name: &&str| Secret { name: (*name).to_owned(), from: SecretSource::Stored(key(name)), environment: true };
    config.run = Run::Wasm(Wasm {
        module: [7; 32].into(),
        url: Some(ModuleUrl { url: "https://modules.example/a.wasm".to_owned(), ca_file: None, ca: String::new() }),
        memory: 1 << 20,
        env: BTreeMap::new(),
        secrets: keys.iter().map(secret).collect(),
        grace: Duration::ZERO,
    });
    config
}

fn values(values: &[(&str, &str, u8)]) -> SecretValues {
    let value = |(name, value, mark): &(&str, &str, u8)| {
        (key(name), SecretBytes::new(value.as_bytes().to_vec().into(), [*mark; 16]))
    };
    values.iter().map(value).collect()
}

fn publish(control: &leno_control::Control, configs: Vec<FunctionConfig>, orders: SecretValues) {
    let secrets: Secrets = BTreeMap::from([
        ("orders".to_owned(), orders),
        ("elsewhere".to_owned(), values(&[("password", "of another namespace", 1)])),
    ]);
    control.publish(&Definitions { secrets: Some(secrets), ..definitions(configs) }).unwrap();
}

fn secrets_of(name: &str) -> Subject {
    Subject::Secrets(function(name))
}

/// The texts in the secrets of a change.
fn texts(change: &Change) -> Vec<String> {
    let Change::Set(Resource::Secrets(_, values)) = change else { panic!("{change:?}") };
    values.iter().map(|(key, value)| format!("{}={}", key.key, String::from_utf8_lossy(value.expose()))).collect()
}

#[tokio::test]
async fn only_nodes_that_host_a_function_get_its_keys_until_they_do_not() {
    let control = control();
    let shop = || with_keys(SHOP, &["password"], 1);
    publish(&control, vec![shop(), config(OTHER, &[], 1)], values(&[("password", "one", 1), ("unused", "x", 2)]));
    let served = TestServer::start(&control).await;
    let members = [SHOP, OTHER].map(|name| control.admit(name.rsplit('/').next().unwrap(), only(&[name])).unwrap());
    let (one, mut updates_one) = node(&served, &members[0], 1);
    let (two, mut updates_two) = node(&served, &members[1], 2);
    one.subscribe([Subject::Hosted]);
    two.subscribe([secrets_of(SHOP), Subject::Hosted]);
    let got = accepted(&mut updates_one).await;
    assert_eq!(subjects(&got), [secrets_of(SHOP), config_of(SHOP), Subject::Hosted], "secrets come first");
    assert_eq!(texts(&got[0]), ["password=one"], "and only those that it names");
    assert!(!format!("{got:?}").contains("one="), "nothing prints them");
    assert_eq!(subjects(&accepted(&mut updates_two).await), [config_of(OTHER), Subject::Hosted]);
    assert_eq!(control.counters("other").unwrap().refused, 1, "nobody gets them by asking");

    // A changed value is sent alone. The version says nothing about the value.
    publish(&control, vec![shop(), config(OTHER, &[], 1)], values(&[("password", "two", 3)]));
    let got = accepted(&mut updates_one).await;
    assert_eq!((subjects(&got), texts(&got[0])), (vec![secrets_of(SHOP)], vec!["password=two".to_owned()]));

    // The function moves: one node loses the values, the other one gets them.
    control.place("other", only(&[SHOP, OTHER])).unwrap();
    let got = accepted(&mut updates_two).await;
    assert_eq!(texts(&got[0]), ["password=two"]);
    control.place("shop", only(&[])).unwrap();
    let got = accepted(&mut updates_one).await;
    assert!(got.contains(&Change::Removed(secrets_of(SHOP))), "{got:?}");

    // A function that names none has none.
    publish(&control, vec![config(SHOP, &[], 2), config(OTHER, &[], 1)], values(&[("password", "three", 4)]));
    let got = accepted(&mut updates_two).await;
    assert_eq!(subjects(&got), [config_of(SHOP), secrets_of(SHOP)]);
    assert_eq!(got[1], Change::Removed(secrets_of(SHOP)));
}

#[tokio::test]
async fn a_control_plane_that_does_not_know_the_values_yet_takes_none_away() {
    let control = control();
    let shop = || vec![with_keys(SHOP, &["password"], 1)];
    control.publish(&definitions(shop())).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", only(&[SHOP])).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    assert_eq!(subjects(&accepted(&mut updates).await), [config_of(SHOP), Subject::Hosted]);
    publish(&control, shop(), values(&[("password", "one", 1)]));
    assert_eq!(subjects(&accepted(&mut updates).await), [secrets_of(SHOP)]);
}

/// The certificates of listeners are stored secrets of any namespace, by `namespace/name`.
#[tokio::test]
async fn only_gateways_get_the_certificates_of_listeners() {
    let control = control();
    let publish = |named: &[&str], secret: SecretValues| {
        let mut routes = gateway_routes(SHOP);
        routes.listeners[0].certificates = named.iter().map(ToString::to_string).collect();
        let secrets: Secrets = BTreeMap::from([("orders".to_owned(), secret)]);
        let definitions = Definitions { routes, secrets: Some(secrets), ..definitions(vec![config(OTHER, &[], 1)]) };
        control.publish(&definitions).unwrap();
    };
    let all = |mark| values(&[("tls.crt", "chain", mark), ("tls.key", "key", mark), ("other", "more", mark)]);
    publish(&["orders/db"], all(1));
    let served = TestServer::start(&control).await;
    let admission = leno_control::Admission { gateway: true, ..only(&[]) };
    let members = [control.admit("edge", admission).unwrap(), control.admit("node", only(&[OTHER])).unwrap()];
    let (edge, mut of_edge) = node(&served, &members[0], 1);
    let (node, mut of_node) = node(&served, &members[1], 2);
    edge.subscribe([Subject::Routes]);
    node.subscribe([Subject::Certificates, Subject::Routes, Subject::Hosted]);
    let got = accepted(&mut of_edge).await;
    assert_eq!(subjects(&got), [Subject::Certificates, Subject::Routes], "they come first");
    let texts = |change: &Change| -> Vec<String> {
        let Change::Set(Resource::Certificates(values)) = change else { panic!("{change:?}") };
        let text = |(key, value): (&StoredKey, &SecretBytes)| {
            format!("{} {}={}", key.secret, key.key, String::from_utf8_lossy(value.expose()))
        };
        values.iter().map(text).collect()
    };
    assert_eq!(texts(&got[0]), ["orders/db tls.crt=chain", "orders/db tls.key=key"], "and only these keys");
    assert!(!format!("{got:?}").contains("chain"), "nothing prints them");
    assert_eq!(subjects(&accepted(&mut of_node).await), [config_of(OTHER), Subject::Hosted]);
    assert_eq!(control.counters("node").unwrap().refused, 2, "nobody gets them by asking");
    // A renewed one is sent alone, and is gone with its listener.
    publish(&["orders/db"], all(2));
    assert_eq!(subjects(&accepted(&mut of_edge).await), [Subject::Certificates]);
    publish(&[], all(2));
    let got = accepted(&mut of_edge).await;
    assert!(got.contains(&Change::Removed(Subject::Certificates)), "{got:?}");
}

#[tokio::test]
async fn a_gateway_reports_the_listeners_that_it_cannot_serve() {
    let control = control();
    control.publish(&definitions(vec![config(OTHER, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let admission = leno_control::Admission { gateway: true, ..only(&[]) };
    let members = [control.admit("edge", admission).unwrap(), control.admit("node", only(&[OTHER])).unwrap()];
    let (edge, _of_edge) = node(&served, &members[0], 1);
    let (node, _of_node) = node(&served, &members[1], 2);
    let fault = ListenerFault {
        listener: "shop/edge/tls".to_owned(),
        kind: ListenerFaultKind::Port,
        reason: "it is taken".to_owned(),
    };
    // The report counts though the stream begins later.
    assert!(
        edge.report_listeners(std::slice::from_ref(&fault)) && !edge.report_listeners(std::slice::from_ref(&fault))
    );
    assert!(node.report_listeners(std::slice::from_ref(&fault)));
    let reported = || control.listener_faults();
    eventually_async("the report", || (reported() == [("edge".to_owned(), fault.clone())]).then_some(())).await;
    assert!(edge.report_listeners(&[]));
    eventually_async("the end of the fault", || reported().is_empty().then_some(())).await;
    eventually_async("the refusal", || (control.counters("node").unwrap().refused > 0).then_some(())).await;
}
