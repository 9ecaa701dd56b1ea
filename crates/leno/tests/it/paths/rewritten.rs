//! The table of requests behind routes: each request comes to another host and path, and a route
//! rewrites it into that of the table. The verdict is the same.

use super::case::Side;
use super::{
    CREDENTIAL, CREDENTIAL_MUTUAL_TLS, HANDED_OVER, Keys, MUTUAL_TLS, Request, case, documents, expect, requests, send,
};
use leno_testkit::mesh::echo;
use serde_json::json;
use std::collections::BTreeMap;

/// The prefix that routes remove.
pub(super) const PREFIX: &str = "/elsewhere";

/// The host to which a route rewrites the request of a case; `None`: none can. A host of a route has
/// no port and is the name of a callee, and no route rewrites the path for a function that gets
/// paths as received.
fn inner(group: &case::Group, case: &case::Case) -> Option<String> {
    let host = case.host.map_or_else(|| format!("{}.test", group.function), str::to_ascii_lowercase);
    let host = host.trim_end_matches('.');
    let callee = host.starts_with(&format!("{}.test", group.function));
    (callee && !host.contains(':') && !group.function.starts_with("raw-")).then(|| host.to_owned())
}

/// A function that answers no request, with a route that sends its requests to the callee.
fn front(name: &str, callee: &str, host: &str) -> String {
    let rewrite = json!({"hostname": host, "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}});
    let rule = json!({
        "matches": [{"path": {"type": "PathPrefix", "value": PREFIX}}],
        "filters": [{"type": "URLRewrite", "urlRewrite": rewrite}],
        "backendRefs": [{"name": callee, "port": 80}],
    });
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": "test"},
        "spec": {"parentRefs": [{"group": "", "kind": "Service", "name": name}], "rules": [rule]},
    });
    super::function("test", name, &echo().display().to_string(), "") + &format!("---\n{route}\n")
}

#[test]
fn a_request_has_the_same_verdict_behind_a_route_that_rewrites_it() {
    let (table, keys) = (requests::table(), Keys::default());
    let callees: Vec<(&str, String)> =
        table.iter().map(|group| (group.function, group.policy.replace("<keys>", &keys.set()))).collect();
    // One function for each host to which requests are rewritten.
    let mut fronts = BTreeMap::new();
    let (mut rewritten, mut left) = (Vec::new(), 0);
    for request in Request::all(&table) {
        let Some(host) = inner(request.group, request.case) else {
            left += 1;
            continue;
        };
        let next = format!("front-{}", fronts.len());
        let (name, _) = fronts.entry(host).or_insert((next, request.group.function));
        rewritten.push(Request { front: Some(name.clone()), ..request });
    }
    println!("{} requests behind {} routes; {left} have hosts or paths that none makes", rewritten.len(), fronts.len());
    assert!(rewritten.len() > 100, "{} requests", rewritten.len());
    let names: String = fronts.values().map(|(name, _)| format!("test/{name}, ")).collect();
    let documents = documents(&echo(), "  scale: {min: 0}", &callees)
        .replace("  callees: [", &format!("  callees: [{names}"))
        + &fronts.iter().map(|(host, (name, callee))| front(name, callee, host)).collect::<String>();
    let mut wrong = Vec::new();
    for path in [HANDED_OVER, MUTUAL_TLS, CREDENTIAL, CREDENTIAL_MUTUAL_TLS] {
        if !path.is_open(path.name) {
            continue;
        }
        let mut mesh = path.start(&documents);
        let requests: Vec<&Request<'_>> = rewritten.iter().collect();
        let sent = send(&mut mesh, &requests, &keys);
        for request in requests {
            let (status, lines) = &sent[&request.id()];
            let mut found = Vec::new();
            match request.case.verdict.by {
                Side::Callee => found = request.differences(status, lines),
                // The path has no single reading. The node refuses it before a route could take it.
                Side::Caller => expect(&mut found, "the status of the response", status, request.case.verdict.status),
            }
            wrong.extend(found.iter().map(|difference| format!("{}: {request}: {difference}", path.name)));
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}
