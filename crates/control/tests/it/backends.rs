//! Properties that every back end of the store must have, and further ones of etcd.

use leno_control::{Backend, Etcd, EtcdOptions, Listing, Redb, StoreError, Term, Transaction};
use leno_testkit::{EtcdServer, eventually};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn connect(server: &EtcdServer) -> Etcd {
    Etcd::connect(EtcdOptions {
        endpoints: vec![server.address()],
        prefix: "/test".to_owned(),
        lease: Duration::from_secs(2),
        ..EtcdOptions::default()
    })
    .unwrap()
}

/// Runs a test with each back end. The term keeps the right to commit.
fn each(test: impl Fn(&dyn Backend)) {
    let folder = tempfile::tempdir().unwrap();
    let redb = Redb::open(&folder.path().join("store.redb")).unwrap();
    let _term = redb.try_lead("a").unwrap().unwrap();
    test(&redb);
    let server = EtcdServer::start();
    let etcd = connect(&server);
    let _term = etcd.try_lead("a").unwrap().unwrap();
    test(&etcd);
}

fn put(key: &str, value: &str) -> Transaction {
    let mut transaction = Transaction::default();
    transaction.put(key, value);
    transaction
}

fn expecting(key: &str, version: u64, value: &str) -> Transaction {
    let mut transaction = put(key, value);
    transaction.expect(key, version);
    transaction
}

fn texts(listing: &Listing) -> Vec<(String, String)> {
    let text = |value: &Vec<u8>| String::from_utf8(value.clone()).unwrap();
    listing.entries.iter().map(|entry| (entry.key.clone(), text(&entry.value))).collect()
}

#[test]
fn entries_are_put_read_listed_and_deleted() {
    each(|store| {
        assert_eq!(store.get("documents/a").unwrap(), None);
        let first = store.commit(&put("documents/a", "1")).unwrap();
        let entry = store.get("documents/a").unwrap().unwrap();
        assert_eq!((entry.key.as_str(), entry.value.as_slice(), entry.version), ("documents/a", &b"1"[..], first));
        let mut several = put("documents/b/c", "2");
        several.put("documentsz", "3");
        several.put("document", "4");
        let second = store.commit(&several).unwrap();
        assert!(second > first);
        let listing = store.list("documents/").unwrap();
        assert!(listing.revision >= second);
        assert_eq!(texts(&listing), [("documents/a".into(), "1".into()), ("documents/b/c".into(), "2".into())]);
        assert_eq!(listing.entries[1].version, second);
        let mut removal = Transaction::default();
        removal.delete("documents/a");
        removal.delete("documents/nothing");
        store.commit(&removal).unwrap();
        assert_eq!(texts(&store.list("documents/").unwrap()), [("documents/b/c".into(), "2".into())]);
        assert_eq!(store.list("x/").unwrap().entries, []);
    });
}

#[test]
fn many_entries_are_listed_whole_and_in_order() {
    each(|store| {
        for hundred in 0..7 {
            let mut transaction = Transaction::default();
            (0..100).for_each(|number| transaction.put(format!("many/{hundred}{number:02}"), "x"));
            store.commit(&transaction).unwrap();
        }
        let keys: Vec<String> = store.list("many/").unwrap().entries.into_iter().map(|entry| entry.key).collect();
        assert_eq!(keys, (0..700).map(|number| format!("many/{number:03}")).collect::<Vec<_>>());
    });
}

#[test]
fn the_last_entries_are_read_a_page_at_a_time() {
    each(|store| {
        assert_eq!(store.last("page/", None, 3).unwrap(), []);
        let mut transaction = Transaction::default();
        (0..5).for_each(|number| transaction.put(format!("page/{number}"), "x"));
        ["pag/9", "page", "page0", "pagez/9"].iter().for_each(|other| transaction.put(*other, "x"));
        let version = store.commit(&transaction).unwrap();
        let last = |before: Option<&str>, most: usize| {
            let read = store.last("page/", before, most).unwrap();
            assert!(read.iter().all(|entry| entry.version == version && entry.value == b"x"), "{read:?}");
            read.into_iter().map(|entry| entry.key).collect::<Vec<_>>()
        };
        assert_eq!(last(None, 3), ["page/4", "page/3", "page/2"]);
        assert_eq!(last(Some("page/2"), 3), ["page/1", "page/0"]);
        assert_eq!(last(Some("page/0"), 3), [""; 0]);
        assert_eq!(last(None, 9).len(), 5);
    });
}

#[test]
fn a_transaction_is_refused_as_a_whole_if_an_entry_has_changed() {
    each(|store| {
        let first = store.commit(&expecting("a", 0, "1")).unwrap();
        let again = store.commit(&expecting("a", 0, "2")).unwrap_err();
        assert!(matches!(&again, StoreError::Conflict { key } if key == "a"), "{again}");
        store.commit(&expecting("a", first, "2")).unwrap();
        let mut stale = expecting("a", first, "3");
        stale.put("b", "3");
        assert!(matches!(store.commit(&stale), Err(StoreError::Conflict { .. })));
        assert_eq!(store.get("b").unwrap(), None);
        assert_eq!(store.get("a").unwrap().unwrap().value, b"2");
        let mut removal = Transaction::default();
        removal.delete("a");
        store.commit(&removal).unwrap();
        // An entry that is made again has another version than it ever had.
        let made_again = store.commit(&expecting("a", 0, "4")).unwrap();
        assert!(made_again > first);
    });
}

#[test]
fn what_is_too_much_is_refused() {
    each(|store| {
        let limits = store.limits();
        let mut many = Transaction::default();
        (0..=limits.changes).for_each(|number| many.put(number.to_string(), "x"));
        assert!(matches!(store.commit(&many), Err(StoreError::TooLarge { .. })));
        many.changes.truncate(limits.changes.min(1000));
        store.commit(&many).unwrap();
        if limits.bytes < 10 << 20 {
            assert!(matches!(store.commit(&put("a", &"x".repeat(limits.bytes))), Err(StoreError::TooLarge { .. })));
            store.commit(&put("a", &"x".repeat(limits.bytes - 1))).unwrap();
        }
    });
}

#[test]
fn a_watch_sees_each_commit_once_and_in_order() {
    each(|store| {
        store.commit(&put("watched/a", "0")).unwrap();
        let after = store.list("watched/").unwrap().revision;
        let mut watch = store.watch("watched/", after).unwrap();
        let mut both = put("watched/a", "1");
        both.delete("watched/nothing");
        both.put("elsewhere", "1");
        let first = store.commit(&both).unwrap();
        store.commit(&put("elsewhere", "2")).unwrap();
        let mut removal = Transaction::default();
        removal.delete("watched/a");
        let second = store.commit(&removal).unwrap();
        let seen = watch.next_blocking().unwrap();
        assert_eq!(seen.revision, first);
        assert!(seen.changes.contains(&("watched/a".to_owned(), Some(b"1".to_vec()))), "{seen:?}");
        assert!(seen.changes.iter().all(|(key, _)| key.starts_with("watched/")), "{seen:?}");
        let seen = watch.next_blocking().unwrap();
        assert_eq!((seen.revision, seen.changes), (second, vec![("watched/a".to_owned(), None)]));
    });
}

/// An operation of a transaction of the model on one of a few keys.
#[derive(Clone, Debug)]
enum Step {
    Put { key: u8, value: u8, seen: bool },
    Delete { key: u8, seen: bool },
}

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let step = prop_oneof![
        (0..4_u8, any::<u8>(), any::<bool>()).prop_map(|(key, value, seen)| Step::Put { key, value, seen }),
        (0..4_u8, any::<bool>()).prop_map(|(key, seen)| Step::Delete { key, seen }),
    ];
    prop::collection::vec(prop::collection::vec(step, 1..3), 1..12)
}

#[test]
fn any_transactions_do_what_a_map_does() {
    let cases = AtomicU64::new(0);
    each(|store| {
        let mut runner = TestRunner::new(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() });
        let outcome = runner.run(&steps(), |transactions| {
            let case = cases.fetch_add(1, Ordering::Relaxed);
            let name = |key: u8| format!("case{case}/{key}");
            // Values and versions.
            let mut model: BTreeMap<String, (Vec<u8>, u64)> = BTreeMap::new();
            for steps in transactions {
                let (mut transaction, mut fails) = (Transaction::default(), false);
                for step in steps {
                    let (key, value, seen) = match step {
                        Step::Put { key, value, seen } => (name(key), Some(vec![value]), seen),
                        Step::Delete { key, seen } => (name(key), None, seen),
                    };
                    if transaction.changes.iter().any(|(other, _)| *other == key) {
                        continue;
                    }
                    let version = model.get(&key).map_or(0, |(_, version)| *version);
                    transaction.expect(key.clone(), if seen { version } else { version + 1 });
                    fails |= !seen;
                    transaction.changes.push((key, value));
                }
                match store.commit(&transaction) {
                    Ok(revision) => {
                        prop_assert!(!fails);
                        for (key, value) in transaction.changes {
                            match value {
                                Some(value) => drop(model.insert(key, (value, revision))),
                                None => drop(model.remove(&key)),
                            }
                        }
                    }
                    Err(StoreError::Conflict { .. }) => prop_assert!(fails),
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                }
            }
            let found = store.list(&format!("case{case}/")).unwrap().entries;
            let found: BTreeMap<_, _> =
                found.into_iter().map(|entry| (entry.key, (entry.value, entry.version))).collect();
            prop_assert_eq!(found, model);
            Ok(())
        });
        outcome.unwrap();
    });
}

#[test]
fn writers_that_compare_lose_no_change_of_each_other() {
    const WRITERS: usize = 4;
    const EACH: usize = 20;
    each(|store| {
        store.commit(&put("counter", "0")).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        loop {
                            let entry = store.get("counter").unwrap().unwrap();
                            let count: usize = String::from_utf8(entry.value).unwrap().parse().unwrap();
                            let next = expecting("counter", entry.version, &(count + 1).to_string());
                            match store.commit(&next) {
                                Ok(_) => break,
                                Err(StoreError::Conflict { .. }) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(store.get("counter").unwrap().unwrap().value, (WRITERS * EACH).to_string().as_bytes());
    });
}

#[test]
fn a_file_keeps_what_was_committed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let store = Redb::open(&path).unwrap();
    let version = store.commit(&put("a", "1")).unwrap();
    drop(store);
    let store = Redb::open(&path).unwrap();
    assert_eq!(store.get("a").unwrap().unwrap().version, version);
    assert!(store.commit(&put("a", "2")).unwrap() > version);
}

#[test]
fn etcd_keeps_what_was_committed_when_it_is_killed() {
    let mut server = EtcdServer::start();
    let store = connect(&server);
    let _term = store.try_lead("a").unwrap().unwrap();
    let version = store.commit(&put("a", "1")).unwrap();
    let mut watch = store.watch("a", version).unwrap();
    server.kill();
    let error = store.commit(&put("a", "2")).unwrap_err();
    assert!(matches!(error, StoreError::Unknown { .. } | StoreError::NotLeader { .. }), "{error}");
    assert!(matches!(store.get("a"), Err(StoreError::Failed { .. })));
    assert_eq!(watch.next_blocking(), None, "what is missed is not passed over in silence");
    server.run();
    let again = connect(&server);
    assert_eq!(again.get("a").unwrap().unwrap().version, version);
    // The same connection goes on, too.
    eventually("the store to read", || store.get("a").is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_until_its_term_ends() {
    let server = EtcdServer::start();
    let (one, two) = (connect(&server), connect(&server));
    assert_eq!(one.leader().unwrap(), None);
    assert!(matches!(one.commit(&put("a", "0")), Err(StoreError::NotLeader { .. })), "nobody writes without leading");
    let term = one.try_lead("https://one").unwrap().unwrap();
    assert_eq!(two.leader().unwrap().as_deref(), Some("https://one"));
    assert!(two.try_lead("https://two").unwrap().is_none());
    assert!(matches!(two.commit(&put("a", "2")), Err(StoreError::NotLeader { .. })));
    one.commit(&put("a", "1")).unwrap();
    // A lease is renewed for longer than it lasts.
    tokio::time::sleep(Duration::from_secs(4)).await;
    one.commit(&put("a", "1")).unwrap();
    drop(term);
    assert!(matches!(one.commit(&put("a", "1")), Err(StoreError::NotLeader { .. })));
    let _term: Term = two.try_lead("https://two").unwrap().unwrap();
    two.commit(&put("a", "2")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_renew_its_lease_stops_writing() {
    let server = EtcdServer::start();
    let (one, two) = (connect(&server), connect(&server));
    let mut term = one.try_lead("https://one").unwrap().unwrap();
    server.pause();
    // The term ends by the control plane's own clock, while etcd does not answer.
    term.lost().await;
    assert!(matches!(one.commit(&put("a", "1")), Err(StoreError::NotLeader { .. })));
    let unanswered = two.get("a").unwrap_err();
    assert!(unanswered.to_string().contains("no answer"), "{unanswered}");
    server.resume();
    eventually("another one to lead", || matches!(two.try_lead("https://two"), Ok(Some(_))));
}

#[test]
fn a_leader_that_was_replaced_unnoticed_writes_nothing() {
    let server = EtcdServer::start();
    let (one, two) = (connect(&server), connect(&server));
    let _first = one.try_lead("https://one").unwrap().unwrap();
    // As if the lease had ended while the process was suspended: etcd has removed the entry, and the process does not know.
    let removed = std::process::Command::new("etcdctl")
        .args(["--endpoints", &server.address(), "del", "/test/leader"])
        .env("ETCDCTL_API", "3")
        .output()
        .unwrap();
    assert!(removed.status.success(), "{removed:?}");
    let _second = two.try_lead("https://two").unwrap().unwrap();
    two.commit(&put("a", "2")).unwrap();
    let late = one.commit(&put("a", "1")).unwrap_err();
    assert!(matches!(late, StoreError::NotLeader { .. }), "{late}");
    assert_eq!(one.get("a").unwrap().unwrap().value, b"2");
}

#[test]
fn etcd_is_not_asked_in_the_clear_over_a_network() {
    let connect = |endpoint: &str| {
        let options = EtcdOptions {
            endpoints: vec![endpoint.to_owned()],
            prefix: "/test".to_owned(),
            lease: Duration::from_secs(2),
            ..Default::default()
        };
        Etcd::connect(options).map(drop).unwrap_err().to_string()
    };
    assert!(connect("http://192.0.2.1:2379").contains("has no TLS"));
    assert!(connect("http://localhost.example:2379").contains("has no TLS"));
    assert!(connect("192.0.2.1:2379").contains("is no address of etcd"));
}
