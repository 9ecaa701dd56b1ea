//! Sets of a group's rules.

/// Bits in a word.
const BITS: usize = 64;

/// A set of rules by their places in a group: the words that have bits, in order. A rule that is
/// alone in its set costs one word, however many rules the group has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleSet(Box<[(u32, u64)]>);

impl RuleSet {
    /// The set of these places, which are in order.
    pub(crate) fn of(places: impl IntoIterator<Item = usize>) -> Self {
        let mut words: Vec<(u32, u64)> = Vec::new();
        for place in places {
            let (word, bit) = (u32::try_from(place / BITS).unwrap_or(u32::MAX), 1_u64 << (place % BITS));
            match words.last_mut() {
                Some((last, bits)) if *last == word => *bits |= bit,
                _ => words.push((word, bit)),
            }
        }
        Self(words.into())
    }

    /// All that one of the sets has.
    pub(crate) fn union<'s>(sets: impl IntoIterator<Item = &'s Self>) -> Self {
        let mut words: Vec<_> = sets.into_iter().flat_map(|set| set.0.iter().copied()).collect();
        words.sort_unstable();
        words.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 |= later.1;
            }
            same
        });
        Self(words.into())
    }

    /// Adds the set to another one.
    pub(crate) fn add_to(&self, words: &mut [u64]) {
        for (word, bits) in &self.0 {
            if let Some(word) = words.get_mut(*word as usize) {
                *word |= bits;
            }
        }
    }

    /// Whether another set has one of these.
    pub(crate) fn meets(&self, words: &[u64]) -> bool {
        self.0.iter().any(|(word, bits)| words.get(*word as usize).is_some_and(|word| word & bits != 0))
    }

    /// Clears the words of another set that this set needs.
    pub(crate) fn clear(&self, words: &mut [u64]) {
        for (word, _) in &self.0 {
            if let Some(word) = words.get_mut(*word as usize) {
                *word = 0;
            }
        }
    }

    /// Removes the rules of this set that are not in `kept` from `words`.
    pub(crate) fn retain(&self, kept: &[u64], words: &mut [u64]) {
        for (index, bits) in &self.0 {
            let index = *index as usize;
            if let (Some(word), Some(kept)) = (words.get_mut(index), kept.get(index)) {
                *word &= kept | !bits;
            }
        }
    }

    /// The places of its rules, in order.
    pub(crate) fn places(&self) -> impl Iterator<Item = usize> {
        self.0.iter().flat_map(|(word, bits)| places_of(*word as usize, *bits))
    }

    /// Memory, in bytes.
    pub(crate) fn size(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// The words of a set of `rules` rules.
pub(crate) fn words(rules: usize) -> usize {
    rules.div_ceil(BITS)
}

/// Adds the first `rules` rules to a set.
pub(crate) fn add_all(rules: usize, words: &mut [u64]) {
    words.fill(u64::MAX);
    if let (Some(last), rest @ 1..) = (words.last_mut(), rules % BITS) {
        *last = (1 << rest) - 1;
    }
}

/// The places in a set, in order.
pub(crate) fn places(words: &[u64]) -> impl Iterator<Item = usize> {
    words.iter().enumerate().flat_map(|(index, word)| places_of(index, *word))
}

fn places_of(index: usize, word: u64) -> impl Iterator<Item = usize> {
    let rest = |bits: &u64| Some(bits & (bits - 1)).filter(|bits| *bits != 0);
    std::iter::successors(Some(word).filter(|bits| *bits != 0), rest)
        .map(move |bits| index * BITS + bits.trailing_zeros() as usize)
}
