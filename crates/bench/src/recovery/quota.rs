//! One limit for four nodes, asked for unevenly: what is admitted of it.

use super::load::Load;
use super::scene::{Scene, document, ready, wait};
use crate::report::Report;
use anyhow::ensure;
use std::net::SocketAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// Requests a second that are admitted in the whole mesh.
const LIMIT: u64 = 100;
/// Requests a second that are sent to each node's gateway: more than twice the limit, most of them to one.
const SENT: [u64; 4] = [150, 50, 20, 10];
/// While shares move to where they are asked for.
const SETTLING: Duration = Duration::from_secs(10);

pub(crate) fn measure(leno: &Path, quick: bool, report: &mut Report) -> anyhow::Result<()> {
    let time = Duration::from_secs(if quick { 10 } else { 60 });
    // Each node has room for one instance.
    let mut scene = Scene::begin(leno, 4, &["--offer-instances", "1"], &["--only-gateway"])?;
    let limit = format!("  rateLimits: [{{name: all, requests: {LIMIT}, per: 1s, burst: {LIMIT}}}]\n");
    scene.apply(&document("expose: [{hosts: [\"*\"], path: /}], scale: {min: 4, max: 4}", &limit)?)?;
    let leader = scene.leader()?;
    wait("an instance on each node", || {
        let status = scene.status(leader).map(|(_, status)| ready(&status)).unwrap_or_default();
        Ok((status.len() == 4).then_some(()))
    })?;
    let gateways: Vec<SocketAddr> = (0..4).map(|number| scene.gateway_of(number)).collect();
    let loads: Vec<Load> = gateways
        .iter()
        .zip(SENT)
        .map(|(gateway, rate)| Load::start_at(*gateway, Duration::from_micros(1_000_000 / rate)))
        .collect();
    sleep(SETTLING + time);
    let mut admitted: Vec<Duration> = loads.into_iter().flat_map(Load::admitted).collect();
    admitted.sort_unstable();
    let steady = admitted.iter().filter(|over| (SETTLING..SETTLING + time).contains(*over)).count();
    let used = steady as f64 / (LIMIT as f64 * time.as_secs_f64());
    let worst = worst_over_admission(&admitted);
    println!(
        "quota: {used:.3} of the limit admitted in steady state; {worst:.0} requests above rate and burst at the worst moment"
    );
    report.add("quota_used", used);
    report.add("quota_over_admitted", worst.max(0.0));
    ensure!(worst <= 0.0, "more was admitted than the limit allows");
    Ok(())
}

/// By how much the requests that were admitted up to any moment exceed the burst and what the rate admits until then. An answer arrives after its
/// request was admitted, so this can only be too little by what is on its way.
fn worst_over_admission(admitted: &[Duration]) -> f64 {
    let allowed = |at: &Duration| LIMIT as f64 * (1.0 + at.as_secs_f64());
    let excess = admitted.iter().enumerate().map(|(number, at)| number as f64 + 1.0 - allowed(at));
    excess.fold(f64::NEG_INFINITY, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_moment_is_found() {
        let at = |millis: u64| Duration::from_millis(millis);
        let burst: Vec<_> = (0..LIMIT).map(|_| at(0)).collect();
        assert_eq!(worst_over_admission(&burst), 0.0);
        assert_eq!(worst_over_admission(&[burst.clone(), vec![at(0)]].concat()), 1.0);
        assert!(worst_over_admission(&[burst, vec![at(10)]].concat()) <= 0.0);
    }
}
