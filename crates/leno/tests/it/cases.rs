//! The decision table of `tests/cases`: every case on every engine, with the same result to the last byte, and
//! behind a route that rewrites host and path into those of the case.

mod coverage;
mod engines;
mod expectation;
mod keys;
mod pods;
mod rewritten;
mod table;
pub(crate) mod yaml;

use engines::{Head, Programs};
use keys::Keys;
use leno_sandbox::Pool;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The least number of cases that can cover nine policies.
const FEWEST: usize = 250;

fn tables() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases")
}

#[test]
fn every_case_is_decided_as_expected_and_alike_on_every_engine() {
    let groups = table::read(&tables());
    let (keys, engines) = (Keys::generate(), engines::all());
    let mut pools: Vec<Pool> = engines.iter().map(|_| Pool::new()).collect();
    let (mut count, mut behind_routes, mut failures, mut names) = (0, 0, Vec::new(), BTreeSet::new());
    for group in &groups {
        let place = format!("{}: {}", group.file, group.about);
        let programs = match Programs::load(group, &keys, &engines) {
            Ok(programs) => programs,
            Err(problems) => {
                failures.push(format!("{place}: {problems}"));
                continue;
            }
        };
        for case in &group.cases {
            count += 1;
            assert!(names.insert((place.clone(), case.name.clone())), "{place}: `{}` appears twice", case.name);
            let head = Head::of(case, &keys);
            let results = programs.judge(&mut pools, case, &keys);
            let (_, first) = &results[0];
            for (kind, result) in &results {
                if result != first {
                    failures.push(format!("{place}: {}: {kind} says {result:?}, inline {first:?}", case.name));
                }
            }
            let differences = expectation::differences(case, &head, first);
            if let Some(rewritten) = rewritten::behind_a_route(group, case) {
                behind_routes += 1;
                let judged = programs.judge(&mut pools[..1], &rewritten, &keys).remove(0).1;
                if !judged.is_alike(first) {
                    failures.push(format!("{place}: {}: behind a route {judged:?} instead of {first:?}", case.name));
                }
            }
            failures.extend(differences.iter().map(|difference| format!("{place}: {}: {difference}", case.name)));
        }
    }
    println!("{count} cases on {} engines, {behind_routes} also behind a route", engines.len());
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(count >= FEWEST, "{count} cases");
    assert!(behind_routes * 10 >= count * 8, "{behind_routes} of {count} cases behind a route");
}

#[test]
fn the_tables_use_every_field_of_a_policy() {
    let groups = table::read(&tables());
    let unused = coverage::unused(&groups, &Keys::generate());
    assert!(unused.is_empty(), "no case for {unused:?}");
}
