//! Tokens whose signatures were verified: the next request with the same token needs no public-key operation.
//!
//! An entry says only "this key made this token". Claims, expiry, and whether the key is still trusted are decided by the program,
//! each time anew.

use leno_policy::spec::{Algorithm, KeyId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// SHA-256 of a whole token, signature included.
pub type Digest = [u8; 32];

/// Values of the claims that counter keys are made of ([`leno_policy::needs::Needs::claims`]).
pub type Facts = Arc<[Option<String>]>;

/// What is known of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The key that its signature was verified with.
    pub key: KeyId,
    /// How.
    pub algorithm: Algorithm,
    /// From the last decision about it; `None` before the first.
    pub facts: Option<Facts>,
}

/// Locks that are taken by the token's digest.
const SHARDS: usize = 8;
/// Entries of one generation of one shard; in all at most 2 * 8 * 256 = 4096 tokens of a function, about half a megabyte.
const GENERATION: usize = 256;

/// One function's verified tokens, bounded. The least recently used half goes first.
#[derive(Debug, Default)]
pub struct Tokens([Mutex<Generations>; SHARDS]);

/// Entries move to `young` when they are used; when `young` is full, it becomes `old`, and what was still in `old` is forgotten.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Digest, Known>,
    old: HashMap<Digest, Known>,
}

impl Tokens {
    /// What is known of this token.
    pub fn look_up(&self, digest: &Digest) -> Option<Known> {
        self.with_shard(digest, |shard| {
            if let Some(known) = shard.young.get(digest) {
                return Some(known.clone());
            }
            let known = shard.old.remove(digest)?;
            shard.insert(*digest, known.clone());
            Some(known)
        })
    }

    /// Remembers that `key` made this token.
    pub fn remember(&self, digest: Digest, key: KeyId, algorithm: Algorithm) {
        self.with_shard(&digest, |shard| shard.insert(digest, Known { key, algorithm, facts: None }));
    }

    /// Adds the claims of a token that is known.
    pub fn add_facts(&self, digest: &Digest, facts: &[Option<String>]) {
        self.with_shard(digest, |shard| {
            if let Some(known) = shard.young.get_mut(digest)
                && known.facts.as_deref() != Some(facts)
            {
                known.facts = Some(facts.into());
            }
        });
    }

    /// How many tokens are known.
    pub fn len(&self) -> usize {
        let shards = self.0.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.map(|shard| shard.young.len() + shard.old.len()).sum()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn with_shard<R>(&self, digest: &Digest, act: impl FnOnce(&mut Generations) -> R) -> R {
        let shard = &self.0[usize::from(digest[0]) % SHARDS];
        act(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Generations {
    fn insert(&mut self, digest: Digest, known: Known) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, known);
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

    #[test]
    fn remembers_the_key_and_the_facts_of_the_last_decision() {
        let tokens = Tokens::default();
        assert_eq!(tokens.look_up(&digest(1)), None);
        tokens.add_facts(&digest(1), &[Some("ann".into())]);
        assert_eq!(tokens.look_up(&digest(1)), None, "facts alone make no entry");
        tokens.remember(digest(1), KeyId(7), ALGORITHM);
        assert_eq!(tokens.look_up(&digest(1)), Some(Known { key: KeyId(7), algorithm: ALGORITHM, facts: None }));
        tokens.add_facts(&digest(1), &[Some("ann".into())]);
        assert_eq!(tokens.look_up(&digest(1)).unwrap().facts.as_deref(), Some(&[Some("ann".to_owned())][..]));
        tokens.remember(digest(1), KeyId(8), ALGORITHM);
        assert_eq!(tokens.look_up(&digest(1)).unwrap().key, KeyId(8), "another key made it, says the latest check");
    }

    #[test]
    fn is_bounded_and_keeps_what_is_used() {
        let tokens = Tokens::default();
        tokens.remember(digest(0), KeyId(0), ALGORITHM);
        for number in 1..=10 * u32::try_from(GENERATION).unwrap() {
            tokens.remember(digest(number), KeyId(1), ALGORITHM);
            assert!(tokens.look_up(&digest(0)).is_some(), "in use all the time, after {number} others");
        }
        assert!(tokens.len() <= 2 * GENERATION);
        assert_eq!(tokens.look_up(&digest(1)), None, "never used again");
    }
}
