//! JSON Web Key sets (RFC 7517, RFC 7518 section 6, RFC 8037) -> verification keys.
//!
//! The algorithms that a key may verify are derived from the key (`kty`, `crv`, `alg`), never from
//! a token. Keys for other uses, or of a kind that is not supported, are skipped, as RFC 7517
//! section 5 asks; keys that must not be in a key set at all are refused.

use aws_lc_rs::digest;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, EcdsaVerificationAlgorithm,
    ParsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use curve25519_dalek::edwards::CompressedEdwardsY;
use leno_model::{PublicKey, VerificationKey};
use leno_policy::spec::{Algorithm, Key, KeyId};
use serde_json::{Map, Value};

/// More keys than any issuer has; it bounds the work that the server of a key set can cause.
const MAX_KEYS: usize = 100;

/// The content of a key set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeySet {
    /// Usable keys: for the program and for the runtime.
    pub keys: Vec<(Key, VerificationKey)>,
    /// Refused keys. A key set in a document is refused because of them; of a fetched one, log them
    /// and use the rest.
    pub refused: Vec<KeyError>,
    /// Keys for other uses or of unknown kinds, in words.
    pub skipped: Vec<String>,
}

impl KeySet {
    /// ` (…)`, for messages.
    pub(crate) fn skipped_in_words(&self) -> String {
        if self.skipped.is_empty() { String::new() } else { format!(" ({})", self.skipped.join("; ")) }
    }
}

/// A key, or a key set, that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}; {fix}", index.map(|index| format!("keys[{index}]: ")).unwrap_or_default())]
pub struct KeyError {
    /// Index of the key; `None`: the set as a whole.
    pub index: Option<usize>,
    /// The error.
    pub message: String,
    /// The fix.
    pub fix: &'static str,
}

/// A key set as JSON text, as issuers serve it.
pub fn parse(json: &[u8]) -> KeySet {
    match serde_json::from_slice(json) {
        Ok(value) => from_json(&value),
        Err(error) => whole(format!("not JSON: {error}")),
    }
}

/// A key set as a JSON value.
pub fn from_json(set: &Value) -> KeySet {
    let Some(keys) = set.get("keys").and_then(Value::as_array) else {
        return whole("there is no list `keys`".to_owned());
    };
    if keys.len() > MAX_KEYS {
        return whole(format!("{} keys are more than {MAX_KEYS}", keys.len()));
    }
    let mut set = KeySet::default();
    for (index, jwk) in keys.iter().enumerate() {
        let members =
            jwk.as_object().ok_or(Fault::Refuse("the key is not an object".to_owned(), "expected {\"kty\": …}"));
        match members.and_then(key) {
            Ok((key, public)) => set.add(index, key, public),
            Err(Fault::Skip(reason)) => set.skipped.push(format!("key {index}: {reason}")),
            Err(Fault::Refuse(message, fix)) => set.refused.push(KeyError { index: Some(index), message, fix }),
        }
    }
    set
}

fn whole(message: String) -> KeySet {
    let refused = KeyError { index: None, message, fix: "expected {\"keys\": [{\"kty\": …}, …]}" };
    KeySet { refused: vec![refused], ..KeySet::default() }
}

impl KeySet {
    fn add(&mut self, index: usize, key: Key, public: VerificationKey) {
        // Keys of different kinds may have one name (RFC 7517, 4.5): the token's algorithm decides
        // between them.
        let kty = kty(&public.key);
        let twice = key.kid.is_some()
            && self.keys.iter().any(|(other, public)| other.kid == key.kid && self::kty(&public.key) == kty);
        if twice {
            let kid = key.kid.unwrap_or_default();
            let message = format!("two keys have the `kid` \"{}\" and the `kty` {kty}", kid.escape_debug());
            self.refused.push(KeyError { index: Some(index), message, fix: "give each its own, or remove one" });
            return;
        }
        self.keys.push((key, public));
    }
}

/// Why a key is not used.
enum Fault {
    Skip(String),
    Refuse(String, &'static str),
}

fn key(jwk: &Map<String, Value>) -> Result<(Key, VerificationKey), Fault> {
    let kty = text(jwk, "kty")?.ok_or(Fault::Refuse("`kty` is missing".to_owned(), "expected RSA, EC or OKP"))?;
    if kty == "oct" {
        let message = "a symmetric key (`kty: oct`) lets everybody who can verify tokens make them";
        return Err(Fault::Refuse(message.to_owned(), "use a public RSA, EC or OKP key"));
    }
    if let Some(member) = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"].iter().find(|member| jwk.contains_key(**member))
    {
        let message = format!("the key has the private member `{member}`: whoever reads it can make tokens");
        return Err(Fault::Refuse(message, "publish only the public members, and replace the key"));
    }
    if let Some(purpose) = text(jwk, "use")?
        && purpose != "sig"
    {
        return Err(Fault::Skip(format!("`use` is {purpose:?}")));
    }
    if let Some(operations) = jwk.get("key_ops") {
        let operations = operations.as_array().filter(|operations| operations.iter().all(Value::is_string));
        let operations = operations.ok_or_else(|| {
            Fault::Refuse("`key_ops` is not a list of texts".to_owned(), "expected [\"verify\"], or remove it")
        })?;
        if !operations.iter().any(|operation| operation == "verify") {
            return Err(Fault::Skip("`key_ops` has no \"verify\"".to_owned()));
        }
    }
    let (public, able) = match (kty, text(jwk, "crv")?) {
        ("RSA", _) => rsa(jwk)?,
        ("EC", Some("P-256")) => (PublicKey::P256(point(jwk, 32, &ECDSA_P256_SHA256_FIXED)?), &[Algorithm::ES256][..]),
        ("EC", Some("P-384")) => (PublicKey::P384(point(jwk, 48, &ECDSA_P384_SHA384_FIXED)?), &[Algorithm::ES384][..]),
        ("EC", Some("P-521")) => (PublicKey::P521(point(jwk, 66, &ECDSA_P521_SHA512_FIXED)?), &[Algorithm::ES512][..]),
        ("OKP", Some("Ed25519")) => (PublicKey::Ed25519(ed25519(jwk)?), &[Algorithm::EdDSA][..]),
        ("EC" | "OKP", None) => {
            return Err(Fault::Refuse("`crv` is missing".to_owned(), "expected P-256, P-384, P-521 or Ed25519"));
        }
        (kty, Some(crv)) => return Err(Fault::Skip(format!("{kty} with curve {crv:?} is not supported"))),
        (kty, None) => return Err(Fault::Skip(format!("`kty` {kty:?} is not supported"))),
    };
    let algorithms = match text(jwk, "alg")? {
        None => able.to_vec(),
        Some(alg) => restricted(alg, able)?,
    };
    let kid = text(jwk, "kid")?.map(str::to_owned);
    let id = id(&public);
    Ok((Key { kid, algorithms, id }, VerificationKey { id, key: public }))
}

/// The algorithms of a key that states its algorithm.
fn restricted(alg: &str, able: &[Algorithm]) -> Result<Vec<Algorithm>, Fault> {
    let algorithm = match alg {
        "RS256" => Algorithm::RS256,
        "RS384" => Algorithm::RS384,
        "RS512" => Algorithm::RS512,
        "PS256" => Algorithm::PS256,
        "PS384" => Algorithm::PS384,
        "PS512" => Algorithm::PS512,
        "ES256" => Algorithm::ES256,
        "ES384" => Algorithm::ES384,
        "ES512" => Algorithm::ES512,
        "EdDSA" | "Ed25519" => Algorithm::EdDSA,
        _ if alg == "none" || alg.starts_with("HS") => {
            return Err(Fault::Refuse(
                format!("`alg` {alg:?} is not safe with a public key"),
                "remove `alg`, or give the key's own",
            ));
        }
        _ => return Err(Fault::Skip(format!("`alg` {alg:?} is not supported"))),
    };
    if !able.contains(&algorithm) {
        return Err(Fault::Refuse(
            format!("`alg` {alg:?} does not go with this kind of key"),
            "remove `alg`, or give the key's own",
        ));
    }
    Ok(vec![algorithm])
}

fn rsa(jwk: &Map<String, Value>) -> Result<(PublicKey, &'static [Algorithm]), Fault> {
    let trimmed =
        |bytes: Vec<u8>| bytes.iter().position(|byte| *byte != 0).map_or(Vec::new(), |first| bytes[first..].to_vec());
    let n = trimmed(bytes(jwk, "n", None)?);
    let e = trimmed(bytes(jwk, "e", None)?);
    let bits = n.first().map_or(0, |first| n.len() * 8 - first.leading_zeros() as usize);
    if !(2048..=8192).contains(&bits) {
        return Err(Fault::Refuse(format!("an RSA key of {bits} bits"), "expected 2048 to 8192 bits"));
    }
    let odd = |number: &[u8]| number.last().is_some_and(|last| last % 2 == 1);
    // The library that verifies supports exponents of up to 33 bits.
    if !odd(&e) || e == [1] || e.len() > 4 {
        return Err(Fault::Refuse(
            "the RSA exponent is not an odd number from 3 to 2^32".to_owned(),
            "expected 65537: \"e\": \"AQAB\"",
        ));
    }
    if !odd(&n) {
        return Err(Fault::Refuse("the RSA modulus is even".to_owned(), "copy `n` again"));
    }
    if is_roca(&n) {
        return Err(Fault::Refuse(
            "the RSA modulus has the fingerprint of keys whose factors can be found (ROCA, CVE-2017-15361)".to_owned(),
            "have its owner replace the key",
        ));
    }
    Ok((PublicKey::Rsa { n, e }, RSA_ALGORITHMS))
}

const RSA_ALGORITHMS: &[Algorithm] =
    &[Algorithm::RS256, Algorithm::RS384, Algorithm::RS512, Algorithm::PS256, Algorithm::PS384, Algorithm::PS512];

/// Whether a modulus was made by a certain broken library: modulo each of the first primes it is a
/// power of 65537 (Nemec and others, "The Return of Coppersmith's Attack", 2017). Less than one in
/// 100,000,000 other moduli is.
fn is_roca(n: &[u8]) -> bool {
    const PRIMES: [u32; 38] = [
        3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107,
        109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167,
    ];
    PRIMES.iter().all(|prime| {
        let residue = n.iter().fold(0, |rest, byte| (rest * 256 + u32::from(*byte)) % prime);
        let powers = std::iter::successors(Some(1), |power| Some(power * 65537 % prime).filter(|power| *power != 1));
        powers.into_iter().any(|power| power == residue)
    })
}

/// A point of the curve that is not of small order: with such a key, one can make signatures that
/// fit any message.
fn ed25519(jwk: &Map<String, Value>) -> Result<Vec<u8>, Fault> {
    let bytes = bytes(jwk, "x", Some(32))?;
    let refuse = |message: &str| Err(Fault::Refuse(message.to_owned(), "copy the key again from its issuer"));
    // A second encoding of a point would be a second key of the same owner.
    let point = CompressedEdwardsY::from_slice(&bytes)
        .ok()
        .and_then(|compressed| compressed.decompress().filter(|point| point.compress() == compressed));
    match point {
        None => refuse("`x` is not a point of the curve"),
        Some(point) if point.is_small_order() => refuse("`x` is a point of small order"),
        Some(_) => Ok(bytes),
    }
}

/// `04 || x || y`, on the curve.
fn point(
    jwk: &Map<String, Value>,
    length: usize,
    curve: &'static EcdsaVerificationAlgorithm,
) -> Result<Vec<u8>, Fault> {
    let mut point = vec![4];
    point.extend(bytes(jwk, "x", Some(length))?);
    point.extend(bytes(jwk, "y", Some(length))?);
    match ParsedPublicKey::new(curve, &point) {
        Ok(_) => Ok(point),
        Err(_) => Err(Fault::Refuse(
            "`x` and `y` are not a point of the curve".to_owned(),
            "copy the key again from its issuer",
        )),
    }
}

fn text<'a>(jwk: &'a Map<String, Value>, member: &str) -> Result<Option<&'a str>, Fault> {
    match jwk.get(member) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Fault::Refuse(format!("`{member}` is not text"), "expected text")),
    }
}

fn bytes(jwk: &Map<String, Value>, member: &str, length: Option<usize>) -> Result<Vec<u8>, Fault> {
    let refuse = |message: String| Err(Fault::Refuse(message, "copy the key again from its issuer"));
    let Some(encoded) = text(jwk, member)? else {
        return refuse(format!("`{member}` is missing"));
    };
    let Ok(bytes) = URL_SAFE_NO_PAD.decode(encoded) else {
        return refuse(format!("`{member}` is not base64url without padding"));
    };
    match length {
        Some(length) if bytes.len() != length => {
            refuse(format!("`{member}` has {} bytes instead of {length}", bytes.len()))
        }
        _ => Ok(bytes),
    }
}

/// RFC 7518, 6.1, and RFC 8037.
fn kty(key: &PublicKey) -> &'static str {
    match key {
        PublicKey::Rsa { .. } => "RSA",
        PublicKey::P256(_) | PublicKey::P384(_) | PublicKey::P521(_) => "EC",
        PublicKey::Ed25519(_) => "OKP",
    }
}

/// Hash over the public bytes, each with its length, so that no two keys have the same input.
fn id(key: &PublicKey) -> KeyId {
    let parts: [&[u8]; 3] = match key {
        PublicKey::Rsa { n, e } => [b"RSA", n, e],
        PublicKey::P256(point) => [b"P-256", point, b""],
        PublicKey::P384(point) => [b"P-384", point, b""],
        PublicKey::P521(point) => [b"P-521", point, b""],
        PublicKey::Ed25519(public) => [b"Ed25519", public, b""],
    };
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut id = [0; 32];
    id.iter_mut().zip(context.finish().as_ref()).for_each(|(to, from)| *to = *from);
    KeyId(id)
}
