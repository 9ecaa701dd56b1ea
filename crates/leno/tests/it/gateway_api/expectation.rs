//! The comparison of a reply with the expected one.

use super::client::{Reply, SentRequest};
use super::table::{Gets, Protocol, Texts, full};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// Standard deviations by which a share may be off: one of some two million differs by more.
const DEVIATIONS: f64 = 5.0;

fn differs<T: PartialEq + Debug>(found: &mut Vec<String>, what: &str, actual: T, expected: T) {
    if actual != expected {
        found.push(format!("{what} is {actual:?} instead of {expected:?}"));
    }
}

/// The function that answered.
fn by(description: &Value) -> Option<&str> {
    description["environment"]["NAME"].as_str()
}

/// How a reply differs from the expected one.
pub(crate) fn differences(gets: &Gets, sent: &SentRequest<'_>, reply: &Reply) -> Vec<String> {
    let mut found = Vec::new();
    differs(&mut found, "the status", reply.status, gets.status.unwrap_or(200));
    let description = reply.description();
    let answered = description.as_ref().and_then(by);
    differs(&mut found, "the function", answered.map(str::to_owned), gets.by.as_deref().map(full));
    if let Some(description) = description.filter(|_| gets.by.is_some()) {
        differs(&mut found, "the method", description["method"].as_str(), Some(sent.method));
        differs(&mut found, "the path", description["path"].as_str(), Some(gets.path.as_deref().unwrap_or(sent.path)));
        let host = gets.host.as_deref().unwrap_or(sent.host);
        differs(&mut found, "the host", description["host"].as_str(), Some(host));
        for (name, expected) in &gets.headers {
            let values = description["headers"][name].as_array().into_iter().flatten().filter_map(Value::as_str);
            fields(&mut found, "the request's", name, &values.collect::<Vec<_>>(), expected.as_ref());
        }
    }
    for (name, expected) in &gets.answer {
        fields(&mut found, "the response's", name, &reply.values(name), expected.as_ref());
    }
    let grpc = gets.grpc.or((sent.protocol == Protocol::Grpc && gets.by.is_some()).then_some(0));
    if let Some(grpc) = grpc {
        differs(&mut found, "the status of gRPC", reply.values("grpc-status"), vec![grpc.to_string().as_str()]);
    }
    if !found.is_empty() {
        let body = String::from_utf8_lossy(&reply.body);
        found.push(format!("the body: {}", body.chars().take(200).collect::<String>()));
    }
    found
}

fn fields(found: &mut Vec<String>, whose: &str, name: &str, actual: &[&str], expected: Option<&Texts>) {
    let expected: Vec<&str> = expected.map(Texts::all).unwrap_or_default().iter().map(String::as_str).collect();
    // Several fields of one name mean the same as one with all the values.
    if actual.join(",").replace(", ", ",") != expected.join(",").replace(", ", ",") {
        found.push(format!("{whose} `{name}` is {actual:?} instead of {expected:?}"));
    }
}

/// How the shares of replies differ from the expected percentages.
pub(crate) fn shares(expected: &BTreeMap<String, u32>, replies: &[Reply]) -> Vec<String> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for reply in replies {
        let description = reply.description().filter(|_| reply.status == 200);
        let name = match (description.as_ref().and_then(by), &reply.values("grpc-status")[..]) {
            (Some(function), _) => function.to_owned(),
            (None, [status]) => format!("grpc-{status}"),
            (None, _) => reply.status.to_string(),
        };
        *counts.entry(name).or_default() += 1;
    }
    let mut found = Vec::new();
    let total = replies.len() as f64;
    for (name, percent) in expected {
        let is_status = name.parse::<u16>().is_ok() || name.starts_with("grpc-");
        let name = if is_status { name.clone() } else { full(name) };
        let count = f64::from(counts.remove(&name).unwrap_or_default());
        let share = f64::from(*percent) / 100.0;
        if (count - total * share).abs() > DEVIATIONS * (total * share * (1.0 - share)).sqrt() {
            found.push(format!("{name} answered {count} of {total} requests instead of {percent} %"));
        }
    }
    found.extend(counts.iter().map(|(name, count)| format!("{name} answered {count} of {total} requests")));
    found
}
