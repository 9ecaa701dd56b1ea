//! Another authority begins to sign, and clocks differ.

use crate::support::{Clock, LIFETIME, authority, exchange, id, renew, store};
use leno_identity::{SignError, SvidStore, client_config, server_config};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const INVENTORY: &str = "inventory.orders.leno.internal";

/// The result of a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn what_another_authority_has_signed_is_due_within_the_spread() {
    let clock = Clock::new();
    let (old, new) = (authority(&clock), authority(&clock));
    let functions = ["orders/one", "orders/two", "orders/three", "orders/four"];
    let store = store(&old, &clock, &functions);
    store.set_bundle(old.bundle().merge(new.bundle()).unwrap());
    store.set_issuer(old.key_id().clone(), Duration::ZERO);
    assert_eq!(store.renew_due(clock.now()), []);

    store.set_issuer(new.key_id().clone(), Duration::from_secs(600));
    assert!(store.renew_due(clock.now()).len() < functions.len(), "not all of them at once");
    clock.advance(Duration::from_secs(600));
    assert_eq!(store.renew_due(clock.now()).len(), functions.len());
    assert_eq!(store.issuers().len(), 1);
    for function in functions {
        renew(&new, &store, &id(function));
    }
    assert_eq!(store.issuers().into_iter().collect::<Vec<_>>(), [new.key_id().clone()]);
    assert_eq!(store.renew_due(clock.now()), []);

    // A certificate requested earlier is installed, and renewed soon.
    renew(&old, &store, &id("orders/one"));
    assert_eq!(store.issuers().len(), 2);
    assert_eq!(store.renew_due(clock.now()), []);
    clock.advance(Duration::from_secs(30));
    assert_eq!(store.renew_due(clock.now()), [id("orders/one")]);
}

#[test]
fn a_candidate_is_proved_by_a_handshake_with_the_roots_and_the_clock_that_count() {
    let clock = Clock::new();
    let (old, candidate) = (authority(&clock), authority(&clock));
    let own = store(&old, &clock, &["orders/inventory"]);
    let prove = |store: &Arc<SvidStore>| {
        let sign = |csr: Vec<u8>| {
            let signed = candidate.sign(&csr, &id("orders/inventory"), LIFETIME);
            async { signed }
        };
        now(store.prove(&id("orders/inventory"), sign)).map_err(|error| error.to_string())
    };
    assert!(prove(&own).unwrap_err().contains("UnknownIssuer"));
    let both = old.bundle().merge(candidate.bundle()).unwrap();
    own.set_bundle(both.clone());
    let before = own.current(&id("orders/inventory")).unwrap();
    assert_eq!(prove(&own), Ok(()));
    assert!(Arc::ptr_eq(&before, &own.current(&id("orders/inventory")).unwrap()), "nothing is shown that was not");
    let refused = now(own.prove(&id("orders/inventory"), |_| async { Err(SignError::RootExpired) }));
    assert!(refused.unwrap_err().to_string().contains("expired"));

    // A clock that is further behind than certificates are backdated.
    let behind = Clock::new();
    clock.advance(Duration::from_secs(121));
    assert!(prove(&SvidStore::with_clock(both, behind)).is_err());
}

#[test]
fn clocks_may_differ_by_two_minutes_in_either_direction() {
    let (clock, other) = (Clock::new(), Clock::new());
    let first = authority(&other);
    for (difference, is_accepted) in [(119, true), (120, true), (121, false)] {
        // A new root and a new certificate, seen by a clock that is behind.
        clock.advance(Duration::from_secs(difference));
        let ahead = authority(&clock);
        let both = first.bundle().merge(ahead.bundle()).unwrap();
        let callee = SvidStore::with_clock(both.clone(), clock.clone());
        renew(&ahead, &callee, &id("orders/inventory"));
        let caller = SvidStore::with_clock(both, other.clone());
        renew(&first, &caller, &id("orders/frontend"));
        let client = client_config(&caller, &id("orders/frontend"), &id("orders/inventory")).unwrap();
        let (client_saw, _) = exchange(server_config(&callee).unwrap(), client, INVENTORY);
        assert_eq!(client_saw.is_ok(), is_accepted, "{difference}");
        other.advance(Duration::from_secs(difference));
    }
}
