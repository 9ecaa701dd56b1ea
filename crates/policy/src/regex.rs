//! Regular expressions, as automata that the `config` crate has built. They are only followed here:
//! one step for each byte, for any text.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use regex_automata::Anchored;
use regex_automata::dfa::Automaton;
use regex_automata::dfa::dense::DFA;
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Error as _, Serialize, SerializeTuple, Serializer};

/// A regular expression that a whole text has to match.
#[derive(Clone)]
pub struct Regex {
    pattern: String,
    automaton: DFA<Vec<u32>>,
    start: StateID,
}

/// The bytes are no valid automaton.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadAutomaton(String);

impl fmt::Display for BadAutomaton {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the regular expression's automaton is not valid: {}", self.0)
    }
}

impl core::error::Error for BadAutomaton {}

impl Regex {
    /// `automaton`: a dense DFA of `regex-automata`, anchored at its start, for all matches, in little-endian bytes.
    ///
    /// # Errors
    /// The bytes are something else.
    pub fn new(pattern: String, automaton: &[u8]) -> Result<Self, BadAutomaton> {
        let bad = |error: &dyn fmt::Display| BadAutomaton(alloc::format!("{error}"));
        // Its tables are read in place, as words.
        let mut copy = vec![0; automaton.len() + align_of::<u32>()];
        let begin = copy.as_ptr().align_offset(align_of::<u32>()).min(align_of::<u32>());
        copy[begin..begin + automaton.len()].copy_from_slice(automaton);
        let (borrowed, _) = DFA::from_bytes(&copy[begin..begin + automaton.len()]).map_err(|error| bad(&error))?;
        let start = borrowed.start_state(&start::Config::new().anchored(Anchored::Yes)).map_err(|error| bad(&error))?;
        Ok(Self { pattern, automaton: borrowed.to_owned(), start })
    }

    /// As it is written.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Bytes of memory that the automaton takes.
    pub fn size(&self) -> usize {
        self.automaton.memory_usage()
    }

    /// Whether the concatenation of the parts matches as a whole.
    pub fn matches(&self, parts: &[&[u8]]) -> bool {
        let mut state = self.start;
        for byte in parts.iter().copied().flatten() {
            state = self.automaton.next_state(state, *byte);
            if self.automaton.is_special_state(state) && self.automaton.is_dead_state(state) {
                return false;
            }
        }
        self.automaton.is_match_state(self.automaton.next_eoi_state(state))
    }
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Regex").field(&self.pattern).finish()
    }
}

/// Equal patterns have equal automata.
impl PartialEq for Regex {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern
    }
}

impl Eq for Regex {}

/// The pattern, and the automaton's bytes.
impl Serialize for Regex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = vec![0; self.automaton.write_to_len()];
        self.automaton.write_to_little_endian(&mut bytes).map_err(S::Error::custom)?;
        let mut tuple = serializer.serialize_tuple(2)?;
        tuple.serialize_element(&self.pattern)?;
        tuple.serialize_element(&bytes)?;
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for Regex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = Regex;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pattern and its automaton")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Regex, A::Error> {
                let missing = |index| de::Error::invalid_length(index, &"two elements");
                let pattern: String = parts.next_element()?.ok_or_else(|| missing(0))?;
                let automaton: Vec<u8> = parts.next_element()?.ok_or_else(|| missing(1))?;
                Regex::new(pattern, &automaton).map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_tuple(2, Parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn bytes_that_are_no_automaton_are_refused() {
        for bytes in [&[][..], b"x", &[0; 100], &[0xff; 4096]] {
            assert!(Regex::new("a".to_string(), bytes).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut blob = b"rust-regex-automata-dfa-dense\0\0\0".to_vec();
            blob.extend_from_slice(&bytes);
            prop_assert!(Regex::new("a".to_string(), &blob).is_err());
            prop_assert!(postcard::from_bytes::<Regex>(&bytes).is_err());
        }
    }
}
