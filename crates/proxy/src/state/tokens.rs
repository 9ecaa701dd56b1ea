//! Remembers tokens whose signatures were verified. The next request with the same token needs no
//! public-key operation.
//!
//! An entry only says "this key signed this token". The program decides each time anew on the
//! claims, on expiry, and on whether the key is still trusted.

mod key_set_counts;
mod key_set_reports;

pub use key_set_counts::{KeySetCounts, KeySetState};
pub use key_set_reports::KeySetReports;

use super::by_function::ByFunction;
use leno_model::FunctionId;
use leno_policy::spec::{Algorithm, ClaimPath, KeyId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// SHA-256 of a whole token, including its signature.
pub type Digest = [u8; 32];

/// Values of the claims that counter keys are made of ([`leno_policy::needs::Needs::claims`]).
pub type ClaimValues = Arc<[Option<String>]>;

/// The result of verifying a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedToken {
    /// The key that the signature was verified with.
    pub key: KeyId,
    /// The algorithm of the signature.
    pub algorithm: Algorithm,
    /// The claims from the last decision about the token; `None` before the first one.
    pub claims: Option<ClaimValues>,
}

/// The tokens that a node has verified.
#[derive(Debug, Default)]
pub struct NodeTokens {
    functions: ByFunction<FunctionTokens>,
    /// Tokens that were verified with the keys of any function.
    pub signatures: Signatures,
    /// Functions whose key sets may have changed, and key sets that could not be fetched.
    pub key_sets: Arc<KeySetReports>,
}

impl NodeTokens {
    /// The verified tokens of one function.
    pub fn function(&self, function: &FunctionId) -> Arc<FunctionTokens> {
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

/// One function's verified tokens: at most 4096, about half a megabyte.
#[derive(Debug, Default)]
pub struct FunctionTokens(Recent<VerifiedToken>);

impl FunctionTokens {
    /// The cached entry of this token.
    pub fn look_up(&self, digest: &Digest) -> Option<VerifiedToken> {
        self.0.look_up(digest)
    }

    /// Remembers a verified token.
    pub fn remember(&self, digest: Digest, known: VerifiedToken) {
        self.0.insert(digest, known);
    }

    /// Adds the claims of a known token. Returns whether they are new.
    pub fn add_claims(&self, digest: &Digest, claims: &[Option<String>]) -> bool {
        self.0.change(digest, |known| {
            let new = known.claims.as_deref() != Some(claims);
            if new {
                known.claims = Some(claims.into());
            }
            new
        })
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

/// The key that signed a token, independent of the function that received the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedSignature {
    /// The key that the signature was verified with.
    pub key: KeyId,
    /// The algorithm of the signature.
    pub algorithm: Algorithm,
    /// Claims and their values from a decision about the token. They come from a program, so they
    /// are no more than a hint.
    pub claims: Option<(Arc<[ClaimPath]>, ClaimValues)>,
}

/// The node's verified tokens. A token that is new to one function costs no public-key operation if
/// another function has verified it. Bounded like a function's own tokens, which do not depend on
/// this: a client that floods it only makes other functions verify new tokens once.
#[derive(Debug, Default)]
pub struct Signatures(Recent<VerifiedSignature>);

impl Signatures {
    /// The key that signed this token.
    pub fn look_up(&self, digest: &Digest) -> Option<VerifiedSignature> {
        self.0.look_up(digest)
    }

    /// Remembers that `key` signed this token.
    pub fn remember(&self, digest: Digest, key: KeyId, algorithm: Algorithm) {
        self.0.insert(digest, VerifiedSignature { key, algorithm, claims: None });
    }

    /// Adds the values of these claims of a known token.
    pub fn add_claims(&self, digest: &Digest, paths: &[ClaimPath], values: &[Option<String>]) {
        self.0.change(digest, |known| {
            known.claims = Some((paths.into(), values.into()));
            true
        });
    }
}

/// Number of locks. A token's digest selects one.
const SHARDS: usize = 8;
/// Maximum number of entries of one generation of one shard; in all at most 2 * 8 * 256 = 4096.
const GENERATION: usize = 256;

/// A bounded map. The less recently used half is dropped first.
#[derive(Debug)]
pub(crate) struct Recent<V>([Mutex<Generations<V>>; SHARDS]);

/// Entries move to `young` when they are used. When `young` is full, it becomes `old`, and the
/// previous `old` is dropped.
#[derive(Debug)]
struct Generations<V> {
    young: HashMap<Digest, V>,
    old: HashMap<Digest, V>,
}

impl<V: Clone> Recent<V> {
    pub(crate) fn look_up(&self, digest: &Digest) -> Option<V> {
        self.with_shard(digest, |shard| {
            if let Some(known) = shard.young.get(digest) {
                return Some(known.clone());
            }
            let known = shard.old.remove(digest)?;
            shard.insert(*digest, known.clone());
            Some(known)
        })
    }

    pub(crate) fn insert(&self, digest: Digest, value: V) {
        self.with_shard(&digest, |shard| shard.insert(digest, value));
    }

    /// Returns the result of `change`; `false` if the token is not known, or was not looked up
    /// recently.
    fn change(&self, digest: &Digest, change: impl FnOnce(&mut V) -> bool) -> bool {
        self.with_shard(digest, |shard| shard.young.get_mut(digest).is_some_and(change))
    }

    fn len(&self) -> usize {
        let shards = self.0.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.map(|shard| shard.young.len() + shard.old.len()).sum()
    }

    fn with_shard<R>(&self, digest: &Digest, act: impl FnOnce(&mut Generations<V>) -> R) -> R {
        let shard = &self.0[usize::from(digest[0]) % SHARDS];
        act(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        let empty = || Mutex::new(Generations { young: HashMap::new(), old: HashMap::new() });
        Self(std::array::from_fn(|_| empty()))
    }
}

impl<V> Generations<V> {
    fn insert(&mut self, digest: Digest, value: V) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALGORITHM: Algorithm = Algorithm::ES256;

    fn digest(number: u32) -> Digest {
        let mut digest = [0; 32];
        digest[1..5].copy_from_slice(&number.to_be_bytes());
        digest
    }

    fn made_by(key: u8) -> VerifiedToken {
        VerifiedToken { key: KeyId([key; 32]), algorithm: ALGORITHM, claims: None }
    }

    #[test]
    fn remembers_the_key_and_the_facts_of_the_last_decision() {
        let tokens = FunctionTokens::default();
        assert_eq!(tokens.look_up(&digest(1)), None);
        assert!(!tokens.add_claims(&digest(1), &[Some("ann".into())]));
        assert_eq!(tokens.look_up(&digest(1)), None, "facts alone make no entry");
        tokens.remember(digest(1), made_by(7));
        assert_eq!(tokens.look_up(&digest(1)), Some(made_by(7)));
        assert!(tokens.add_claims(&digest(1), &[Some("ann".into())]));
        assert!(!tokens.add_claims(&digest(1), &[Some("ann".into())]), "not new any more");
        assert_eq!(tokens.look_up(&digest(1)).unwrap().claims.as_deref(), Some(&[Some("ann".to_owned())][..]));
        tokens.remember(digest(1), made_by(8));
        assert_eq!(
            tokens.look_up(&digest(1)).unwrap().key,
            KeyId([8; 32]),
            "another key made it, says the latest check"
        );
    }

    #[test]
    fn is_bounded_and_keeps_what_is_used() {
        let tokens = FunctionTokens::default();
        tokens.remember(digest(0), made_by(0));
        for number in 1..=10 * u32::try_from(GENERATION).unwrap() {
            tokens.remember(digest(number), made_by(1));
            assert!(tokens.look_up(&digest(0)).is_some(), "in use all the time, after {number} others");
        }
        assert!(tokens.len() <= 2 * GENERATION);
        assert_eq!(tokens.look_up(&digest(1)), None, "never used again");
    }
}
