//! Key sets as issuers serve them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leno_config::jwks::{KeySet, parse};
use leno_model::PublicKey;
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
    use Algorithm::{ES256, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    assert_eq!(algorithms, [&[RS256, RS384, RS512, PS256, PS384, PS512][..], &[ES256], &[EdDSA]]);
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
    // The name and the algorithm do not make another key, and a leading zero (as some issuers
    // write) is not part of it.
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

/// The one reason why a key is refused.
fn refused(key: Value) -> String {
    let set = set(json!([key]));
    assert!(set.keys.is_empty() && set.skipped.is_empty(), "{set:?}");
    let [refused] = &set.refused[..] else { panic!("{set:?}") };
    refused.message.clone()
}

fn ed25519(point: [u8; 32]) -> Value {
    json!({ "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode(point) })
}

/// A little-endian number and nothing else.
fn y(first: u8) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[0] = first;
    bytes
}

#[test]
fn ed25519_points_are_checked() {
    // 2 is not the y of any point.
    assert_eq!(refused(ed25519(y(2))), "`x` is not a point of the curve");
    // The identity, a point of order four, one of order two.
    let mut minus_one = [0xff; 32];
    (minus_one[0], minus_one[31]) = (0xec, 0x7f);
    let order_eight = [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf,
        0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
    ];
    for point in [y(1), y(0), minus_one, order_eight] {
        assert_eq!(refused(ed25519(point)), "`x` is a point of small order", "{point:02x?}");
    }
    // Numbers beyond the field's prime, and a sign that zero does not have.
    let (mut prime, mut negative) = ([0xff; 32], y(1));
    (prime[0], prime[31], negative[31]) = (0xed, 0x7f, 0x80);
    for point in [prime, negative, [0xff; 32]] {
        assert_eq!(refused(ed25519(point)), "`x` is not a point of the curve", "{point:02x?}");
    }
}

#[test]
fn moduli_of_a_broken_library_are_refused() {
    // 65537 to the 128th: a power of 65537 modulo every prime, as those moduli are.
    let mut power = vec![1u8];
    for _ in 0..128 {
        let mut carry = 0u32;
        let shifted: Vec<u8> = [0, 0].into_iter().chain(power.iter().copied()).collect();
        power.resize(shifted.len(), 0);
        for (digit, more) in power.iter_mut().zip(shifted) {
            carry += u32::from(*digit) + u32::from(more);
            *digit = (carry & 0xff) as u8;
            carry >>= 8;
        }
        if carry > 0 {
            power.push(1);
        }
    }
    power.reverse();
    let modulus = |bytes: &[u8]| with(rsa(), "n", json!(URL_SAFE_NO_PAD.encode(bytes)));
    assert!(refused(modulus(&power)).contains("ROCA"));
    if let Some(last) = power.last_mut() {
        *last += 2;
    }
    assert_eq!(set(json!([modulus(&power)])).keys.len(), 1, "one that is not");
}

#[test]
fn operations_of_a_key_are_honoured() {
    for wrong in [json!("verify"), json!({"verify": true}), json!(null), json!(1), json!(["verify", 1])] {
        assert_eq!(refused(with(rsa(), "key_ops", wrong)), "`key_ops` is not a list of texts");
    }
    for (operations, usable) in [(json!([]), 0), (json!(["sign"]), 0), (json!(["sign", "verify"]), 1)] {
        assert_eq!(set(json!([with(rsa(), "key_ops", operations)])).keys.len(), usable);
    }
}

#[test]
fn keys_of_different_kinds_may_have_one_name() {
    let named = |key: Value| with(key, "kid", json!("2026"));
    let ec = json!({ "kty": "EC", "crv": "P-256", "x": X, "y": Y });
    let ed = json!({ "kty": "OKP", "crv": "Ed25519", "x": ED25519 });
    let set = set(json!([named(rsa()), named(ec.clone()), named(ed), named(ec)]));
    assert_eq!(set.keys.len(), 3, "{set:?}");
    assert_eq!(set.refused[0].message, "two keys have the `kid` \"2026\" and the `kty` EC");
}

#[test]
fn more_algorithms() {
    // RFC 7520, 3.1.
    let p521 = json!({
        "kty": "EC",
        "crv": "P-521",
        "x": "AHKZLLOsCOzz5cY97ewNUajB957y-C-U88c3v13nmGZx6sYl_oJXu9A5RkTKqjqvjyekWF-7ytDyRXYgCF5cj0Kt",
        "y": "AdymlHvOiLxXkEhayXQnNCvDX4h9htZaCJN34kfmC6pV5OhQHiraVySsUdaQkAgDPrwQrJmbnX9cwlGfP-HqHZR1",
    });
    let set = set(json!([p521, with(rsa(), "alg", json!("PS384")), with(rsa(), "alg", json!("PS512"))]));
    let algorithms: Vec<&[Algorithm]> = set.keys.iter().map(|(key, _)| key.algorithms.as_slice()).collect();
    assert_eq!(algorithms[0], [Algorithm::ES512]);
    assert!(matches!(&set.keys[0].1.key, PublicKey::P521(point) if point.len() == 133));
    assert_eq!((algorithms.len(), &set.refused[0].index), (2, &Some(2)), "two RSA keys of one name: {set:?}");
}
