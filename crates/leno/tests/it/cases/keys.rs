//! Keys generated for each run, the key sets that publish them, and tokens signed with them.

use super::table::Token;
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair,
    Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384,
    RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

enum Pair {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    P521(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// The keys that tables can use by name.
pub(crate) struct Keys(Vec<(&'static str, Pair)>);

impl Keys {
    pub(crate) fn generate() -> Self {
        let rsa = || Pair::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap());
        let p256 = || Pair::P256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap());
        let p384 = || Pair::P384(EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap());
        let p521 = || Pair::P521(EcdsaKeyPair::generate(&ECDSA_P521_SHA512_FIXED_SIGNING).unwrap());
        let ed25519 = || Pair::Ed25519(Ed25519KeyPair::generate().unwrap());
        Self(vec![
            ("rsa", rsa()),
            ("rsa-other", rsa()),
            ("p256", p256()),
            ("p256-other", p256()),
            ("p384", p384()),
            ("p521", p521()),
            ("ed25519", ed25519()),
            ("ed25519-other", ed25519()),
        ])
    }

    fn pair(&self, name: &str) -> &Pair {
        let found = self.0.iter().find(|(known, _)| *known == name);
        &found.unwrap_or_else(|| panic!("there is no key `{name}`")).1
    }

    /// Replaces each `{generated: [{key: NAME, kid: …, alg: …}, …]}` by the key set `{inline: {keys: […]}}`.
    pub(crate) fn publish(&self, policy: &mut Value) {
        match policy {
            Value::Object(members) => {
                if let Some(Value::Array(wanted)) = members.remove("generated") {
                    let keys: Vec<Value> = wanted.iter().map(|wanted| self.jwk(wanted)).collect();
                    members.insert("inline".to_owned(), json!({ "keys": keys }));
                }
                members.values_mut().for_each(|member| self.publish(member));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.publish(item)),
            _ => {}
        }
    }

    fn jwk(&self, wanted: &Value) -> Value {
        let mut jwk = self.public(wanted["key"].as_str().expect("a key set names its keys"));
        for (name, value) in wanted.as_object().unwrap().iter().filter(|(name, _)| *name != "key") {
            jwk[name] = value.clone();
        }
        jwk
    }

    fn public(&self, name: &str) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let point = |pair: &EcdsaKeyPair, crv: &str| {
            let (x, y) = pair.public_key().as_ref()[1..].split_at(pair.public_key().as_ref().len() / 2);
            json!({"kty": "EC", "crv": crv, "x": text(x), "y": text(y)})
        };
        match self.pair(name) {
            Pair::Rsa(pair) => json!({
                "kty": "RSA",
                "n": text(pair.public_key().modulus().big_endian_without_leading_zero()),
                "e": text(pair.public_key().exponent().big_endian_without_leading_zero()),
            }),
            Pair::P256(pair) => point(pair, "P-256"),
            Pair::P384(pair) => point(pair, "P-384"),
            Pair::P521(pair) => point(pair, "P-521"),
            Pair::Ed25519(pair) => json!({"kty": "OKP", "crv": "Ed25519", "x": text(pair.public_key().as_ref())}),
        }
    }

    /// The token in compact form (RFC 7515, 7.1).
    pub(crate) fn token(&self, token: &Token) -> String {
        let natural = match self.pair(&token.key) {
            Pair::Rsa(_) => "RS256",
            Pair::P256(_) => "ES256",
            Pair::P384(_) => "ES384",
            Pair::P521(_) => "ES512",
            Pair::Ed25519(_) => "EdDSA",
        };
        let alg = token.alg.as_deref().unwrap_or(natural);
        let mut header = json!({"alg": alg, "typ": "JWT"});
        if let Some(kid) = &token.kid {
            header["kid"] = kid.clone();
        }
        for (name, value) in &token.header {
            header[name] = value.clone();
        }
        let header = token.header_text.clone().unwrap_or_else(|| header.to_string());
        let claims = token.claims_text.clone().unwrap_or_else(|| Value::Object(token.claims.clone()).to_string());
        let mut signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let mut signature = self.sign(&token.key, token.sign.as_deref().unwrap_or(alg), signed.as_bytes());
        match token.tamper.as_deref() {
            None => {}
            Some("signature") => signature[3] ^= 0x40,
            Some("short-signature") => drop(signature.pop()),
            Some("no-signature") => signature.clear(),
            Some("claims") => {
                let mut forged = token.claims.clone();
                forged.insert("sub".to_owned(), Value::from("mallory"));
                let forged = Value::Object(forged).to_string();
                signed.truncate(signed.find('.').unwrap() + 1);
                signed.push_str(&URL_SAFE_NO_PAD.encode(forged));
            }
            Some("padding") => signed.push('='),
            Some("stray-bits") => {
                let stray = stray_bits(&signed).expect("claims whose length is no multiple of three");
                signed.pop();
                signed.push(stray);
            }
            Some("standard-alphabet") => signed.push('+'),
            Some(other) => panic!("nobody knows how to tamper with a token by `{other}`"),
        }
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn sign(&self, key: &str, alg: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        let encoding: &dyn RsaEncoding = match alg {
            "RS384" => &RSA_PKCS1_SHA384,
            "RS512" => &RSA_PKCS1_SHA512,
            "PS256" => &RSA_PSS_SHA256,
            "PS384" => &RSA_PSS_SHA384,
            "PS512" => &RSA_PSS_SHA512,
            _ => &RSA_PKCS1_SHA256,
        };
        match self.pair(key) {
            // The classical confusion: the published public key serves as a shared secret.
            _ if alg == "HS256" => {
                let secret = hmac::Key::new(hmac::HMAC_SHA256, self.public(key).to_string().as_bytes());
                hmac::sign(&secret, message).as_ref().to_vec()
            }
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &random, message, &mut signature).unwrap();
                signature
            }
            Pair::P256(pair) | Pair::P384(pair) | Pair::P521(pair) => {
                pair.sign(&random, message).unwrap().as_ref().to_vec()
            }
            Pair::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }
}

/// Another last character that decodes to the same bytes: base64 that decoders should refuse (RFC
/// 4648, 3.5).
fn stray_bits(text: &str) -> Option<char> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let last = text.rsplit('.').next()?;
    let index = ALPHABET.iter().position(|byte| Some(byte) == last.as_bytes().last())?;
    (last.len() % 4 != 0).then(|| char::from(ALPHABET[index | 1]))
}
