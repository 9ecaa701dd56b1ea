//! Which node gets which stored secrets, and when they are withdrawn.

use crate::support::configs::{config, function};
use crate::support::*;
use leno_agent::Change;
use leno_control::{Definitions, Secrets};
use leno_model::{FunctionConfig, ModuleUrl, Run, Secret, SecretBytes, SecretSource, SecretValues, StoredKey, Wasm};
use leno_wire::{Resource, Subject};
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
