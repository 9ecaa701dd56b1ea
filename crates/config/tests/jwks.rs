//! Key sets as issuers serve them.

use leno_config::jwks::{KeySet, parse};
use leno_config::slice::PublicKey;
use leno_policy::spec::Algorithm;
use serde_json::{Value, json};

/// RFC 7517, appendix A.1.
const RSA: &str = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";
const X: &str = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4";
const Y: &str = "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM";
/// RFC 8037, appendix A.2.
const ED25519: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

fn set(keys: Value) -> KeySet {
    parse(json!({ "keys": keys }).to_string().as_bytes())
}

fn rsa() -> Value {
    json!({ "kty": "RSA", "n": RSA, "e": "AQAB", "kid": "2011-04-29" })
}

fn with(mut key: Value, member: &str, value: Value) -> Value {
    key[member] = value;
    key
}

#[test]
fn keys_of_the_standards_are_usable() {
    let set = set(json!([
        rsa(),
        { "kty": "EC", "crv": "P-256", "x": X, "y": Y, "use": "sig", "x5c": ["ignored"], "unknown": 1 },
        { "kty": "OKP", "crv": "Ed25519", "x": ED25519, "key_ops": ["verify"] },
    ]));
    assert!(set.refused.is_empty() && set.skipped.is_empty(), "{set:?}");
    let algorithms: Vec<&[Algorithm]> = set.keys.iter().map(|(key, _)| key.algorithms.as_slice()).collect();
    use Algorithm::{ES256, EdDSA, PS256, RS256, RS384, RS512};
    assert_eq!(algorithms, [&[RS256, RS384, RS512, PS256][..], &[ES256], &[EdDSA]]);
    assert_eq!(set.keys[0].0.kid.as_deref(), Some("2011-04-29"));
    let PublicKey::Rsa { n, e } = &set.keys[0].1.key else { panic!("no RSA key") };
    assert_eq!((n.len(), e.as_slice()), (256, &[1, 0, 1][..]));
    let PublicKey::P256(point) = &set.keys[1].1.key else { panic!("no P-256 key") };
    assert_eq!((point.len(), point[0]), (65, 4));
}

#[test]
fn the_algorithm_of_a_key_restricts_it() {
    let set = set(json!([with(rsa(), "alg", json!("PS256"))]));
    assert_eq!(set.keys[0].0.algorithms, [Algorithm::PS256]);
}

#[test]
fn the_id_is_the_keys_own() {
    let one = set(json!([rsa()]));
    // The name and the algorithm do not make another key, and a leading zero (that some issuers write) is not part of it.
    let same = set(json!([with(with(rsa(), "kid", json!("other")), "alg", json!("RS256"))]));
    let padded = set(json!([with(rsa(), "e", json!("AAEAAQ"))]));
    let other = set(json!([with(rsa(), "e", json!("Aw"))]));
    assert_eq!(one.keys[0].0.id, same.keys[0].0.id);
    assert_eq!(one.keys[0].0.id, padded.keys[0].0.id);
    assert_ne!(one.keys[0].0.id, other.keys[0].0.id);
    assert_eq!(one.keys[0].0.id, one.keys[0].1.id);
}

#[test]
fn what_is_for_something_else_is_skipped() {
    let set = set(json!([
        with(rsa(), "use", json!("enc")),
        with(rsa(), "key_ops", json!(["encrypt"])),
        with(rsa(), "alg", json!("RSA-OAEP")),
        { "kty": "EC", "crv": "secp256k1", "x": X, "y": Y },
        { "kty": "OKP", "crv": "X25519", "x": ED25519 },
        { "kty": "AKP" },
    ]));
    assert_eq!((set.keys.len(), set.refused.len(), set.skipped.len()), (0, 0, 6), "{set:?}");
}

#[test]
fn one_bad_key_does_not_hide_the_others() {
    let small = with(rsa(), "n", json!(&RSA[..100]));
    let even = with(rsa(), "e", json!("AQAA"));
    let set = set(json!([{ "kty": "oct", "k": "c2VjcmV0" }, small, even, rsa(), rsa()]));
    assert_eq!(set.keys.len(), 1);
    let refused: Vec<Option<usize>> = set.refused.iter().map(|refused| refused.index).collect();
    assert_eq!(refused, [Some(0), Some(1), Some(2), Some(4)], "{set:?}");
}

#[test]
fn private_members_are_refused() {
    for member in ["d", "p", "q", "dp", "dq", "qi", "oth", "k"] {
        let set = set(json!([with(rsa(), member, json!("AQAB"))]));
        assert!(
            set.keys.is_empty() && set.refused[0].message.contains(&format!("private member `{member}`")),
            "{set:?}"
        );
    }
}

#[test]
fn what_is_no_key_set_is_refused() {
    for text in ["", "[]", "{}", "{\"keys\": {}}", "null"] {
        let set = parse(text.as_bytes());
        assert!(set.keys.is_empty() && set.refused[0].index.is_none(), "{text}: {set:?}");
    }
    let many = set(Value::Array(vec![json!({ "kty": "AKP" }); 101]));
    assert_eq!(many.refused[0].message, "101 keys are more than 100");
}
