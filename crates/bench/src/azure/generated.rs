//! A workload for where no trace is at hand, from published statistics of the Azure Functions trace of 2019 (Shahrad et al., "Serverless
//! in the Wild", USENIX ATC 2020) and a seed:
//!
//! - *How long a function runs on average*: log-normal, in seconds with log-mean -0.38 and sigma 2.36 (their fit).
//! - *How often it is invoked*: log-normal, through their two points: 45 % of applications at most once an hour, 81 % at most once a minute;
//!   then all rates are multiplied by one number, so that as many invocations come as in S0's sample: 5.4 a minute for each
//!   function (200 functions, 32,500 invocations in 30 minutes).
//! - *In a minute*: Poisson counts of that rate. Real functions are burstier.
//! - *How one function's times vary*: log-normal with sigma 0.5 around its average. This is ours: their paper gives no such figure.

use super::workload::{Percentiles, Profile, Workload};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use rand_distr::{LogNormal, Poisson};

/// Log-mean and sigma of average execution times in seconds.
const AVERAGE_S: (f64, f64) = (-0.38, 2.36);
/// Log-mean and sigma of invocations a minute: `ln(1/60) = m + s z(0.45)`, `ln(1) = m + s z(0.81)`.
const PER_MINUTE: (f64, f64) = (-3.58, 4.08);
/// Invocations a minute for each function, on average.
const MEAN_PER_MINUTE: f64 = 32_500.0 / 30.0 / 200.0;
/// Sigma of one function's times.
const SPREAD: f64 = 0.5;
/// Normal quantiles at 0 (as good as), 1, 25, 50, 75, 99 and 100 % (as good as).
const QUANTILES: [f64; 7] = [-3.09, -2.326, -0.674, 0.0, 0.674, 2.326, 3.09];

/// So many functions for so many minutes.
pub(super) fn workload(functions: usize, minutes: usize, seed: u64) -> anyhow::Result<Workload> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let rates = LogNormal::new(PER_MINUTE.0, PER_MINUTE.1)?;
    let averages = LogNormal::new(AVERAGE_S.0, AVERAGE_S.1)?;
    let drawn: Vec<(f64, f64)> = (0..functions).map(|_| (random.sample(rates), random.sample(averages))).collect();
    let stretch = MEAN_PER_MINUTE * functions as f64 / drawn.iter().map(|(rate, _)| rate).sum::<f64>();
    let functions = drawn.into_iter().map(|(rate, average)| profile(rate * stretch, average, minutes, &mut random));
    let functions: Vec<Profile> = functions.collect::<anyhow::Result<_>>()?;
    let source = format!("generated: {} functions, {minutes} minutes, seed {seed}", functions.len());
    Ok(Workload { functions, source })
}

fn profile(per_minute: f64, average_s: f64, minutes: usize, random: &mut ChaCha8Rng) -> anyhow::Result<Profile> {
    // A rate of nothing is none of Poisson's.
    let counts = Poisson::new(per_minute.max(1e-9))?;
    let median_ms = average_s * 1000.0 / (SPREAD * SPREAD / 2.0).exp();
    Ok(Profile {
        per_minute: (0..minutes).map(|_| random.sample(counts) as u32).collect(),
        times: Percentiles(QUANTILES.map(|quantile| median_ms * (SPREAD * quantile).exp())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_published_shape() {
        let workload = workload(4000, 30, 42).unwrap();
        let mut medians: Vec<f64> = workload.functions.iter().map(|function| function.times.0[3] / 1000.0).collect();
        medians.sort_by(f64::total_cmp);
        let at = |share: f64| (medians[(4000.0 * share) as usize] * (SPREAD * SPREAD / 2.0).exp()).ln();
        assert!((at(0.5) - AVERAGE_S.0).abs() < 0.15, "{}", at(0.5));
        assert!((at(0.841) - at(0.5) - AVERAGE_S.1).abs() < 0.2);
        let per_function = workload.count() as f64 / 30.0 / 4000.0;
        assert!((per_function - MEAN_PER_MINUTE).abs() < 0.5, "{per_function}");
        // Heavy-tailed: a tenth of the functions has nearly all of the load.
        let mut totals: Vec<u32> = workload.functions.iter().map(|function| function.per_minute.iter().sum()).collect();
        totals.sort_unstable_by(|a, b| b.cmp(a));
        let top: u64 = totals[..400].iter().map(|count| u64::from(*count)).sum();
        assert!(top as f64 / workload.count() as f64 > 0.9);
        assert!(workload.functions.iter().all(|function| function.times.0.is_sorted()));
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(workload(10, 3, 1).unwrap(), workload(10, 3, 1).unwrap());
        assert_ne!(workload(10, 3, 1).unwrap(), workload(10, 3, 2).unwrap());
    }
}
