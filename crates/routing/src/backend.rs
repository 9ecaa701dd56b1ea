//! Choices by weight.

use leno_model::{Backend, Mirror};

/// The back end of a request, by the weights; `None`: there is none, or all have weight 0. `random`
/// is uniform.
pub fn pick(backends: &[Backend], random: u64) -> Option<&Backend> {
    let sum: u64 = backends.iter().map(|backend| u64::from(backend.weight)).sum();
    let mut at = share(random, sum);
    backends.iter().find(|backend| {
        let weight = u64::from(backend.weight);
        let found = at < weight;
        at = at.saturating_sub(weight);
        found
    })
}

/// Whether a request gets a copy. `random` is uniform, and not the one of [`pick`].
pub fn is_mirrored(mirror: &Mirror, random: u64) -> bool {
    share(random, u64::from(mirror.denominator)) < u64::from(mirror.numerator)
}

/// A number below `count`.
fn share(random: u64, count: u64) -> u64 {
    u64::try_from((u128::from(random) * u128::from(count)) >> 64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_model::BackendTarget;

    #[test]
    fn shares_are_those_of_the_weights() {
        let backends = |weights: &[u32]| -> Vec<Backend> {
            let target = BackendTarget::Invalid(String::new());
            weights.iter().map(|weight| Backend { target: target.clone(), weight: *weight, filters: vec![] }).collect()
        };
        assert_eq!(pick(&[], 7), None);
        assert_eq!(pick(&backends(&[0, 0]), u64::MAX), None);
        for weights in [&[1][..], &[1, 1], &[0, 3, 0, 1], &[1_000_000, 0, 999_999], &[u32::MAX, u32::MAX]] {
            let backends = backends(weights);
            let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
            let steps = 10_000;
            let mut counts = vec![0_u64; weights.len()];
            for step in 0..steps {
                let random = (u64::MAX / steps) * step;
                let picked = pick(&backends, random).expect("a weight");
                counts[backends.iter().position(|backend| std::ptr::eq(backend, picked)).unwrap()] += 1;
            }
            for (count, weight) in counts.iter().zip(weights) {
                let share = steps as f64 * f64::from(*weight) / sum as f64;
                assert!((*count as f64 - share).abs() <= 2.0, "{weights:?}: {counts:?}");
            }
            let last = backends.iter().rfind(|backend| backend.weight > 0).unwrap();
            assert!(std::ptr::eq(pick(&backends, u64::MAX).unwrap(), last));
        }
    }

    #[test]
    fn mirrors_take_their_share() {
        let mirror =
            |numerator, denominator| Mirror { target: BackendTarget::Invalid(String::new()), numerator, denominator };
        for (numerator, denominator, low, high) in
            [(0, 100, false, false), (100, 100, true, true), (1, 2, true, false), (5, 3, true, true)]
        {
            assert_eq!(is_mirrored(&mirror(numerator, denominator), 0), low);
            assert_eq!(is_mirrored(&mirror(numerator, denominator), u64::MAX), high);
        }
    }
}
