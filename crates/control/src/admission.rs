//! Node admission: each node is admitted under a name and gets a join token of its own.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use leno_config::FunctionId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use zeroize::Zeroizing;

/// What an admitted node is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The functions that the node hosts.
    pub placement: Placement,
    /// Whether the node runs a gateway. A gateway has an identity of its own.
    pub gateway: bool,
}

/// The functions that a node hosts. It is a rule rather than a list, so the node need not be told of every function that comes and goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// All functions, present and future.
    Everything,
    /// The functions of this set, as far as they exist.
    Only(BTreeSet<FunctionId>),
}

impl Placement {
    /// Whether the placement covers `function`.
    pub fn hosts(&self, function: &FunctionId) -> bool {
        match self {
            Self::Everything => true,
            Self::Only(functions) => functions.contains(function),
        }
    }
}

/// Proves that a node is the one that was admitted under its name. The token is handed over within the process, or by whoever starts the node. It is
/// never printed: `Debug` shows the type's name only.
#[derive(Clone)]
pub struct JoinToken(Zeroizing<String>);

/// Why a node was not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// Not a node name: 1 to 63 characters out of `a-z`, `0-9`, `.` and `-`.
    #[error("`{0}` is not a node name: expected 1 to 63 characters out of a-z, 0-9, `.` and `-`")]
    Name(String),
    /// The operating system could not provide random bytes for a token.
    #[error("no join token could be generated")]
    NoRandomness,
}

/// Admitted nodes by the SHA-256 of their join tokens. The tokens themselves are not kept, so a comparison reveals nothing about a token and nothing
/// here can print one.
#[derive(Default)]
pub(crate) struct Admitted(RwLock<HashMap<[u8; 32], Arc<str>>>);

impl JoinToken {
    fn generate() -> Result<Self, AdmitError> {
        let mut bytes = Zeroizing::new([0; 32]);
        rand::fill(&mut *bytes).map_err(|_| AdmitError::NoRandomness)?;
        let mut text = Zeroizing::new(String::with_capacity(64));
        for byte in bytes.iter() {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
            }
        }
        Ok(Self(text))
    }

    /// Makes a token from the text that [`JoinToken::reveal`] returned.
    pub fn from_text(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The token as text, for a node in another process. Pass it only over a channel that nobody else can read.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The value of the `authorization` header, `Bearer …`, marked as sensitive.
    pub(crate) fn header(&self) -> Option<MetadataValue<Ascii>> {
        let text = Zeroizing::new(format!("Bearer {}", *self.0));
        let mut value = MetadataValue::try_from(text.as_str()).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinToken")
    }
}

impl Admitted {
    /// Generates a token for `node`. An earlier token of the node becomes invalid.
    pub(crate) fn admit(&self, node: &str) -> Result<JoinToken, AdmitError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
        if node.is_empty() || node.len() > 63 || !node.bytes().all(allowed) {
            return Err(AdmitError::Name(node.to_owned()));
        }
        let token = JoinToken::generate()?;
        let mut admitted = self.0.write().unwrap_or_else(PoisonError::into_inner);
        admitted.retain(|_, name| **name != *node);
        admitted.insert(hash(&token.0), node.into());
        Ok(token)
    }

    /// The node whose token the request carries; `None` if it carries no valid token.
    pub(crate) fn node(&self, metadata: &MetadataMap) -> Option<Arc<str>> {
        let token = metadata.get("authorization")?.to_str().ok()?.strip_prefix("Bearer ")?;
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&hash(token)).cloned()
    }
}

fn hash(token: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.iter_mut().zip(digest(&SHA256, token.as_bytes()).as_ref()).for_each(|(to, from)| *to = *from);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(value: MetadataValue<Ascii>) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert("authorization", value);
        metadata
    }

    #[test]
    fn a_token_is_one_nodes_and_ends_with_the_next() {
        let admitted = Admitted::default();
        let (one, two) = (admitted.admit("one").unwrap(), admitted.admit("two").unwrap());
        let node = |token: &JoinToken| admitted.node(&metadata(token.header().unwrap()));
        assert_eq!((node(&one).as_deref(), node(&two).as_deref()), (Some("one"), Some("two")));
        let again = admitted.admit("one").unwrap();
        assert_eq!((node(&one), node(&again).as_deref(), node(&two).as_deref()), (None, Some("one"), Some("two")));
        assert_eq!(admitted.node(&MetadataMap::new()), None);
        for wrong in ["", "Bearer ", "Bearer 00", "Basic one"] {
            assert_eq!(admitted.node(&metadata(wrong.parse().unwrap())), None, "{wrong}");
        }
        let bare = one.0.parse::<MetadataValue<Ascii>>().unwrap();
        assert_eq!(admitted.node(&metadata(bare)), None);
    }

    #[test]
    fn nothing_prints_a_token() {
        let admitted = Admitted::default();
        let token = admitted.admit("one").unwrap();
        assert_eq!(token.0.len(), 64);
        let printed = format!("{token:?} {token:#?} {:?} {:#?}", token.header(), metadata(token.header().unwrap()));
        assert!(!printed.contains(&token.0[..8]), "{printed}");
    }

    #[test]
    fn names_of_nodes() {
        let admitted = Admitted::default();
        for name in ["a", "node-1.example", &"n".repeat(63)] {
            admitted.admit(name).unwrap();
        }
        for name in ["", "A", "a b", "ä", "a/b", &"n".repeat(64)] {
            assert_eq!(admitted.admit(name).unwrap_err(), AdmitError::Name(name.to_owned()));
        }
    }
}
