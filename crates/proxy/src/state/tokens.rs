//! Remembers tokens whose signatures were verified. The next request with the same token needs no
//! public-key operation.
//!
//! An entry only says "this key signed this token". The program decides on the claims, on expiry,
//! and on whether the key is still trusted.

mod key_set_counts;
mod key_set_reports;

pub use key_set_counts::{KeySetCounts, KeySetState};
pub use key_set_reports::{KeySetProblem, KeySetReports};

use super::by_function::ByFunction;
use super::recent::{KeyedHasher, Recent};
use leno_model::FunctionId;
use leno_policy::spec::{Algorithm, KeyId};
use std::sync::Arc;

/// A key, as the result of verifying a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedToken {
    /// The key that the signature was verified with.
    pub key: KeyId,
    /// The algorithm of the signature.
    pub algorithm: Algorithm,
}

/// The tokens that a node has verified.
#[derive(Debug, Default)]
pub struct NodeTokens {
    functions: ByFunction<VerifiedTokens>,
    /// Tokens that were verified with the keys of any function. A token that is new to one function
    /// costs no public-key operation if another function has verified it. A client that floods this
    /// only makes other functions verify new tokens once.
    pub signatures: VerifiedTokens,
    /// Hashes what this node remembers.
    pub(crate) hasher: KeyedHasher,
    /// Functions whose key sets may have changed, and key sets that could not be fetched.
    pub key_sets: Arc<KeySetReports>,
}

impl NodeTokens {
    /// The verified tokens of one function.
    pub fn function(&self, function: &FunctionId) -> Arc<VerifiedTokens> {
        self.functions.get(function)
    }

    /// Number of tokens that are remembered for functions.
    pub fn len(&self) -> usize {
        self.functions.values().iter().map(|tokens| tokens.len()).sum()
    }

    /// Whether no token is remembered for a function.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets the tokens of other functions. Returns whether there were such functions.
    pub(crate) fn retain(&self, keep: impl Fn(&FunctionId) -> bool) -> bool {
        self.functions.retain(keep)
    }
}

/// Verified tokens: at most 4096, about half a megabyte.
#[derive(Debug, Default)]
pub struct VerifiedTokens(Recent<VerifiedToken, 256>);

impl VerifiedTokens {
    /// The entry of the token with this hash.
    pub fn look_up(&self, hash: u128) -> Option<VerifiedToken> {
        self.0.look_up(hash)
    }

    /// Remembers a verified token.
    pub fn remember(&self, hash: u128, known: VerifiedToken) {
        self.0.insert(hash, known);
    }

    /// Number of tokens that are remembered.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no token is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_latest_key() {
        let made_by = |key: u8| VerifiedToken { key: KeyId([key; 32]), algorithm: Algorithm::ES256 };
        let tokens = VerifiedTokens::default();
        assert_eq!(tokens.look_up(1), None);
        tokens.remember(1, made_by(7));
        assert_eq!(tokens.look_up(1), Some(made_by(7)));
        tokens.remember(1, made_by(8));
        assert_eq!(tokens.look_up(1), Some(made_by(8)), "another key made it, says the latest check");
        assert_eq!((tokens.look_up(2), tokens.len()), (None, 1));
    }
}
