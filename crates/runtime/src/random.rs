//! Random numbers for one worker thread.

use std::cell::Cell;

/// A fast generator (xoshiro256++), seeded by the operating system. Good for identifiers, jitter
/// and sampling; not for secrets.
#[derive(Debug)]
pub struct Random([Cell<u64>; 4]);

impl Random {
    /// A generator with a fresh seed; `None`: the operating system has no randomness to give.
    pub fn from_system() -> Option<Self> {
        let mut seed = [0; 32];
        aws_lc_rs::rand::fill(&mut seed).ok()?;
        let mut words = seed.chunks_exact(8).map(|word| word.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
        Some(Self(std::array::from_fn(|_| Cell::new(words.next().unwrap_or(1)))))
    }

    /// The next 64 bits.
    #[inline]
    pub fn next(&self) -> u64 {
        let [a, b, c, d] = &self.0;
        let result = a.get().wrapping_add(d.get()).rotate_left(23).wrapping_add(a.get());
        let shifted = b.get() << 17;
        c.set(c.get() ^ a.get());
        d.set(d.get() ^ b.get());
        b.set(b.get() ^ c.get());
        a.set(a.get() ^ d.get());
        c.set(c.get() ^ shifted);
        d.set(d.get().rotate_left(45));
        result
    }

    /// Evenly distributed over `0..=max`.
    #[inline]
    pub fn up_to(&self, max: u64) -> u64 {
        ((u128::from(self.next()) * (u128::from(max) + 1)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_reference_generator() {
        let random = Random([1, 2, 3, 4].map(Cell::new));
        // First outputs of the authors' xoshiro256plusplus.c from this state.
        assert_eq!([random.next(), random.next(), random.next()], [41943041, 58720359, 3588806011781223]);
    }

    #[test]
    fn bounded_numbers_reach_both_ends() {
        let random = Random::from_system().unwrap();
        let mut seen = [false; 4];
        for _ in 0..1000 {
            seen[random.up_to(3) as usize] = true;
        }
        assert_eq!(seen, [true; 4]);
        assert_eq!(random.up_to(0), 0);
    }
}
