//! The table over pods of a Kubernetes cluster. The policies are objects of its API server. A pod with
//! the caller's identity sends the request to a pod of the judged function, which echoes it. The test
//! compares response, echo and access log with the table.
//!
//! `LENO_CASES_CLUSTER` is the program of the cluster, and `LENO_CASES_DIRECTORY` its directory. The
//! mesh runs on the cluster, and the image `local/echo:1` is on its first node.

mod cluster;
mod log_line;
mod observation;
mod sendable;

use super::keys::Keys;
use super::table::{self, Case, Group};
use super::tables;
use cluster::{Cluster, Exchange, Unit};
use observation::Names;
use sendable::Judge;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The trust domain of the cluster, in place of the tables'.
const TRUST_DOMAIN: (&str, &str) = ("leno.local", "mesh.example");

/// The cases that pods can send, by their places in the tables, and the others by the reason.
struct Selection {
    sent: Vec<(usize, Vec<usize>)>,
    left_out: BTreeMap<&'static str, Vec<String>>,
}

impl Selection {
    fn of(groups: &[Group], keys: &Keys) -> Self {
        let (mut sent, mut left_out) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for (at, group) in groups.iter().enumerate() {
            let mut judge = Judge::of(group, keys);
            let mut cases = Vec::new();
            for (place, case) in group.cases.iter().enumerate() {
                match judge.obstacle(case) {
                    Some(reason) => left_out.entry(reason).or_default().push(shown(group, case)),
                    None => cases.push(place),
                }
            }
            sent.push((at, cases));
        }
        Self { sent, left_out }
    }

    fn count(&self) -> usize {
        self.sent.iter().map(|(_, cases)| cases.len()).sum()
    }

    /// Groups with their cases that can share counters of rate limits.
    fn units<'a>(&self, groups: &'a [Group]) -> Vec<(&'a Group, Vec<&'a Case>)> {
        let mut units = Vec::new();
        for (at, cases) in &self.sent {
            let group = &groups[*at];
            let cases = cases.iter().map(|place| &group.cases[*place]);
            if group.policies.iter().any(|policy| policy["spec"].get("rateLimits").is_some()) {
                units.extend(cases.map(|case| (group, vec![case])));
            } else {
                units.push((group, cases.collect()));
            }
        }
        units.retain(|(_, cases)| !cases.is_empty());
        units
    }
}

fn shown(group: &Group, case: &Case) -> String {
    format!("{}: {}: {}", group.file, group.about, case.name)
}

/// Which cases can be sent does not depend on a cluster.
#[test]
fn pods_can_send_three_quarters_of_the_table() {
    let groups = table::read(&tables());
    let selection = Selection::of(&groups, &Keys::generate());
    let (count, all) = (selection.count(), groups.iter().map(|group| group.cases.len()).sum::<usize>());
    let mut text = format!("{count} of {all} cases can be sent by pods; left out:\n");
    for (reason, cases) in &selection.left_out {
        writeln!(text, "{:4} {reason}", cases.len()).unwrap();
        cases.iter().for_each(|case| writeln!(text, "       {case}").unwrap());
    }
    println!("{text}");
    assert!(count * 4 >= all * 3, "{text}");
}

#[test]
fn every_case_is_decided_alike_over_pods() {
    let Some(cluster) = Cluster::from_env() else {
        eprintln!("SKIPPED: LENO_CASES_CLUSTER is not set; `make test-kubernetes` runs this test");
        return;
    };
    let keys = Keys::generate();
    let selection = Selection::of(&table::read(&tables()), &keys);
    let groups = table::read_as(&tables(), |text| text.replace(TRUST_DOMAIN.1, TRUST_DOMAIN.0));
    let mut pods = cluster.start_pods();
    let mut failures = Vec::new();
    let units = selection.units(&groups);
    for (batch, units) in units.chunks(cluster::CALLEES).enumerate() {
        let units: Vec<Unit<'_>> = units
            .iter()
            .enumerate()
            .map(|(slot, (group, cases))| Unit {
                group,
                cases,
                names: Names { policy: format!("{batch}-{slot}"), function: format!("cart-{slot}") },
            })
            .collect();
        failures.extend(cluster.apply(&units, &keys));
        let mut exchanges: Vec<Exchange<'_>> = units.iter().flat_map(|unit| pods.send(unit, &keys)).collect();
        // Lines come in order: when those of the others are there, theirs would be.
        exchanges.sort_by_key(|exchange| !exchange.is_logged());
        for exchange in exchanges {
            let differences = observation::differences(&exchange, &pods.seen(&exchange));
            let place = shown(exchange.group, &exchange.case);
            failures.extend(differences.iter().map(|difference| format!("{place}: {difference}")));
        }
    }
    for (reason, cases) in &selection.left_out {
        println!("{:4} left out: {reason}", cases.len());
    }
    println!("{} cases were sent over pods, {} differences", selection.count(), failures.len());
    assert!(failures.is_empty(), "{} differences:\n{}", failures.len(), failures.join("\n"));
}
