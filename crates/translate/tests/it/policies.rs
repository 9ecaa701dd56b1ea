//! Translations of policies of other projects: the comments of every file of `tests/translated` list
//! the expected reports, and the requests that are allowed.
//!
//! `#> field: standing: fragment` at the end of a line: the report has this field at this line.
//! There must be no other report.
//! `#? allow CALLEE CALLER METHOD PATH PORT [HEADER: VALUE]`: the callee's node allows the request
//! (`deny`: refuses it); `call`, `refuse`: the caller's node does. A caller is a function, an
//! address, or `-`: an external client.

use leno_config::Snapshot;
use leno_policy::input::{Header, Peer, RequestInput};
use leno_policy::outcome::{Output, Verdict};
use leno_policy::program::Program;
use leno_policy::spec::Protocol;
use leno_translate::load_text;
use proptest::prelude::*;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

fn files() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/translated");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| (file.clone(), fs::read_to_string(file).unwrap())).collect()
}

fn load(file: &Path, text: &str) -> Snapshot {
    load_text(file, text).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

#[test]
fn each_field_is_reported() {
    let mut failures = Vec::new();
    for (file, text) in files() {
        let snapshot = load(&file, &text);
        let mut rows: Vec<_> = snapshot.translations().iter().collect();
        assert!(!rows.is_empty(), "{}: nothing is reported", file.display());
        for (number, line) in (1..).zip(text.lines()) {
            for marker in line.split("#> ").skip(1) {
                let mut parts = marker.splitn(3, ':').map(str::trim);
                let (field, standing, fragment) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
                let place = format!("{}:{number}", file.display());
                let meets = rows.iter().position(|row| {
                    row.place == place
                        && row.field == field
                        && row.standing.words() == standing
                        && row.note.contains(fragment)
                });
                match meets {
                    Some(index) => drop(rows.remove(index)),
                    None => failures.push(format!("{place}: not reported: {marker}")),
                }
            }
        }
        failures.extend(rows.iter().map(|row| format!("not expected: {row:?}")));
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn what_enters_is_what_the_original_lets_in() {
    let (mut failures, mut count) = (Vec::new(), 0);
    for (file, text) in files() {
        let snapshot = load(&file, &text);
        for case in text.lines().filter_map(|line| line.strip_prefix("#? ")) {
            count += 1;
            let words: Vec<&str> = case.splitn(7, ' ').collect();
            let [expected, first, second, method, path, port] = words[..6] else { panic!("{case}") };
            let outbound = matches!(expected, "call" | "refuse");
            // `call CALLER CALLEE`, `allow CALLEE CALLER`
            let (own, callee) = if outbound { (first, second) } else { (first, first) };
            let caller = if outbound { first } else { second };
            let config = snapshot.function_config(&own.parse().unwrap()).unwrap_or_else(|| panic!("no {own}"));
            let program = Program::new(if outbound { config.outbound } else { config.inbound });
            let identity =
                caller.split_once('/').map(|(namespace, name)| format!("spiffe://leno.local/ns/{namespace}/sa/{name}"));
            let address: IpAddr = caller.parse().unwrap_or(IpAddr::from([127, 0, 0, 1]));
            let header = words.get(6).and_then(|header| header.split_once(": "));
            let (namespace, name) = callee.split_once('/').unwrap();
            let output = program.judge(&RequestInput {
                now_ms: 1_700_000_000_000,
                peer: Peer { identity: identity.as_deref(), address: Some(address) },
                target: callee,
                port: port.parse().unwrap(),
                protocol: Protocol::Http1,
                method,
                authority: &format!("{name}.{namespace}"),
                path,
                headers: header.iter().map(|(name, value)| Header { name, value: value.as_bytes() }).collect(),
                verified: None,
            });
            let Output::Decided(decision) = output else { panic!("{case}: {output:?}") };
            let allowed = matches!(decision.verdict, Verdict::Allow { .. });
            if allowed != matches!(expected, "call" | "allow") {
                failures.push(format!("{}: {case}: {:?}", file.display(), decision.verdict));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    assert!(count >= 40, "{count} cases");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// A valid document with a few bytes replaced is read without panic.
    #[test]
    fn any_damage_is_survived(file in 0..4usize, start in 0..6000usize, length in 0..40usize, put in "[a-z{}:*,\\[\\]\"' \n0-9/%-]{0,12}") {
        let files = files();
        let text = &files[file % files.len()].1;
        let (start, end) = (start.min(text.len()), (start + length).min(text.len()));
        prop_assume!(text.is_char_boundary(start) && text.is_char_boundary(end));
        let damaged = [&text[..start], &put, &text[end..]].concat();
        if let Ok(snapshot) = load_text(Path::new("/app/damaged.yaml"), &damaged) {
            for id in snapshot.functions() {
                prop_assert!(snapshot.function_config(id).is_some());
            }
        }
    }
}
