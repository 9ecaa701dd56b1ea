//! Certificates that a trusted root has signed and that must still be refused, as a client's, as a
//! server's, and as one's own.

use crate::support::{self, Clock, domain, exchange, id};
use leno_identity::{CertificateDer, SvidStore, TrustBundle, UnixTime, client_config, server_config};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

const INVENTORY: &str = "inventory.orders.leno.internal";

/// A handmade root, because the authority makes no bad certificates.
struct Root {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
}

fn date(clock: &Clock) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(clock.now().as_secs() as i64).unwrap()
}

fn root(clock: &Clock) -> Root {
    root_with(clock, |_| ())
}

fn root_with(clock: &Clock, change: impl FnOnce(&mut CertificateParams)) -> Root {
    let mut params = CertificateParams::default();
    params.not_before = date(clock) - Duration::from_secs(3600);
    params.not_after = date(clock) + Duration::from_secs(24 * 3600);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let der = params.self_signed(&key).unwrap().der().clone();
    Root { issuer: Issuer::new(params, key), der }
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

/// A valid leaf for `function`.
fn good(clock: &Clock, function: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = date(clock) - Duration::from_secs(60);
    params.not_after = date(clock) + Duration::from_secs(3600);
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![uri(id(function).as_str())];
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

type Change = fn(&mut CertificateParams, &Clock);

/// The fault of the leaf, the change that causes it, and the expected error (one of the texts).
const BAD: &[(&str, Change, &[&str])] = &[
    (
        "a CA flag",
        |leaf, _| leaf.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)),
        &["CaUsedAsEndEntity", "signing others"],
    ),
    (
        "two URI names",
        |leaf, _| leaf.subject_alt_names.push(uri("spiffe://orders.example/ns/orders/sa/other")),
        &["2 URI names"],
    ),
    ("the same URI twice", |leaf, _| leaf.subject_alt_names.push(leaf.subject_alt_names[0].clone()), &["2 URI names"]),
    (
        "a second URI of another kind",
        |leaf, _| leaf.subject_alt_names.push(uri("https://orders.example/")),
        &["2 URI names"],
    ),
    (
        "no URI name",
        |leaf, _| leaf.subject_alt_names = vec![SanType::DnsName(INVENTORY.try_into().unwrap())],
        &["0 URI names"],
    ),
    ("no names at all", |leaf, _| leaf.subject_alt_names.clear(), &["0 URI names"]),
    (
        "a URI that is no SPIFFE ID",
        |leaf, _| leaf.subject_alt_names = vec![uri("https://orders.example/a")],
        &["`spiffe://`"],
    ),
    (
        "a SPIFFE ID in capitals",
        |leaf, _| leaf.subject_alt_names = vec![uri("spiffe://ORDERS.example/a")],
        &["lower-case"],
    ),
    (
        "a dot segment",
        |leaf, _| leaf.subject_alt_names = vec![uri("spiffe://orders.example/a/../b")],
        &["`..` segment"],
    ),
    (
        "the trust domain's own ID",
        |leaf, _| leaf.subject_alt_names = vec![uri("spiffe://orders.example")],
        &["no workload"],
    ),
    (
        "another trust domain",
        |leaf, _| leaf.subject_alt_names = vec![uri("spiffe://other.example/ns/orders/sa/inventory")],
        &["not in the trust domain"],
    ),
    (
        "a key usage of signing certificates",
        |leaf, _| leaf.key_usages.push(KeyUsagePurpose::KeyCertSign),
        &["signing others"],
    ),
    ("a key usage of signing CRLs", |leaf, _| leaf.key_usages.push(KeyUsagePurpose::CrlSign), &["signing others"]),
    ("no key usage", |leaf, _| leaf.key_usages.clear(), &["digital signatures"]),
    ("another key usage", |leaf, _| leaf.key_usages = vec![KeyUsagePurpose::KeyAgreement], &["digital signatures"]),
    ("no extended key usage", |leaf, _| leaf.extended_key_usages.clear(), &["extended key usage"]),
    (
        "an extended key usage for something else",
        |leaf, _| leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning],
        &["RequiredEkuNotFound"],
    ),
    (
        "an end in the past",
        |leaf, clock| leaf.not_after = date(clock) - Duration::from_secs(1),
        &["CertExpired", "certificate expired"],
    ),
    (
        "a beginning in the future",
        |leaf, clock| leaf.not_before = date(clock) + Duration::from_secs(60),
        &["CertNotValidYet", "not valid yet"],
    ),
    (
        "an unknown critical extension",
        |leaf, _| {
            let mut extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
            extension.set_criticality(true);
            leaf.custom_extensions.push(extension);
        },
        &["UnsupportedCriticalExtension"],
    ),
];

fn complains(error: &str, texts: &[&str]) -> bool {
    texts.iter().any(|text| error.contains(text))
}

#[test]
fn a_good_leaf_of_this_root_is_accepted_by_both_sides() {
    let clock = Clock::new();
    let world = World::new(&clock);
    let (_, server_saw) = world.as_client(&clock, good(&clock, "orders/frontend"));
    assert_eq!(server_saw.unwrap(), "spiffe://orders.example/ns/orders/sa/frontend");
    let client_saw = world.as_server(&clock, good(&clock, "orders/inventory"));
    assert_eq!(client_saw.unwrap(), "spiffe://orders.example/ns/orders/sa/inventory");
}

#[test]
fn bad_leaves_are_refused_from_clients() {
    let clock = Clock::new();
    let world = World::new(&clock);
    for (what, change, texts) in BAD {
        let mut leaf = good(&clock, "orders/frontend");
        change(&mut leaf, &clock);
        let (client_saw, server_saw) = world.as_client(&clock, leaf);
        let error = server_saw.expect_err(what);
        assert!(complains(&error, texts), "{what}: {error}");
        assert!(client_saw.is_err(), "{what}");
    }
}

#[test]
fn bad_leaves_are_refused_from_servers() {
    let clock = Clock::new();
    let world = World::new(&clock);
    for (what, change, texts) in BAD {
        let mut leaf = good(&clock, "orders/inventory");
        change(&mut leaf, &clock);
        let error = world.as_server(&clock, leaf).expect_err(what);
        assert!(complains(&error, texts), "{what}: {error}");
    }
}

#[test]
fn a_leaf_for_one_role_only_is_refused_in_the_other() {
    let clock = Clock::new();
    let world = World::new(&clock);
    let mut leaf = good(&clock, "orders/frontend");
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    assert!(world.as_client(&clock, leaf).1.is_err());
    let mut leaf = good(&clock, "orders/inventory");
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    assert!(world.as_server(&clock, leaf).is_err());
}

#[test]
fn a_self_signed_leaf_is_refused() {
    let clock = Clock::new();
    let world = World::new(&clock);
    let key = KeyPair::generate().unwrap();
    let leaf = good(&clock, "orders/frontend").self_signed(&key).unwrap().der().clone();
    let error = world.present_to_server(&clock, vec![leaf], &key).1.unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");
    let leaf = good(&clock, "orders/inventory").self_signed(&key).unwrap().der().clone();
    let error = world.present_to_client(&clock, vec![leaf], &key).unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");
}

#[test]
fn a_leaf_cannot_sign_another() {
    let clock = Clock::new();
    let world = World::new(&clock);
    let between = KeyPair::generate().unwrap();
    let first = good(&clock, "orders/other");
    let first_der = first.signed_by(&between, &world.root.issuer).unwrap().der().clone();
    let key = KeyPair::generate().unwrap();
    let second = good(&clock, "orders/frontend").signed_by(&key, &Issuer::new(first, between)).unwrap().der().clone();
    let error = world.present_to_server(&clock, vec![second, first_der], &key).1.unwrap_err();
    assert!(complains(&error, &["UnknownIssuer", "EndEntityUsedAsCa"]), "{error}");
}

#[test]
fn an_intermediate_of_the_root_may_sign() {
    let clock = Clock::new();
    let world = World::new(&clock);
    let between = KeyPair::generate().unwrap();
    let mut params = good(&clock, "orders/other");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.subject_alt_names = vec![uri("spiffe://orders.example")];
    params.distinguished_name.push(rcgen::DnType::CommonName, "between");
    let between_der = params.signed_by(&between, &world.root.issuer).unwrap().der().clone();
    let key = KeyPair::generate().unwrap();
    let leaf = good(&clock, "orders/frontend").signed_by(&key, &Issuer::new(params, between)).unwrap().der().clone();
    let server_saw = world.present_to_server(&clock, vec![leaf, between_der], &key).1;
    assert_eq!(server_saw.unwrap(), "spiffe://orders.example/ns/orders/sa/frontend");
}

/// The fault of an intermediate, the change that causes it, and the expected error.
const BAD_INTERMEDIATES: &[(&str, Change, &[&str])] = &[
    ("no key usage", |ca, _| ca.key_usages.clear(), &["keyCertSign"]),
    ("another key usage", |ca, _| ca.key_usages = vec![KeyUsagePurpose::CrlSign], &["keyCertSign"]),
    ("signatures only", |ca, _| ca.key_usages = vec![KeyUsagePurpose::DigitalSignature], &["keyCertSign"]),
    ("no CA flag", |ca, _| ca.is_ca = IsCa::ExplicitNoCa, &["EndEntityUsedAsCa", "UnknownIssuer"]),
    (
        "another trust domain",
        |ca, _| ca.subject_alt_names = vec![uri("spiffe://other.example")],
        &["`spiffe://other.example`"],
    ),
    (
        "a workload of another trust domain",
        |ca, _| ca.subject_alt_names = vec![uri("spiffe://other.example/ns/a/sa/b")],
        &["`spiffe://other.example/ns/a/sa/b`"],
    ),
    (
        "a workload's ID",
        |ca, _| ca.subject_alt_names = vec![uri("spiffe://orders.example/ns/orders/sa/other")],
        &["no other than the ID of the trust domain"],
    ),
    (
        "a second URI of another trust domain",
        |ca, _| ca.subject_alt_names.push(uri("spiffe://other.example")),
        &["`spiffe://other.example`"],
    ),
    ("a URI that is no SPIFFE ID", |ca, _| ca.subject_alt_names = vec![uri("https://ca.example")], &["`https://ca"]),
];

fn intermediate(clock: &Clock) -> CertificateParams {
    let mut params = good(clock, "orders/other");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.subject_alt_names = vec![uri("spiffe://orders.example")];
    params.distinguished_name.push(rcgen::DnType::CommonName, "between");
    params
}

impl World {
    /// The results of a server and of a client for a leaf under these intermediates, the first of
    /// which the root has signed.
    fn under(&self, clock: &Arc<Clock>, intermediates: Vec<CertificateParams>) -> [Result<String, String>; 2] {
        let mut chain: Vec<CertificateDer<'static>> = Vec::new();
        let mut above: Option<Issuer<'static, KeyPair>> = None;
        for params in intermediates {
            let key = KeyPair::generate().unwrap();
            let signed = params.signed_by(&key, above.as_ref().unwrap_or(&self.root.issuer)).unwrap();
            chain.insert(0, signed.der().clone());
            above = Some(Issuer::new(params, key));
        }
        let of = |function: &str| {
            let key = KeyPair::generate().unwrap();
            let leaf = good(clock, function).signed_by(&key, above.as_ref().unwrap()).unwrap().der().clone();
            ([vec![leaf], chain.clone()].concat(), key)
        };
        let ((client, client_key), (server, server_key)) = (of("orders/frontend"), of("orders/inventory"));
        [self.present_to_server(clock, client, &client_key).1, self.present_to_client(clock, server, &server_key)]
    }
}

#[test]
fn bad_intermediates_are_refused() {
    let clock = Clock::new();
    let world = World::new(&clock);
    let named = |mut params: CertificateParams, name: &str| {
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params
    };
    for answer in world.under(&clock, vec![intermediate(&clock)]) {
        answer.unwrap();
    }
    for (what, change, texts) in BAD_INTERMEDIATES {
        let mut bad = intermediate(&clock);
        change(&mut bad, &clock);
        // The bad intermediate directly under the root, and under and above a good one.
        let good = || named(intermediate(&clock), "another");
        for chain in [vec![bad.clone()], vec![good(), bad.clone()], vec![bad.clone(), good()]] {
            for answer in world.under(&clock, chain) {
                let error = answer.expect_err(what);
                assert!(complains(&error, texts), "{what}: {error}");
            }
        }
    }
    let mut plain = intermediate(&clock);
    plain.subject_alt_names.clear();
    for answer in world.under(&clock, vec![plain]) {
        answer.expect("an intermediate need not have a SPIFFE ID");
    }
}

#[test]
fn name_constraints_that_cannot_be_checked_are_said() {
    let clock = Clock::new();
    // rcgen cannot write constraints of URIs: permitted `orders.example`, and excluded
    // `other.example`.
    let of_uris = |permitted: bool, host: &[u8]| {
        let length = host.len() as u8;
        let tag = if permitted { 0xa0 } else { 0xa1 };
        let head = [0x30, length + 6, tag, length + 4, 0x30, length + 2, 0x86, length];
        CustomExtension::from_oid_content(&[2, 5, 29, 30], [&head[..], host].concat())
    };
    for extension in [of_uris(true, b"orders.example"), of_uris(false, b"other.example")] {
        let constrained = root_with(&clock, |root| root.custom_extensions.push(extension.clone()));
        let error = bundle(&[&constrained.der]).unwrap_err().to_string();
        assert!(error.contains("root 0") && error.contains("name constraints on URIs"), "{error}");
        let mut params = intermediate(&clock);
        params.custom_extensions.push(extension);
        for answer in World::new(&clock).under(&clock, vec![params]) {
            let error = answer.unwrap_err();
            assert!(error.contains("name constraints on URIs"), "{error}");
        }
    }
    let names = |names: Vec<rcgen::GeneralSubtree>| {
        root_with(&clock, |root| {
            root.name_constraints =
                Some(rcgen::NameConstraints { permitted_subtrees: names, excluded_subtrees: Vec::new() });
        })
        .der
    };
    let mut orders = DistinguishedName::new();
    orders.push(rcgen::DnType::OrganizationName, "orders");
    let error = bundle(&[&names(vec![rcgen::GeneralSubtree::DirectoryName(orders)])]).unwrap_err().to_string();
    assert!(error.contains("name constraints on directory names"), "{error}");
    bundle(&[&names(vec![rcgen::GeneralSubtree::DnsName("example".to_owned())])]).unwrap();
}

#[test]
fn an_expired_root_vouches_for_nobody() {
    let clock = Clock::new();
    let brief = root_with(&clock, |root| root.not_after = date(&clock) + Duration::from_secs(60));
    let world = World { store: store_of(&clock, &[&brief.der]), root: brief };
    let leaf = || good(&clock, "orders/frontend");
    world.as_client(&clock, leaf()).1.unwrap();
    let leaf = leaf();
    clock.advance(Duration::from_secs(61));
    let error = world.as_client(&clock, leaf.clone()).1.unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");
    // The same beside a root that is still valid.
    world.store.set_bundle(bundle(&[&world.root.der, &root(&clock).der]).unwrap());
    assert!(world.as_client(&clock, leaf).1.is_err());
}

#[test]
fn what_cannot_be_a_root() {
    let clock = Clock::new();
    let text = |der: CertificateDer<'static>| bundle(&[&der]).unwrap_err().to_string();
    let certificate = |change: fn(&mut CertificateParams)| root_with(&clock, change).der;
    assert_eq!(
        text(CertificateDer::from(vec![1, 2, 3])),
        "root 0 of the trust bundle is not a DER-encoded X.509 certificate"
    );
    let mut trailing = root(&clock).der.to_vec();
    trailing.push(0);
    assert_eq!(text(trailing.into()), "root 0 of the trust bundle is not a DER-encoded X.509 certificate");
    assert_eq!(
        text(certificate(|root| root.is_ca = IsCa::ExplicitNoCa)),
        "root 0 of the trust bundle is no certificate authority"
    );
    assert_eq!(
        text(certificate(|root| root.key_usages.clear())),
        "root 0 of the trust bundle is no certificate authority"
    );
    let foreign = certificate(|root| root.subject_alt_names = vec![uri("spiffe://other.example")]);
    assert_eq!(text(foreign), "root 0 of the trust bundle is not one of `orders.example`");
    assert_eq!(bundle(&[]).unwrap_err().to_string(), "the trust bundle of `orders.example` has no root");
    let once = root(&clock).der;
    assert_eq!(bundle(&[&once, &once]).unwrap().roots().count(), 1);
}

fn bundle(roots: &[&CertificateDer<'static>]) -> Result<TrustBundle, leno_identity::BundleError> {
    TrustBundle::new(&domain("orders.example"), roots.iter().map(|root| (*root).clone()))
}

fn store_of(clock: &Arc<Clock>, roots: &[&CertificateDer<'static>]) -> Arc<SvidStore> {
    SvidStore::with_clock(bundle(roots).unwrap(), clock.clone())
}

/// An unchecked certificate, as a malicious peer would show it.
fn certified(chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> Arc<SingleCertAndKey> {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    Arc::new(CertifiedKey::new(chain, any_supported_type(&key).unwrap()).into())
}

/// A node that trusts `root`.
struct World {
    root: Root,
    store: Arc<SvidStore>,
}

impl World {
    fn new(clock: &Arc<Clock>) -> Self {
        let root = root(clock);
        Self { store: store_of(clock, &[&root.der]), root }
    }

    fn as_client(
        &self,
        clock: &Arc<Clock>,
        leaf: CertificateParams,
    ) -> (Result<String, String>, Result<String, String>) {
        let key = KeyPair::generate().unwrap();
        let leaf = leaf.signed_by(&key, &self.root.issuer).unwrap().der().clone();
        self.present_to_server(clock, vec![leaf], &key)
    }

    fn as_server(&self, clock: &Arc<Clock>, leaf: CertificateParams) -> Result<String, String> {
        let key = KeyPair::generate().unwrap();
        let leaf = leaf.signed_by(&key, &self.root.issuer).unwrap().der().clone();
        self.present_to_client(clock, vec![leaf], &key)
    }

    /// A client that shows any chain and trusts every server connects to a proper server. Returns
    /// the results of both.
    fn present_to_server(
        &self,
        clock: &Arc<Clock>,
        chain: Vec<CertificateDer<'static>>,
        key: &KeyPair,
    ) -> (Result<String, String>, Result<String, String>) {
        let authority = support::authority(clock);
        let server = support::store(&authority, clock, &["orders/inventory"]);
        server.set_bundle(self.store.bundle().as_ref().clone());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Everybody))
            .with_client_cert_resolver(certified(chain, key));
        client.alpn_protocols = vec![b"h2".to_vec()];
        let (client_saw, server_saw) = exchange(server_config(&server).unwrap(), Arc::new(client), INVENTORY);
        (
            client_saw.map(|seen| seen.identity.unwrap().to_string()),
            server_saw.map(|seen| seen.identity.unwrap().to_string()),
        )
    }

    /// A proper client connects to a server that shows any chain. Returns the client's result.
    fn present_to_client(
        &self,
        clock: &Arc<Clock>,
        chain: Vec<CertificateDer<'static>>,
        key: &KeyPair,
    ) -> Result<String, String> {
        let authority = support::authority(clock);
        let caller = support::store(&authority, clock, &["orders/frontend"]);
        caller.set_bundle(self.store.bundle().as_ref().clone());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(certified(chain, key));
        server.alpn_protocols = vec![b"h2".to_vec()];
        let client = client_config(&caller, &id("orders/frontend"), &id("orders/inventory")).unwrap();
        let (client_saw, _) = exchange(Arc::new(server), client, INVENTORY);
        client_saw.map(|seen| seen.identity.unwrap().to_string())
    }
}

#[derive(Debug)]
struct Everybody;

impl ServerCertVerifier for Everybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
