//! Mutual TLS between sidecars, over real sockets: accepted and refused peers, and the effect of a
//! renewal on live connections.

use crate::support::{Clock, LIFETIME, authority, connect, domain, exchange, id, renew, store};
use leno_identity::{Authority, KeyRequest, MembershipMark, SpiffeId, SvidStore, client_config, server_config};
use rustls::ClientConfig;
use std::sync::Arc;
use std::time::Duration;

const INVENTORY: &str = "inventory.orders.leno.internal";

#[test]
fn both_sides_prove_who_they_are() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let callee = store(&authority, &clock, &["orders/inventory", "orders/other"]);
    let caller = store(&authority, &clock, &["orders/frontend"]);
    let client = client_config(&caller, &id("orders/frontend"), &id("orders/inventory")).unwrap();
    let (client_saw, server_saw) = exchange(server_config(&callee).unwrap(), client, INVENTORY);
    let (client_saw, server_saw) = (client_saw.unwrap(), server_saw.unwrap());
    assert_eq!(client_saw.identity, Some(id("orders/inventory")));
    assert_eq!(server_saw.identity, Some(id("orders/frontend")));
    assert_eq!((client_saw.alpn.as_deref(), server_saw.alpn.as_deref()), (Some(&b"h2"[..]), Some(&b"h2"[..])));
}

#[test]
fn the_server_name_chooses_the_certificate() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let callee = store(&authority, &clock, &["orders/inventory", "orders/other"]);
    let caller = store(&authority, &clock, &["orders/frontend"]);
    let server = server_config(&callee).unwrap();
    let to = |function: &str| client_config(&caller, &id("orders/frontend"), &id(function)).unwrap();
    let (client_saw, _) = exchange(server.clone(), to("orders/other"), "OTHER.orders.leno.internal");
    assert_eq!(client_saw.unwrap().identity, Some(id("orders/other")));
    // The client asks for a name that this node does not serve, and for none.
    for name in ["absent.orders.leno.internal", "127.0.0.1"] {
        let (client_saw, server_saw) = exchange(server.clone(), to("orders/other"), name);
        assert!(server_saw.unwrap_err().contains("no server certificate chain resolved"));
        assert!(client_saw.unwrap_err().contains("AccessDenied"));
    }
}

#[test]
fn a_server_with_another_identity_is_refused() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let callee = store(&authority, &clock, &["orders/other"]);
    let caller = store(&authority, &clock, &["orders/frontend"]);
    // The DNS name is the requested one; the identity is not the expected one.
    let client = client_config(&caller, &id("orders/frontend"), &id("orders/inventory")).unwrap();
    let (client_saw, server_saw) = exchange(server_config(&callee).unwrap(), client, "other.orders.leno.internal");
    let error = client_saw.unwrap_err();
    assert!(error.contains("the server is `spiffe://orders.example/ns/orders/sa/other` and not"), "{error}");
    assert!(server_saw.is_err());
}

#[test]
fn a_client_without_an_identity_is_refused() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let callee = store(&authority, &clock, &["orders/inventory"]);
    let caller = store(&authority, &clock, &[]);
    let client = client_config(&caller, &id("orders/frontend"), &id("orders/inventory")).unwrap();
    let (client_saw, server_saw) = exchange(server_config(&callee).unwrap(), client, INVENTORY);
    assert!(server_saw.unwrap_err().contains("peer sent no certificates"));
    assert!(client_saw.unwrap_err().contains("CertificateRequired"));
}

#[test]
fn another_trust_domain_is_refused_by_both_sides() {
    let clock = Clock::new();
    let ours = authority(&clock);
    let theirs = Authority::with_clock(&domain("orders.example"), clock.clone()).unwrap();
    let callee = store(&ours, &clock, &["orders/inventory"]);
    let stranger = store(&theirs, &clock, &["orders/frontend"]);
    // The stranger trusts our roots, so that only the server has a reason to refuse; then the other
    // way round.
    stranger.set_bundle(ours.bundle().clone());
    let client = client_config(&stranger, &id("orders/frontend"), &id("orders/inventory")).unwrap();
    let (_, server_saw) = exchange(server_config(&callee).unwrap(), client, INVENTORY);
    assert!(server_saw.unwrap_err().contains("UnknownIssuer"));

    let caller = store(&ours, &clock, &["orders/frontend"]);
    let impostor = store(&theirs, &clock, &["orders/inventory"]);
    impostor.set_bundle(ours.bundle().clone());
    let client = client_config(&caller, &id("orders/frontend"), &id("orders/inventory")).unwrap();
    let (client_saw, _) = exchange(server_config(&impostor).unwrap(), client, INVENTORY);
    assert!(client_saw.unwrap_err().contains("UnknownIssuer"));
}

#[test]
fn an_expired_identity_is_neither_shown_nor_accepted() {
    let clock = Clock::new();
    let late = Clock::new();
    let authority = authority(&clock);
    let callee = store(&authority, &late, &["orders/inventory"]);
    let caller = store(&authority, &clock, &["orders/frontend"]);
    let client = || client_config(&caller, &id("orders/frontend"), &id("orders/inventory")).unwrap();

    // The server's clock is past the client's end; the client still believes in its SVID.
    clock.advance(Duration::from_secs(1800));
    late.advance(Duration::from_secs(1800));
    renew(&authority, &callee, &id("orders/inventory"));
    late.advance(Duration::from_secs(1801));
    let (client_saw, server_saw) = exchange(server_config(&callee).unwrap(), client(), INVENTORY);
    assert!(server_saw.unwrap_err().contains("certificate expired"));
    assert!(client_saw.unwrap_err().contains("CertificateExpired"));

    // The client knows that its SVID has expired, and shows none.
    clock.advance(Duration::from_secs(1801));
    assert!(caller.current(&id("orders/frontend")).is_none());
    renew(&authority, &callee, &id("orders/inventory"));
    let (_, server_saw) = exchange(server_config(&callee).unwrap(), client(), INVENTORY);
    assert!(server_saw.unwrap_err().contains("peer sent no certificates"));

    // A server does the same.
    renew(&authority, &caller, &id("orders/frontend"));
    late.advance(LIFETIME * 2);
    let (_, server_saw) = exchange(server_config(&callee).unwrap(), client(), INVENTORY);
    assert!(server_saw.unwrap_err().contains("no server certificate chain resolved"));
}

#[test]
fn a_renewal_drops_no_connection_and_serves_the_new_certificate() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let both = store(&authority, &clock, &["orders/inventory", "orders/frontend"]);
    let server = server_config(&both).unwrap();
    let client = client_config(&both, &id("orders/frontend"), &id("orders/inventory")).unwrap();

    let mut live = connect(server.clone(), client.clone(), INVENTORY);
    let before = live.echo(b"one ").unwrap();
    let clients_first = both.current(&id("orders/frontend")).unwrap();
    clock.advance(LIFETIME / 2);
    for id in both.renew_due(clock.now()) {
        renew(&authority, &both, &id);
    }

    let mut later = connect(server, client, INVENTORY);
    let after = later.echo(b"two ").unwrap();
    assert_ne!(before.leaf, after.leaf);
    assert_eq!(after.leaf.as_ref(), both.current(&id("orders/inventory")).unwrap().chain().first());
    let server_saw = later.finish().unwrap();
    assert_eq!(server_saw.leaf.as_ref(), both.current(&id("orders/frontend")).unwrap().chain().first());

    assert_eq!(live.echo(b"more").unwrap().leaf, before.leaf);
    assert_eq!(live.finish().unwrap().leaf.as_ref(), clients_first.chain().first());
}

#[test]
fn roots_overlap_while_they_are_changed() {
    let clock = Clock::new();
    let old = authority(&clock);
    let new = authority(&clock);
    let callee = store(&old, &clock, &["orders/inventory"]);
    let caller = store(&old, &clock, &["orders/frontend"]);
    let server = server_config(&callee).unwrap();
    let client = client_config(&caller, &id("orders/frontend"), &id("orders/inventory")).unwrap();
    let meet = || {
        let (client_saw, server_saw) = exchange(server.clone(), client.clone(), INVENTORY);
        client_saw.and(server_saw).is_ok()
    };
    // First both sides trust both roots, then each side changes its root, and only then the old
    // root is removed.
    let overlap = old.bundle().merge(new.bundle()).unwrap();
    for store in [&callee, &caller] {
        store.set_bundle(overlap.clone());
    }
    assert!(meet());
    renew(&new, &callee, &id("orders/inventory"));
    assert!(meet());
    renew(&new, &caller, &id("orders/frontend"));
    assert!(meet());
    for store in [&callee, &caller] {
        store.set_bundle(new.bundle().clone());
    }
    assert!(meet());
    let request = KeyRequest::new(&id("orders/frontend")).unwrap();
    let chain = old.sign(request.csr(), &id("orders/frontend"), LIFETIME).unwrap();
    assert!(caller.install(request, chain).unwrap_err().to_string().contains("UnknownIssuer"));
    assert!(meet());
}

#[test]
fn sessions_are_not_resumed() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let both = store(&authority, &clock, &["orders/inventory", "orders/frontend"]);
    let server = server_config(&both).unwrap();
    let client = client_config(&both, &id("orders/frontend"), &id("orders/inventory")).unwrap();
    for _ in 0..2 {
        let mut connection = connect(server.clone(), client.clone(), INVENTORY);
        connection.echo(b"ping").unwrap();
        assert_eq!(connection.stream.conn.handshake_kind(), Some(rustls::HandshakeKind::Full));
        assert_eq!(connection.stream.conn.tls13_tickets_received(), 0);
        connection.finish().unwrap();
    }
}

#[test]
fn tls_1_2_and_foreign_protocols_are_refused() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let callee = store(&authority, &clock, &["orders/inventory"]);
    let caller = store(&authority, &clock, &["orders/frontend"]);
    let ours = client_config(&caller, &id("orders/frontend"), &id("orders/inventory")).unwrap();
    let server = server_config(&callee).unwrap();

    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let old = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_client_cert_resolver(ours.client_auth_cert_resolver.clone());
    let (client_saw, server_saw) = exchange(server.clone(), Arc::new(old), INVENTORY);
    let error = server_saw.unwrap_err();
    assert!(error.contains("Tls12NotOffered"), "{error}");
    assert!(client_saw.unwrap_err().contains("ProtocolVersion"));

    let mut other = ClientConfig::clone(&ours);
    other.alpn_protocols = vec![b"http/1.1".to_vec()];
    let (client_saw, _) = exchange(server, Arc::new(other), INVENTORY);
    assert!(client_saw.unwrap_err().contains("NoApplicationProtocol"));
}

#[test]
fn certificates_of_a_revoked_membership_are_refused_by_both_sides() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let (frontend, inventory) = (id("orders/frontend"), id("orders/inventory"));
    let [revoked, rejoined] = [MembershipMark([1; 8]), MembershipMark([2; 8])];
    let of_member = |identity: &SpiffeId, membership| {
        let store = store(&authority, &clock, &[]);
        let request = KeyRequest::new(identity).unwrap();
        let chain = authority.sign_node(request.csr(), identity, &[], membership, LIFETIME).unwrap();
        store.install(request, chain).unwrap();
        store
    };
    let try_both = |caller: &Arc<SvidStore>, callee: &Arc<SvidStore>| {
        let client = client_config(caller, &frontend, &inventory).unwrap();
        exchange(server_config(callee).unwrap(), client, INVENTORY)
    };
    let (caller, callee) = (of_member(&frontend, revoked), of_member(&inventory, MembershipMark([3; 8])));
    assert!(try_both(&caller, &callee).1.is_ok());
    callee.set_revoked(vec![MembershipMark([9; 8]), revoked]);
    let (client_saw, server_saw) = try_both(&caller, &callee);
    assert!(server_saw.unwrap_err().contains("Revoked"));
    assert!(client_saw.unwrap_err().contains("CertificateRevoked"));
    // The machine that has joined again under that name, and certificates without a mark.
    assert!(try_both(&of_member(&frontend, rejoined), &callee).1.is_ok());
    assert!(try_both(&store(&authority, &clock, &["orders/frontend"]), &callee).1.is_ok());
    // The same for a server.
    let (caller, callee) = (of_member(&frontend, MembershipMark([3; 8])), of_member(&inventory, revoked));
    caller.set_revoked(vec![revoked]);
    assert!(try_both(&caller, &callee).0.unwrap_err().contains("Revoked"));
    caller.set_revoked(vec![]);
    assert!(try_both(&caller, &callee).0.is_ok());
}
