//! Any bytes as a key set. Each accepted key can verify all of its algorithms, is not a duplicate,
//! and is parsed as the same key again.
#![no_main]

use aws_lc_rs::rsa::{PublicEncryptingKey, PublicKeyComponents};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519, ParsedPublicKey,
    VerificationAlgorithm,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leno_config::jwks;
use leno_model::{PublicKey, VerificationKey};
use leno_policy::spec::{Algorithm, Key};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(|json: &[u8]| {
    let set = jwks::parse(json);
    assert!(set.keys.len() + set.refused.len() + set.skipped.len() <= 100);
    for (index, (key, public)) in set.keys.iter().enumerate() {
        assert_eq!(key.id, public.id);
        assert!(!key.algorithms.is_empty() && key.algorithms.iter().all(|algorithm| fits(*algorithm, &public.key)));
        assert!(is_usable(&public.key), "{:?}", public.key);
        let is_twin = |(other, theirs): &(Key, VerificationKey)| {
            key.kid.is_some() && other.kid == key.kid && kty(&theirs.key) == kty(&public.key)
        };
        assert!(!set.keys[..index].iter().any(is_twin));
    }
    let written: Vec<Value> = set.keys.iter().map(|(key, public)| written(key, &public.key)).collect();
    let again = jwks::parse(json!({ "keys": written }).to_string().as_bytes());
    assert_eq!(again.keys, set.keys);
    assert!(again.refused.is_empty() && again.skipped.is_empty(), "{again:?}");
});

fn kty(key: &PublicKey) -> &'static str {
    match key {
        PublicKey::Rsa { .. } => "RSA",
        PublicKey::P256(_) | PublicKey::P384(_) | PublicKey::P521(_) => "EC",
        PublicKey::Ed25519(_) => "OKP",
    }
}

/// RFC 7518, 3.1, and RFC 8037, 3.1.
fn fits(algorithm: Algorithm, key: &PublicKey) -> bool {
    use Algorithm::*;
    match key {
        PublicKey::Rsa { .. } => matches!(algorithm, RS256 | RS384 | RS512 | PS256 | PS384 | PS512),
        PublicKey::P256(_) => algorithm == ES256,
        PublicKey::P384(_) => algorithm == ES384,
        PublicKey::P521(_) => algorithm == ES512,
        PublicKey::Ed25519(_) => algorithm == EdDSA,
    }
}

fn is_usable(key: &PublicKey) -> bool {
    let parsed =
        |algorithm: &'static dyn VerificationAlgorithm, key: &[u8]| ParsedPublicKey::new(algorithm, key).is_ok();
    match key {
        PublicKey::Rsa { n, e } => TryInto::<PublicEncryptingKey>::try_into(PublicKeyComponents { n, e }).is_ok(),
        PublicKey::P256(point) => parsed(&ECDSA_P256_SHA256_FIXED, point),
        PublicKey::P384(point) => parsed(&ECDSA_P384_SHA384_FIXED, point),
        PublicKey::P521(point) => parsed(&ECDSA_P521_SHA512_FIXED, point),
        PublicKey::Ed25519(key) => parsed(&ED25519, key),
    }
}

/// The key as an issuer would serve it.
fn written(key: &Key, public: &PublicKey) -> Value {
    let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let on = |crv: &str, point: &[u8]| {
        let (x, y) = point[1..].split_at(point.len() / 2);
        json!({ "kty": "EC", "crv": crv, "x": text(x), "y": text(y) })
    };
    let mut jwk = match public {
        PublicKey::Rsa { n, e } => json!({ "kty": "RSA", "n": text(n), "e": text(e) }),
        PublicKey::P256(point) => on("P-256", point),
        PublicKey::P384(point) => on("P-384", point),
        PublicKey::P521(point) => on("P-521", point),
        PublicKey::Ed25519(x) => json!({ "kty": "OKP", "crv": "Ed25519", "x": text(x) }),
    };
    if let Some(kid) = &key.kid {
        jwk["kid"] = json!(kid);
    }
    if let [algorithm] = key.algorithms[..] {
        jwk["alg"] = json!(format!("{algorithm:?}"));
    }
    jwk
}
