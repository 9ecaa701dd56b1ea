//! The invocations, their times and their work: InVitro's rules, as a pure function of counts,
//! percentiles and a seed.
//!
//! One function's invocations depend only on its counts, its number and the seed, so a smaller
//! workload of the same functions is a part of the larger one.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use rand_distr::Exp1;
use std::time::Duration;

const MINUTE: f64 = 60.0;
/// InVitro's limits of an execution time.
const SHORTEST_MS: f64 = 1.0;
const LONGEST_MS: f64 = 60_000.0;

/// Functions, and how often they are invoked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    pub functions: Vec<Profile>,
    /// A description of the workload.
    pub source: String,
}

/// One function.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Profile {
    /// Invocations in each minute.
    pub per_minute: Vec<u32>,
    pub times: Percentiles,
}

/// Execution times in milliseconds at 0, 1, 25, 50, 75, 99 and 100 %; ascending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Percentiles(pub [f64; 7]);

/// Where the bands between [`Percentiles`] begin.
const BANDS: [f64; 6] = [0.0, 0.01, 0.25, 0.50, 0.75, 0.99];

/// How the invocations are scaled to fit a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Replay {
    /// Real time is so many times shorter than the workload's.
    pub compress: f64,
    /// Execution times are multiplied by this; none gets shorter than a millisecond.
    pub duration_scale: f64,
    /// A minute's invocations are rotated by a random time, so that not all functions fire at its
    /// start.
    pub shift: bool,
    pub seed: u64,
}

/// One invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Invocation {
    /// Index in [`Workload::functions`].
    pub function: usize,
    /// When it is due, since the beginning.
    pub at: Duration,
    /// Requested execution time.
    pub work: Duration,
}

impl Workload {
    /// All invocations, in the order in which they are due.
    pub(super) fn invocations(&self, replay: &Replay) -> Vec<Invocation> {
        let mut all: Vec<Invocation> = self
            .functions
            .iter()
            .enumerate()
            .flat_map(|(function, profile)| invocations_of(profile, function, replay))
            .collect();
        all.sort_by_key(|invocation| (invocation.at, invocation.function));
        all
    }

    /// Invocations there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.functions.iter().flat_map(|function| &function.per_minute).map(|count| u64::from(*count)).sum()
    }
}

/// Each function is busy with so many invocations at a time, on average.
pub(super) fn concurrency(invocations: &[Invocation], functions: usize, replay: &Replay, minutes: usize) -> Vec<f64> {
    let mut busy = vec![0.0; functions];
    for invocation in invocations {
        busy[invocation.function] += invocation.work.as_secs_f64();
    }
    let seconds = minutes as f64 * MINUTE / replay.compress;
    busy.iter().map(|busy| busy / seconds).collect()
}

fn invocations_of(profile: &Profile, function: usize, replay: &Replay) -> Vec<Invocation> {
    let mut random = ChaCha8Rng::seed_from_u64(replay.seed);
    random.set_stream(function as u64);
    let mut invocations = Vec::new();
    for (minute, &count) in profile.per_minute.iter().enumerate() {
        for at in arrivals(count, replay.shift, &mut random) {
            let work = profile.times.draw(&mut random) * replay.duration_scale;
            invocations.push(Invocation {
                function,
                at: Duration::from_secs_f64((minute as f64 * MINUTE + at) / replay.compress),
                work: Duration::from_secs_f64(work.max(SHORTEST_MS) / 1000.0),
            });
        }
    }
    invocations
}

/// Seconds since the start of the minute, ascending: exponential gaps, stretched to fill the
/// minute. The last of them reaches to its end.
fn arrivals(count: u32, shift: bool, random: &mut ChaCha8Rng) -> Vec<f64> {
    let gaps: Vec<f64> = (0..count).map(|_| random.sample(Exp1)).collect();
    let stretch = MINUTE / gaps.iter().sum::<f64>();
    let mut passed = 0.0;
    let mut times: Vec<f64> = gaps
        .iter()
        .map(|gap| {
            let at = passed;
            passed += gap * stretch;
            at
        })
        .collect();
    if shift && count > 0 {
        let offset: f64 = random.random_range(0.0..MINUTE);
        times.iter_mut().for_each(|at| *at = (*at + offset) % MINUTE);
        times.sort_by(f64::total_cmp);
    }
    times
}

impl Percentiles {
    /// A whole number of milliseconds from the band that a random share falls into, within
    /// InVitro's limits.
    fn draw(&self, random: &mut ChaCha8Rng) -> f64 {
        let share: f64 = random.random();
        let band = BANDS.iter().rposition(|begin| share >= *begin).unwrap_or(0);
        let (least, most) = (self.0[band].round() as u64, self.0[band + 1].round() as u64);
        (random.random_range(least..=most.max(least)) as f64).clamp(SHORTEST_MS, LONGEST_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn percentiles() -> impl Strategy<Value = Percentiles> {
        prop::array::uniform7(0.0..200_000.0_f64).prop_map(|mut times| {
            times.sort_by(f64::total_cmp);
            Percentiles(times)
        })
    }

    fn workload() -> impl Strategy<Value = Workload> {
        let profile = (prop::collection::vec(0u32..40, 3), percentiles())
            .prop_map(|(per_minute, times)| Profile { per_minute, times });
        prop::collection::vec(profile, 1..5).prop_map(|functions| Workload { functions, source: "made up".to_owned() })
    }

    fn replay() -> impl Strategy<Value = Replay> {
        (any::<bool>(), any::<u64>()).prop_map(|(shift, seed)| Replay {
            compress: 1.0,
            duration_scale: 1.0,
            shift,
            seed,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_minute_has_as_many_as_it_is_to_have(workload in workload(), replay in replay()) {
            let all = workload.invocations(&replay);
            prop_assert_eq!(all.len() as u64, workload.count());
            prop_assert!(all.is_sorted_by_key(|invocation| invocation.at));
            for (index, function) in workload.functions.iter().enumerate() {
                let own: Vec<_> = all.iter().filter(|invocation| invocation.function == index).collect();
                for (minute, count) in function.per_minute.iter().enumerate() {
                    let within = |at: f64| (minute as f64 * MINUTE..(minute + 1) as f64 * MINUTE).contains(&at);
                    let found: Vec<_> = own.iter().filter(|invocation| within(invocation.at.as_secs_f64())).collect();
                    prop_assert_eq!(found.len(), *count as usize);
                    if let (false, Some(first)) = (replay.shift, found.first()) {
                        prop_assert_eq!(first.at, Duration::from_secs_f64(minute as f64 * MINUTE));
                    }
                }
                for invocation in own {
                    let ms = invocation.work.as_secs_f64() * 1000.0;
                    prop_assert!((SHORTEST_MS..=LONGEST_MS).contains(&ms));
                    prop_assert!((ms - ms.round()).abs() < 1e-6);
                    let (least, most) = (function.times.0[0].round(), function.times.0[6].round());
                    prop_assert!(ms >= least.min(LONGEST_MS) && ms <= most.max(SHORTEST_MS) + 1e-6);
                }
            }
        }

        #[test]
        fn the_seed_decides_and_scales_only_scale(workload in workload(), replay in replay()) {
            let all = workload.invocations(&replay);
            prop_assert_eq!(&all, &workload.invocations(&replay));
            let scaled = workload.invocations(&Replay { compress: 4.0, duration_scale: 0.5, ..replay });
            for (real, scaled) in all.iter().zip(&scaled) {
                prop_assert!((real.at.as_secs_f64() / 4.0 - scaled.at.as_secs_f64()).abs() < 1e-6);
            }
            let sum = |all: &[Invocation]| all.iter().map(|it| it.work.as_secs_f64()).sum::<f64>();
            prop_assert!(sum(&scaled) <= sum(&all) + 1e-9);
        }

        #[test]
        fn a_function_does_not_depend_on_the_others(workload in workload(), replay in replay()) {
            let first = Workload { functions: workload.functions[..1].to_vec(), source: String::new() };
            let of_first: Vec<_> =
                workload.invocations(&replay).into_iter().filter(|invocation| invocation.function == 0).collect();
            prop_assert_eq!(first.invocations(&replay), of_first);
        }
    }

    #[test]
    fn the_bands_get_their_shares() {
        let times = Percentiles([1.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0]);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let drawn: Vec<f64> = (0..100_000).map(|_| times.draw(&mut random)).collect();
        let share = |least: f64, most: f64| drawn.iter().filter(|ms| (least..most).contains(*ms)).count() as f64 / 1e5;
        assert!((share(100.0, 200.0) - 0.24).abs() < 0.01);
        assert!((share(200.0, 300.0) - 0.25).abs() < 0.01);
        assert!((share(0.0, 100.0) - 0.01).abs() < 0.003);
        assert!((share(500.0, 601.0) - 0.01).abs() < 0.003);
    }

    #[test]
    fn concurrency_is_busy_time_over_time() {
        let invocation = |function, work| Invocation { function, at: Duration::ZERO, work: Duration::from_secs(work) };
        let replay = Replay { compress: 2.0, duration_scale: 1.0, shift: false, seed: 0 };
        let busy = concurrency(&[invocation(0, 15), invocation(0, 30), invocation(1, 3)], 2, &replay, 1);
        assert_eq!(busy, [1.5, 0.1]);
    }
}
