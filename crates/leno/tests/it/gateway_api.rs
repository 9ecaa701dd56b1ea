//! The requirements of the Gateway API: documents, requests, and expected results
//! (`tests/gateway-api`). Each case goes through the gateway, over each of its protocols. Where
//! its group says so, a function also calls another with the same routes. All of that happens in
//! one process, and between nodes.

mod client;
mod documents;
mod expectation;
mod mesh;
mod record;
mod table;

use client::{Client, Reply, SentRequest};
use leno_testkit::TIMEOUT;
use mesh::Running;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, Instant};
use table::{Case, Gets, Group, Protocol};

/// The least number of cases.
const FEWEST: usize = 300;

/// The most requirements without a case, and the most cases of parts that do not work yet.
const UNCOVERED: usize = 0;
const PENDING: usize = 0;

/// A path by which requests come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A client sends them to the gateway.
    Gateway,
    /// A function calls another.
    Call,
}

/// The group whose route tells that the routes are in force.
const READY: &str = "ready";

/// One request of a case.
struct Attempt<'a> {
    way: Way,
    group: &'a Group,
    case: &'a Case,
    protocol: Protocol,
    id: String,
}

impl Attempt<'_> {
    fn host(&self) -> String {
        match self.way {
            Way::Gateway => format!("{}.example", self.group.name),
            Way::Call => format!("{}.test", self.group.name),
        }
    }

    async fn send(&self, client: &mut Client, running: &mut Running) -> anyhow::Result<Vec<String>> {
        let case = self.case;
        let gets = &case.gets.as_ref().expect("a case with a request").at(running.ports());
        let (method, target) = case.request.split_once(' ').expect("a method and a target");
        let default = self.host();
        let (scheme, rest) = target.split_once("://").unwrap_or(("http", target));
        let (host, path) = rest.split_at(rest.find('/').expect("a path"));
        let host = if host.is_empty() { default.as_str() } else { host };
        let headers = case.headers.iter();
        let mut headers: Vec<(String, String)> = headers
            .flat_map(|(name, values)| values.all().iter().map(move |value| (name.clone(), value.clone())))
            .collect();
        headers.push(("x-case".to_owned(), self.id.clone()));
        let sent = SentRequest { method, host, path, headers, protocol: self.protocol, tls: scheme == "https" };
        let caller = match case.from.as_deref() {
            Some("other") => "stranger.backend",
            _ => "caller.backend",
        };
        let mut replies: Vec<Reply> = Vec::new();
        for _ in 0..case.times.unwrap_or(1) {
            replies.push(match self.way {
                Way::Gateway => client.send(&sent, &[]).await?,
                Way::Call => client.call(caller, &sent).await?,
            });
        }
        let mut found = match &gets.shares {
            none if none.is_empty() => {
                replies.iter().flat_map(|reply| expectation::differences(gets, &sent, reply)).take(4).collect()
            }
            shares => expectation::shares(shares, &replies),
        };
        found.extend(self.unseen(client, gets).await?);
        if let (false, Some(reply)) = (gets.records.is_empty(), replies.first()) {
            found.extend(record::differences(self, gets, &sent, reply, running));
        }
        Ok(found)
    }

    /// The functions that have not seen as many requests as they should. A copy may come late.
    async fn unseen(&self, client: &mut Client, gets: &Gets) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        let mut expected: Vec<_> = gets.seen.iter().collect();
        // Those that get none are asked last.
        expected.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (function, count) in expected {
            let begin = Instant::now();
            let mut seen = client.seen(function, &self.id).await?.len();
            while seen < *count && begin.elapsed() < Duration::from_secs(5) {
                tokio::time::sleep(Duration::from_millis(5)).await;
                seen = client.seen(function, &self.id).await?.len();
            }
            if seen != *count {
                found.push(format!("{function} has seen {seen} requests instead of {count}"));
            }
        }
        Ok(found)
    }
}

/// Sends the requests of all groups through a mesh, one after another. Returns the failures.
async fn run(running: &mut Running, groups: &[&Group], ways: &[Way]) -> Vec<String> {
    let mut client = Client::new(running);
    for (way, name) in [(Way::Gateway, "example"), (Way::Call, "test")] {
        let host = format!("{READY}.{name}");
        let needed = groups.iter().any(|group| group.name == READY) && ways.contains(&way);
        if !needed {
            continue;
        }
        // The route, and each back end: nodes learn of them at different times.
        let ready = std::iter::once((host, 307));
        let backends = table::BACKENDS.iter().map(|(namespace, function)| match way {
            Way::Gateway => (format!("{function}.backend"), 200),
            Way::Call => (format!("{function}.{namespace}"), 200),
        });
        for (host, status) in ready.chain(backends) {
            let path = if status == 200 { "/seen/ready" } else { "/" };
            let sent = SentRequest::plain("GET", &host, path);
            let begin = Instant::now();
            loop {
                assert!(begin.elapsed() < TIMEOUT, "{}: {host} does not answer {status}", running.name);
                let reply = match way {
                    Way::Gateway => client.send(&sent, &[]).await,
                    Way::Call => client.call("caller.backend", &sent).await,
                };
                if reply.is_ok_and(|reply| reply.status == status) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    let mut failures = Vec::new();
    for group in groups {
        for (index, case) in group.cases.iter().enumerate().filter(|(_, case)| case.gets.is_some()) {
            if group.pending.is_some() || case.pending.is_some() {
                continue;
            }
            for way in ways.iter().filter(|way| group.calls || **way == Way::Gateway) {
                // A client of the gateway has no namespace.
                if case.from.is_some() && *way == Way::Gateway {
                    continue;
                }
                for protocol in &case.over {
                    let what = if *way == Way::Call { "call" } else { "gateway" };
                    let id = format!("{}-{index}-{what}-{protocol:?}", group.name);
                    let attempt = Attempt { way: *way, group, case, protocol: *protocol, id };
                    let found = attempt.send(&mut client, running).await;
                    let found = found.unwrap_or_else(|error| vec![format!("{error:#}")]);
                    let place = format!("{}: {}: {}", group.file, group.about, case.name);
                    let place = format!("{place} ({}, {what}, {protocol:?})", running.name);
                    failures.extend(found.iter().map(|difference| format!("{place}: {difference}")));
                }
            }
        }
    }
    failures
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn assert_none(failures: &[String]) {
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// The groups that share a mesh.
fn shared(groups: &[Group]) -> Vec<&Group> {
    groups.iter().filter(|group| group.mesh.is_none() && group.pending.is_none()).collect()
}

#[test]
fn requests_follow_routes_in_one_process() {
    let groups = table::groups();
    let shared = shared(&groups);
    let mut running = Running::one(&shared, "");
    assert_none(&block_on(run(&mut running, &shared, &[Way::Gateway, Way::Call])));
}

#[test]
fn requests_follow_routes_between_nodes() {
    let groups = table::groups();
    let shared = shared(&groups);
    let mut running = Running::nodes(&shared);
    assert_none(&block_on(run(&mut running, &shared, &[Way::Gateway, Way::Call])));
}

#[test]
fn requests_follow_routes_of_gateways_with_other_listeners() {
    let groups = table::groups();
    let mut failures = Vec::new();
    for group in groups.iter().filter(|group| group.mesh.is_some() && group.pending.is_none()) {
        let mut running = Running::one(&[group], group.mesh.as_deref().unwrap_or_default());
        failures.extend(block_on(run(&mut running, &[group], &[Way::Gateway])));
    }
    assert_none(&failures);
}

#[test]
fn a_removed_grant_permits_nothing() {
    let groups = table::groups();
    let shared = shared(&groups);
    let Some(group) = shared.iter().find(|group| group.name == "grants") else {
        println!("pending: the group `grants`");
        return;
    };
    let running = Running::one(&[group], "");
    block_on(async {
        let (mut client, sent) = (Client::new(&running), SentRequest::plain("GET", "grants.example", "/any"));
        assert_eq!(client.send(&sent, &[]).await.unwrap().status, 200);
        running.replace("metadata: {name: grant, namespace: fourth}", "metadata: {name: grant, namespace: seventh}");
        let begin = Instant::now();
        while client.send(&sent, &[]).await.unwrap().status != 500 {
            assert!(begin.elapsed() < TIMEOUT, "the grant still holds");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn documents_get_the_conditions_and_errors_of_the_table() {
    let groups = table::groups();
    let mut failures = Vec::new();
    for group in groups.iter().filter(|group| group.pending.is_none()) {
        for case in group.cases.iter().filter(|case| case.gets.is_none() && case.pending.is_none()) {
            let place = format!("{}: {}: {}", group.file, group.about, case.name);
            let found = documents::differences(group, case);
            failures.extend(found.iter().map(|difference| format!("{place}: {difference}")));
        }
    }
    assert_none(&failures);
}

#[test]
fn each_requirement_has_a_case() {
    let (groups, requirements) = (table::groups(), table::requirements());
    let numbers: BTreeSet<&str> = requirements.iter().map(|requirement| requirement.number.as_str()).collect();
    assert_eq!(numbers.len(), requirements.len(), "a number appears twice");
    let (mut covered, mut pending, mut names, mut count) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new(), 0);
    for group in &groups {
        assert!(names.insert((group.name.as_str(), "")), "{}: `{}` appears twice", group.file, group.name);
        for case in &group.cases {
            count += 1;
            let place = format!("{}: {}: {}", group.file, group.about, case.name);
            assert!(names.insert((&group.name, &case.name)), "{place} appears twice");
            for number in &case.covers {
                assert!(numbers.contains(number.as_str()), "{place}: there is no requirement {number}");
            }
            match group.pending.as_ref().or(case.pending.as_ref()) {
                Some(reason) => _ = pending.insert(place, reason),
                None => covered.extend(case.covers.iter().map(String::as_str)),
            }
        }
    }
    let mut report = String::new();
    for (place, reason) in &pending {
        writeln!(report, "pending: {place}: {reason}").unwrap();
    }
    let (mut uncovered, mut later, mut elsewhere) = (0, 0, 0);
    for requirement in requirements.iter().filter(|requirement| !covered.contains(requirement.number.as_str())) {
        match (&requirement.elsewhere, &requirement.later) {
            (Some(file), _) => {
                assert!(table::root().join(file).is_file(), "{}: there is no {file}", requirement.number);
                elsewhere += 1;
            }
            (None, Some(reason)) => {
                later += 1;
                writeln!(report, "later: {}: {} ({reason})", requirement.number, requirement.text).unwrap();
            }
            (None, None) => {
                uncovered += 1;
                writeln!(report, "uncovered: {}: {}", requirement.number, requirement.text).unwrap();
            }
        }
    }
    let all = requirements.len();
    println!(
        "{report}{count} cases; of {all} requirements {} are covered, {elsewhere} elsewhere, {later} later",
        covered.len()
    );
    assert!(count >= FEWEST, "{count} cases");
    assert!(uncovered == UNCOVERED, "{uncovered} requirements have no case:\n{report}");
    assert!(pending.len() == PENDING, "{} cases are pending:\n{report}", pending.len());
}
