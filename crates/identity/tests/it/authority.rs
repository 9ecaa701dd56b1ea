//! Certificates that the authority signs or refuses, and that a store accepts.

use crate::support::{self, Clock, LIFETIME, authority, domain, id, renew, store};
use leno_identity::{Authority, CertificateDer, KeyRequest, RequestError, SignError, SvidError, UnixTime};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose, SanType};
use std::error::Error;
use std::time::Duration;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

#[test]
fn the_certificate_has_the_profile_of_an_svid() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let request = KeyRequest::new(&id("orders/inventory")).unwrap();
    let chain = authority.sign(request.csr(), &id("orders/inventory"), LIFETIME).unwrap();
    assert_eq!(chain.len(), 1);
    let (_, leaf) = X509Certificate::from_der(&chain[0]).unwrap();
    let names = leaf.subject_alternative_name().unwrap().unwrap();
    assert!(names.critical, "the subject is empty");
    assert_eq!(
        names.value.general_names,
        [
            GeneralName::URI("spiffe://orders.example/ns/orders/sa/inventory"),
            GeneralName::DNSName("inventory.orders.leno.internal")
        ]
    );
    let constraints = leaf.basic_constraints().unwrap().unwrap();
    assert!(!constraints.value.ca);
    let usage = leaf.key_usage().unwrap().unwrap();
    assert!(usage.critical);
    assert_eq!(usage.value.flags, 1, "digitalSignature and nothing else");
    let extended = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.server_auth && extended.client_auth && !extended.any && extended.other.is_empty());
    let now = clock.now().as_secs() as i64;
    assert_eq!(leaf.validity().not_before.timestamp(), now - 120, "for peers whose clocks run late");
    assert_eq!(leaf.validity().not_after.timestamp(), now + 3600);
    assert_eq!(leaf.public_key().raw, public_key(request.csr()));
}

#[test]
fn the_root_is_one_of_its_trust_domain() {
    let authority = authority(&Clock::new());
    let der = authority.bundle().roots().next().unwrap();
    let (_, root) = X509Certificate::from_der(der).unwrap();
    assert_eq!(
        root.subject_alternative_name().unwrap().unwrap().value.general_names,
        [GeneralName::URI("spiffe://orders.example")]
    );
    let constraints = root.basic_constraints().unwrap().unwrap();
    assert!(constraints.critical && constraints.value.ca);
    assert_eq!(constraints.value.path_len_constraint, Some(0));
    let usage = root.key_usage().unwrap().unwrap();
    assert!(
        usage.critical && usage.value.key_cert_sign() && usage.value.crl_sign() && !usage.value.digital_signature()
    );
    root.verify_signature(None).unwrap();
}

#[test]
fn every_certificate_and_root_is_distinct() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let request = KeyRequest::new(&id("orders/inventory")).unwrap();
    let serial = || {
        let chain = authority.sign(request.csr(), &id("orders/inventory"), LIFETIME).unwrap();
        X509Certificate::from_der(&chain[0]).unwrap().1.raw_serial().to_vec()
    };
    let (first, second) = (serial(), serial());
    assert_ne!(first, second);
    assert!(first.len() <= 20 && first[0] < 0x80);
    assert_ne!(authority.bundle(), support::authority(&clock).bundle());
}

#[test]
fn a_lifetime_ends_with_the_root() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let root_ends = not_after(authority.bundle().roots().next().unwrap());
    let request = KeyRequest::new(&id("orders/inventory")).unwrap();
    let sign = |lifetime| authority.sign(request.csr(), &id("orders/inventory"), lifetime);
    assert_eq!(not_after(&sign(Duration::MAX).unwrap()[0]), root_ends);
    assert_eq!(sign(Duration::from_millis(999)).unwrap_err(), SignError::Lifetime);
    clock.advance(Duration::from_secs(3 * 365 * 24 * 3600));
    assert_eq!(sign(LIFETIME).unwrap_err(), SignError::RootExpired);
}

#[test]
fn only_workloads_of_its_own_trust_domain() {
    let authority = authority(&Clock::new());
    for other in ["spiffe://other.example/ns/orders/sa/inventory", "spiffe://orders.example"] {
        let other = other.parse().unwrap();
        let request = KeyRequest::new(&other).unwrap();
        assert!(authority.sign(request.csr(), &other, LIFETIME).is_err(), "{other}");
    }
}

/// A handmade request: `change` sets its names and extensions.
fn csr(key: &KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![uri(id("orders/inventory").as_str())];
    change(&mut params);
    params.serialize_request(key).unwrap().der().to_vec()
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

#[test]
fn a_request_may_ask_for_its_identity_or_nothing() {
    let authority = authority(&Clock::new());
    let sign = |csr: &[u8]| authority.sign(csr, &id("orders/inventory"), LIFETIME);
    let key = KeyPair::generate().unwrap();
    sign(&csr(&key, |_| ())).unwrap();
    sign(&csr(&key, |request| request.subject_alt_names.clear())).unwrap();
    type Change = fn(&mut CertificateParams);
    let more: [(&str, Change); 9] = [
        ("another identity", |request| {
            request.subject_alt_names = vec![uri("spiffe://orders.example/ns/orders/sa/admin")]
        }),
        ("a second identity", |request| {
            request.subject_alt_names.push(uri("spiffe://orders.example/ns/orders/sa/admin"))
        }),
        ("its identity twice", |request| request.subject_alt_names.push(request.subject_alt_names[0].clone())),
        ("a host name", |request| {
            request.subject_alt_names.push(SanType::DnsName("orders.example".try_into().unwrap()))
        }),
        ("an address", |request| request.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()))),
        ("a subject", |request| request.distinguished_name.push(DnType::CommonName, "admin")),
        ("to be an authority", |request| request.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained)),
        ("to sign certificates", |request| request.key_usages = vec![KeyUsagePurpose::KeyCertSign]),
        ("an extension", |request| {
            request
                .custom_extensions
                .push(CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]));
        }),
    ];
    for (what, change) in more {
        let error = sign(&csr(&key, change)).unwrap_err();
        assert!(matches!(error, SignError::Request(RequestError::AsksForMore { .. })), "{what}: {error}");
    }
}

#[test]
fn a_request_must_be_made_with_its_key() {
    let authority = authority(&Clock::new());
    let sign = |csr: &[u8]| authority.sign(csr, &id("orders/inventory"), LIFETIME).unwrap_err();
    let good = KeyRequest::new(&id("orders/inventory")).unwrap().csr().to_vec();
    let mut forged = good.clone();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(sign(&forged), SignError::Request(RequestError::Signature));
    // The public key of another requester in one's own request.
    let other = public_key(KeyRequest::new(&id("orders/inventory")).unwrap().csr());
    let mine = public_key(&good);
    let at = good.windows(mine.len()).position(|window| window == mine).unwrap();
    let mut stolen = good.clone();
    stolen[at..at + mine.len()].copy_from_slice(&other);
    assert_eq!(sign(&stolen), SignError::Request(RequestError::Signature));

    let trailing = [&good[..], &[0]].concat();
    assert_eq!(sign(&trailing), SignError::Request(RequestError::Malformed));
    for cut in 0..good.len() {
        assert_eq!(sign(&good[..cut]), SignError::Request(RequestError::Malformed));
    }
}

#[test]
fn only_one_kind_of_key() {
    let authority = authority(&Clock::new());
    for algorithm in [&rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
        let csr = csr(&KeyPair::generate_for(algorithm).unwrap(), |_| ());
        let error = authority.sign(&csr, &id("orders/inventory"), LIFETIME).unwrap_err();
        assert_eq!(error, SignError::Request(RequestError::Algorithm));
    }
}

#[test]
fn a_store_takes_only_what_it_asked_for() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let store = store(&authority, &clock, &[]);
    let inventory = id("orders/inventory");
    let signed = |request: &KeyRequest, id| authority.sign(request.csr(), id, LIFETIME).unwrap();

    assert_eq!(store.install(KeyRequest::new(&inventory).unwrap(), vec![]).unwrap_err(), SvidError::Empty);
    let chain = signed(&KeyRequest::new(&inventory).unwrap(), &inventory);
    assert_eq!(
        store.install(KeyRequest::new(&inventory).unwrap(), chain.clone()).unwrap_err(),
        SvidError::OtherKey(inventory.clone())
    );
    let error = store.install(KeyRequest::new(&id("orders/other")).unwrap(), chain).unwrap_err();
    assert!(matches!(error, SvidError::OtherIdentity { .. }), "{error}");
    let request = KeyRequest::new(&inventory).unwrap();
    let foreign = Authority::with_clock(&domain("orders.example"), clock.clone()).unwrap();
    let chain = foreign.sign(request.csr(), &inventory, LIFETIME).unwrap();
    assert!(matches!(store.install(request, chain).unwrap_err(), SvidError::Refused { .. }));
    let garbage = CertificateDer::from(vec![48, 0]);
    assert!(matches!(
        store.install(KeyRequest::new(&inventory).unwrap(), vec![garbage]).unwrap_err(),
        SvidError::Refused { .. }
    ));
    assert!(store.all().is_empty());
}

#[test]
fn renewal_is_due_at_half_the_lifetime() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let store = store(&authority, &clock, &["orders/inventory"]);
    let start = clock.now().as_secs();
    let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(start + seconds));
    assert_eq!(store.next_renewal(), Some(at(1800)));
    assert_eq!(store.renew_due(at(1799)), []);
    assert_eq!(store.renew_due(at(1800)), [id("orders/inventory")]);
    // Long after its end the SVID is still due: a node that slept recovers.
    assert_eq!(store.renew_due(at(100_000)), [id("orders/inventory")]);

    clock.advance(Duration::from_secs(1800));
    renew(&authority, &store, &id("orders/inventory"));
    assert_eq!(store.renew_due(clock.now()), []);
    assert_eq!(store.next_renewal(), Some(at(3600)));
}

#[test]
fn what_a_new_bundle_does_not_cover_is_due_at_once() {
    let clock = Clock::new();
    let (old, new) = (authority(&clock), authority(&clock));
    let store = store(&old, &clock, &["orders/inventory", "orders/other"]);
    store.set_bundle(old.bundle().merge(new.bundle()).unwrap());
    assert_eq!(store.renew_due(clock.now()), []);
    renew(&new, &store, &id("orders/other"));
    store.set_bundle(new.bundle().clone());
    assert_eq!(store.renew_due(clock.now()), [id("orders/inventory")]);
    assert!(store.current(&id("orders/inventory")).is_some());
    renew(&new, &store, &id("orders/inventory"));
    assert_eq!(store.renew_due(clock.now()), []);
}

#[test]
fn a_store_serves_until_the_end_and_not_after() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let store = store(&authority, &clock, &["orders/inventory"]);
    clock.advance(LIFETIME);
    assert_eq!(store.current(&id("orders/inventory")).unwrap().not_after(), clock.now());
    clock.advance(Duration::from_secs(1));
    assert!(store.current(&id("orders/inventory")).is_none());
    assert_eq!(store.all().len(), 1, "it is still listed, so that it can be renewed");

    renew(&authority, &store, &id("orders/inventory"));
    assert!(store.current(&id("orders/inventory")).is_some());
    store.remove(&id("orders/inventory"));
    assert!(store.current(&id("orders/inventory")).is_none());
    assert!(store.all().is_empty());
}

#[test]
fn a_signers_refusal_leaves_the_old_svid() {
    let clock = Clock::new();
    let authority = authority(&clock);
    let store = store(&authority, &clock, &["orders/inventory"]);
    let before = store.current(&id("orders/inventory")).unwrap();
    let refusal = || -> Box<dyn Error + Send + Sync> { "not hosted here".into() };
    let signed =
        poll_once(store.renew(&id("orders/inventory"), |_| async move { Err(std::io::Error::other(refusal())) }));
    assert_eq!(signed.unwrap_err().to_string(), "not hosted here");
    assert_eq!(store.current(&id("orders/inventory")).unwrap().chain(), before.chain());
    let inventory = id("orders/inventory");
    let signed = poll_once(store.renew(&inventory, |csr| {
        let chain = authority.sign(&csr, &inventory, LIFETIME);
        async move { chain }
    }));
    assert_eq!(store.current(&inventory).unwrap().chain(), signed.unwrap().chain());
    assert_ne!(store.current(&inventory).unwrap().chain(), before.chain());
}

/// Polls a future that never has to wait.
fn poll_once<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

fn public_key(csr: &[u8]) -> Vec<u8> {
    let (_, request) = x509_parser::certification_request::X509CertificationRequest::from_der(csr).unwrap();
    request.certification_request_info.subject_pki.raw.to_vec()
}

fn not_after(certificate: &CertificateDer<'_>) -> i64 {
    X509Certificate::from_der(certificate).unwrap().1.validity().not_after.timestamp()
}
