//! What a program wants to be handed with each request, so that one run is enough.

use crate::spec::{ClaimPath, KeyPart, ProgramSpec, TokenSource};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Declared by the program, read by the runtime. All of it is only a forecast: a program that misses something asks
/// for it ([`crate::outcome::Wants`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Needs {
    /// Where tokens may be, over all issuers, each place once: the argument of [`crate::token::locate`].
    pub tokens: Vec<TokenSource>,
    /// The key of each rate limit, in order.
    pub quotas: Vec<Vec<KeyPart>>,
    /// The claims that occur in those keys, each once, in order.
    pub claims: Vec<ClaimPath>,
    /// Whether the response must be judged too.
    pub response: bool,
}

impl Needs {
    /// What the program of this specification needs.
    pub fn of(spec: &ProgramSpec) -> Self {
        let mut needs = Self { response: !spec.sidecar.response_headers.is_empty(), ..Self::default() };
        for source in spec.authentication.iter().flat_map(|issuer| &issuer.sources) {
            if !needs.tokens.contains(source) {
                needs.tokens.push(source.clone());
            }
        }
        for limit in &spec.rate_limits {
            for part in &limit.key {
                if let KeyPart::Claim(path) = part
                    && !needs.claims.contains(path)
                {
                    needs.claims.push(path.clone());
                }
            }
            needs.quotas.push(limit.key.clone());
        }
        needs
    }
}
