//! An issuer of tokens, as a log-in service would be. Its key exists only in this process.

use crate::Result;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

const ISSUER: &str = "https://login.orders.example";
const KEY: &str = "demo";

/// An issuer with its key.
pub(crate) struct Issuer {
    key: EcdsaKeyPair,
}

/// The claims of a token.
pub(crate) struct Claims(Value);

impl Claims {
    /// The claims of a user's token, for this shop, valid for five minutes.
    pub(crate) fn of(subject: &str) -> Self {
        Self(json!({"iss": ISSUER, "aud": "orders", "sub": subject, "iat": now(), "exp": now() + 300}))
    }

    pub(crate) fn role(mut self, role: &str) -> Self {
        self.0["roles"] = json!([role]);
        self
    }

    /// Sets the expiry in seconds from now, or in the past.
    pub(crate) fn valid_for(mut self, seconds: i64) -> Self {
        self.0["exp"] = json!(now() + seconds);
        self
    }
}

impl Issuer {
    pub(crate) fn generate() -> Result<Self> {
        Ok(Self { key: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)? })
    }

    /// The key set (RFC 7517).
    pub(crate) fn key_set(&self) -> Value {
        let point = self.key.public_key().as_ref();
        let (x, y) = point[1..].split_at(32);
        json!({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": KEY, "x": BASE64.encode(x), "y": BASE64.encode(y)}]})
    }

    /// A token (RFC 7519), signed with ES256.
    pub(crate) fn token(&self, claims: &Claims) -> String {
        let signed = encoded(&json!({"alg": "ES256", "typ": "JWT", "kid": KEY}), claims);
        match self.key.sign(&SystemRandom::new(), signed.as_bytes()) {
            Ok(signature) => format!("{signed}.{}", BASE64.encode(signature)),
            // This happens only if the machine has no randomness. Then the token is invalid, and
            // the shop reports that.
            Err(_) => format!("{signed}."),
        }
    }
}

/// A token that an attacker without a key would try first. It has some signature, so that its form
/// is valid.
pub(crate) fn unsigned(claims: &Claims) -> String {
    format!("{}.{}", encoded(&json!({"alg": "none", "kid": KEY}), claims), BASE64.encode("trust me"))
}

fn encoded(header: &Value, claims: &Claims) -> String {
    format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.0.to_string()))
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
