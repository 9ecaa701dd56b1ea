//! Helpers for tests of several modules: signing keys, tokens.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair,
    Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384,
    RSA_PSS_SHA512, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leno_model::{AppProtocol, PublicKey, Run, VerificationKey};
use leno_model::{FunctionConfig, FunctionId, SpiffeId};
use leno_policy::spec::{AccessLog, Algorithm, Direction, KeyId, ProgramSpec, Sidecar, Target, Tracing};
use std::time::Duration;

/// A private key for one algorithm.
pub(crate) struct SigningKey {
    algorithm: Algorithm,
    pair: Pair,
}

enum Pair {
    Rsa(RsaKeyPair),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    pub(crate) fn generate(algorithm: Algorithm) -> Self {
        let pair = match algorithm {
            Algorithm::ES256 => Pair::Ecdsa(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap()),
            Algorithm::ES384 => Pair::Ecdsa(EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap()),
            Algorithm::ES512 => Pair::Ecdsa(EcdsaKeyPair::generate(&ECDSA_P521_SHA512_FIXED_SIGNING).unwrap()),
            Algorithm::EdDSA => Pair::Ed25519(Ed25519KeyPair::generate().unwrap()),
            _ => Pair::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()),
        };
        Self { algorithm, pair }
    }

    pub(crate) fn verification_key(&self, id: KeyId) -> VerificationKey {
        let key = match &self.pair {
            Pair::Rsa(pair) => PublicKey::Rsa {
                n: pair.public_key().modulus().big_endian_without_leading_zero().to_vec(),
                e: pair.public_key().exponent().big_endian_without_leading_zero().to_vec(),
            },
            Pair::Ecdsa(pair) if self.algorithm == Algorithm::ES256 => {
                PublicKey::P256(pair.public_key().as_ref().into())
            }
            Pair::Ecdsa(pair) if self.algorithm == Algorithm::ES512 => {
                PublicKey::P521(pair.public_key().as_ref().into())
            }
            Pair::Ecdsa(pair) => PublicKey::P384(pair.public_key().as_ref().into()),
            Pair::Ed25519(pair) => PublicKey::Ed25519(pair.public_key().as_ref().into()),
        };
        VerificationKey { id, key }
    }

    pub(crate) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Rsa(pair) => {
                let padding: &dyn aws_lc_rs::signature::RsaEncoding = match self.algorithm {
                    Algorithm::RS384 => &RSA_PKCS1_SHA384,
                    Algorithm::RS512 => &RSA_PKCS1_SHA512,
                    Algorithm::PS256 => &RSA_PSS_SHA256,
                    Algorithm::PS384 => &RSA_PSS_SHA384,
                    Algorithm::PS512 => &RSA_PSS_SHA512,
                    _ => &RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(padding, &random, message, &mut signature).unwrap();
                signature
            }
            Pair::Ecdsa(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }
}

/// A token with these claims, without `kid`.
pub(crate) fn sign(key: &SigningKey, claims: &str) -> String {
    sign_as(key, None, claims)
}

/// A token with these claims.
pub(crate) fn sign_as(key: &SigningKey, kid: Option<&str>, claims: &str) -> String {
    let kid = kid.map(|kid| format!(r#","kid":"{kid}""#)).unwrap_or_default();
    let header = format!(r#"{{"alg":"{:?}","typ":"JWT"{kid}}}"#, key.algorithm);
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let signature = key.sign(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// A function without any policy: no function may call it, and it may call none.
pub(crate) fn config(name: &str) -> FunctionConfig {
    let id: FunctionId = name.parse().unwrap();
    let program = |direction, targets| ProgramSpec {
        function: name.to_owned(),
        direction,
        sidecar: Sidecar::default(),
        authentication: Vec::new(),
        authorization: Vec::new(),
        audit_default: false,
        authorizers: Vec::new(),
        rate_limits: Vec::new(),
        tracing: Tracing { name: String::new(), enabled: true, sampling_per_10k: 10_000, accept_b3: true },
        access_log: AccessLog { name: String::new(), enabled: true, statuses: Vec::new(), request_headers: Vec::new() },
        targets,
    };
    FunctionConfig {
        identity: SpiffeId::of_function(&"td.example".parse().unwrap(), &id),
        id,
        inbound: program(Direction::Inbound, vec![target(name)]),
        outbound: program(Direction::Outbound, Vec::new()),
        engine: None,
        deadline: Duration::from_secs(5),
        protocol: AppProtocol::Http1,
        keys: Vec::new(),
        jwks: Vec::new(),
        run: Run::External(Vec::new()),
        expose: Vec::new(),
        faults: Vec::new(),
        is_routed: false,
        callees: Vec::new(),
        concurrency: 0,
        queue: 1024,
        scale: Default::default(),
        authorizers: Vec::new(),
        inbound_extensions: Vec::new(),
        outbound_extensions: Vec::new(),
        revisions: Default::default(),
        chain: None,
        bounds: Default::default(),
    }
}

/// A target without retries and limits.
pub(crate) fn target(function: &str) -> Target {
    Target { function: function.to_owned(), timeout_ms: 0, retry: None, breaker: None, as_received: false }
}
