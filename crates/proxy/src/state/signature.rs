//! Verifies signatures of JSON Web Tokens at a program's request (RFC 7515, RFC 7518 section 3, RFC
//! 8037).
//!
//! The program chooses the keys and the algorithm, from its own keys only. This module merely
//! checks whether a key made the token's signature. A key that does not fit the algorithm is an
//! error, never a guess.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, VerificationAlgorithm,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leno_model::{PublicKey, VerificationKey};
use leno_policy::spec::{Algorithm, KeyId};
use std::collections::HashMap;
use std::sync::OnceLock;

/// Bytes of the longest signature: RSA with 8192 bits.
const LONGEST_SIGNATURE: usize = 1024;

/// One function's verification keys, each decoded when it is first used.
#[derive(Debug, Default)]
pub struct PreparedKeys(HashMap<KeyId, PreparedKey>);

#[derive(Debug)]
struct PreparedKey {
    key: PublicKey,
    /// Indexed by [`slot`]. Decoded when first used, because most keys serve one algorithm.
    decoded: [OnceLock<Result<ParsedPublicKey, InvalidSignature>>; 6],
}

/// Why a signature does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSignature {
    /// The token does not have three parts, or the third is not base64url.
    #[error("the token is not a signed JSON Web Token")]
    Malformed,
    /// The program named a key that is not in its configuration.
    #[error("the key is not in the function's configuration")]
    UnknownKey,
    /// The key does not fit the algorithm: for example, an EC key for RS256.
    #[error("the key is not of the algorithm's kind")]
    WrongKind,
    /// The key's bytes are not a key, or an RSA key has fewer than 2048 or more than 8192 bits.
    #[error("the key cannot be used")]
    UnusableKey,
    /// Another key made the signature, or the token was changed.
    #[error("the signature does not match")]
    Mismatch,
}

impl InvalidSignature {
    /// A label for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::WrongKind => "wrong_kind",
            Self::UnusableKey => "unusable_key",
            Self::Mismatch => "mismatch",
        }
    }
}

impl PreparedKeys {
    /// Prepares the keys. An unusable key makes the signatures that need it invalid, and no others.
    pub fn new(keys: &[VerificationKey]) -> Self {
        let prepare = |VerificationKey { id, key }: &VerificationKey| {
            (*id, PreparedKey { key: key.clone(), decoded: Default::default() })
        };
        Self(keys.iter().map(prepare).collect())
    }

    /// Whether the function has this key.
    pub fn contains(&self, key: KeyId) -> bool {
        self.0.contains_key(&key)
    }

    /// Whether `key` made the signature of `token` (compact serialisation) by `algorithm`.
    pub fn verify(&self, token: &str, key: KeyId, algorithm: Algorithm) -> Result<(), InvalidSignature> {
        let (signed, signature) = token.rsplit_once('.').ok_or(InvalidSignature::Malformed)?;
        if signed.bytes().filter(|byte| *byte == b'.').count() != 1 {
            return Err(InvalidSignature::Malformed);
        }
        let mut buffer = [0; LONGEST_SIGNATURE];
        let length = URL_SAFE_NO_PAD.decode_slice(signature, &mut buffer).map_err(|_| InvalidSignature::Malformed)?;
        let key = self.0.get(&key).ok_or(InvalidSignature::UnknownKey)?.decoded(algorithm)?;
        key.verify_sig(signed.as_bytes(), &buffer[..length]).map_err(|_| InvalidSignature::Mismatch)
    }
}

impl PreparedKey {
    fn decoded(&self, algorithm: Algorithm) -> Result<&ParsedPublicKey, InvalidSignature> {
        let slot = slot(&self.key, algorithm).ok_or(InvalidSignature::WrongKind)?;
        self.decoded[slot].get_or_init(|| decode(&self.key, algorithm)).as_ref().map_err(|error| *error)
    }
}

/// The index of a key that was decoded for this algorithm; `None`: the key does not fit the
/// algorithm.
fn slot(key: &PublicKey, algorithm: Algorithm) -> Option<usize> {
    match (key, algorithm) {
        (PublicKey::Rsa { .. }, Algorithm::RS256)
        | (PublicKey::P256(_), Algorithm::ES256)
        | (PublicKey::P384(_), Algorithm::ES384)
        | (PublicKey::P521(_), Algorithm::ES512)
        | (PublicKey::Ed25519(_), Algorithm::EdDSA) => Some(0),
        (PublicKey::Rsa { .. }, Algorithm::RS384) => Some(1),
        (PublicKey::Rsa { .. }, Algorithm::RS512) => Some(2),
        (PublicKey::Rsa { .. }, Algorithm::PS256) => Some(3),
        (PublicKey::Rsa { .. }, Algorithm::PS384) => Some(4),
        (PublicKey::Rsa { .. }, Algorithm::PS512) => Some(5),
        _ => None,
    }
}

fn decode(key: &PublicKey, algorithm: Algorithm) -> Result<ParsedPublicKey, InvalidSignature> {
    let verification: &'static dyn VerificationAlgorithm = match algorithm {
        Algorithm::RS256 => &RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &RSA_PSS_2048_8192_SHA512,
        Algorithm::ES256 => &ECDSA_P256_SHA256_FIXED,
        Algorithm::ES384 => &ECDSA_P384_SHA384_FIXED,
        Algorithm::ES512 => &ECDSA_P521_SHA512_FIXED,
        Algorithm::EdDSA => &ED25519,
    };
    let bytes = match key {
        PublicKey::Rsa { n, e } => rsa_public_key(n, e).ok_or(InvalidSignature::UnusableKey)?,
        PublicKey::P256(point) | PublicKey::P384(point) | PublicKey::P521(point) => point.clone(),
        PublicKey::Ed25519(key) => key.clone(),
    };
    ParsedPublicKey::new(verification, bytes).map_err(|_| InvalidSignature::UnusableKey)
}

/// `RSAPublicKey` of RFC 8017, A.1.1, in DER; `None` unless the modulus has 2048 to 8192 bits.
fn rsa_public_key(n: &[u8], e: &[u8]) -> Option<Vec<u8>> {
    let bits = n.len() * 8 - n.first()?.leading_zeros() as usize;
    if !(2048..=8192).contains(&bits) || e.is_empty() || e.len() > 8 {
        return None;
    }
    let mut integers = Vec::with_capacity(n.len() + 32);
    for number in [n, e] {
        // In DER, a first bit that is set would make the number negative.
        let sign: &[u8] = if number[0] & 0x80 == 0 { &[] } else { &[0] };
        der(&mut integers, 0x02, &[sign, number]);
    }
    let mut key = Vec::with_capacity(integers.len() + 8);
    der(&mut key, 0x30, &[&integers]);
    Some(key)
}

/// Appends one DER element.
fn der(out: &mut Vec<u8>, tag: u8, content: &[&[u8]]) {
    let length: usize = content.iter().map(|part| part.len()).sum();
    out.push(tag);
    let bytes = length.to_be_bytes();
    match length {
        0..0x80 => out.push(bytes[bytes.len() - 1]),
        _ => {
            let significant = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
            out.push(0x80 | significant.len() as u8);
            out.extend_from_slice(significant);
        }
    }
    content.iter().for_each(|part| out.extend_from_slice(part));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SigningKey, sign};

    const ALL: [Algorithm; 10] = [
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::RS512,
        Algorithm::PS256,
        Algorithm::PS384,
        Algorithm::PS512,
        Algorithm::ES256,
        Algorithm::ES384,
        Algorithm::ES512,
        Algorithm::EdDSA,
    ];

    #[test]
    fn every_algorithm_verifies_what_its_key_made_and_nothing_else() {
        for algorithm in ALL {
            let (key, other) = (SigningKey::generate(algorithm), SigningKey::generate(algorithm));
            let keys =
                PreparedKeys::new(&[key.verification_key(KeyId([1; 32])), other.verification_key(KeyId([2; 32]))]);
            let token = sign(&key, r#"{"sub":"ann"}"#);
            assert_eq!(keys.verify(&token, KeyId([1; 32]), algorithm), Ok(()), "{algorithm:?}");
            assert_eq!(
                keys.verify(&token, KeyId([2; 32]), algorithm),
                Err(InvalidSignature::Mismatch),
                "{algorithm:?}"
            );
            assert_eq!(keys.verify(&token, KeyId([3; 32]), algorithm), Err(InvalidSignature::UnknownKey));
            let forged = token.replacen('.', ".e", 1);
            assert_eq!(keys.verify(&forged, KeyId([1; 32]), algorithm), Err(InvalidSignature::Mismatch));
            let cut = token.rsplit_once('.').unwrap().0;
            assert_eq!(keys.verify(&format!("{cut}."), KeyId([1; 32]), algorithm), Err(InvalidSignature::Mismatch));
        }
    }

    #[test]
    fn a_key_serves_only_its_kind_of_algorithm() {
        for made_by in ALL {
            let key = SigningKey::generate(made_by);
            let keys = PreparedKeys::new(&[key.verification_key(KeyId([1; 32]))]);
            let token = sign(&key, "{}");
            for asked in ALL.into_iter().filter(|asked| *asked != made_by) {
                let error = keys.verify(&token, KeyId([1; 32]), asked).unwrap_err();
                let rsa = |algorithm| !format!("{algorithm:?}").starts_with('E');
                let expected =
                    if rsa(made_by) && rsa(asked) { InvalidSignature::Mismatch } else { InvalidSignature::WrongKind };
                assert_eq!(error, expected, "{made_by:?} as {asked:?}");
            }
        }
    }

    #[test]
    fn malformed_tokens_are_no_tokens() {
        let key = SigningKey::generate(Algorithm::EdDSA);
        let keys = PreparedKeys::new(&[key.verification_key(KeyId([1; 32]))]);
        let token = sign(&key, "{}");
        let long = format!("a.b.{}", "A".repeat(4000));
        for bad in ["", ".", "a.b", &format!("{token}="), &format!("{token}.x"), &format!("x.{token}"), "a.b.!!", &long]
        {
            assert_eq!(keys.verify(bad, KeyId([1; 32]), Algorithm::EdDSA), Err(InvalidSignature::Malformed), "{bad}");
        }
    }

    #[test]
    fn weak_and_broken_keys_are_unusable() {
        let cases = [
            (PublicKey::Rsa { n: vec![0xff; 128], e: vec![1, 0, 1] }, Algorithm::RS256),
            (PublicKey::Rsa { n: vec![0xff; 1025], e: vec![1, 0, 1] }, Algorithm::RS256),
            (PublicKey::Rsa { n: vec![0x7f; 256], e: vec![1, 0, 1] }, Algorithm::PS256),
            (PublicKey::Rsa { n: vec![], e: vec![1, 0, 1] }, Algorithm::RS256),
            (PublicKey::Rsa { n: vec![0xff; 256], e: vec![] }, Algorithm::RS256),
            (PublicKey::Rsa { n: vec![0xff; 256], e: vec![1] }, Algorithm::RS256),
            (PublicKey::P256(vec![4; 65]), Algorithm::ES256),
            (PublicKey::P384(vec![4; 65]), Algorithm::ES384),
            (PublicKey::P521(vec![4; 133]), Algorithm::ES512),
            (PublicKey::Ed25519(vec![4; 31]), Algorithm::EdDSA),
        ];
        for (key, algorithm) in cases {
            let keys = PreparedKeys::new(&[VerificationKey { id: KeyId([1; 32]), key: key.clone() }]);
            let error = keys.verify("e30.e30.AAAA", KeyId([1; 32]), algorithm).unwrap_err();
            assert_eq!(error, InvalidSignature::UnusableKey, "{key:?}");
        }
    }
}
