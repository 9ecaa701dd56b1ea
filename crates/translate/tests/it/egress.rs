//! External calls that policies of other projects allow: as `tests/translated/egress.yaml` lists,
//! and, for random rules, no more than Cilium would allow.

use leno_config::Snapshot;
use leno_model::{Callee, EgressProtocol, PortProtocol, Run};
use leno_model::{FunctionId, egress};
use leno_policy::connection;
use leno_policy::input::{Peer, RequestInput};
use leno_policy::outcome::{Output, Verdict};
use leno_policy::program::Program;
use leno_policy::spec::{Cidr, ProgramSpec, Protocol};
use leno_translate::load_text;
use proptest::prelude::*;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

/// An external call.
#[derive(Clone, Debug)]
struct Call {
    /// The name that is called; `None`: the call is by address.
    name: Option<String>,
    /// The address of the destination.
    address: IpAddr,
    port: u16,
    how: How,
    method: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Http,
    /// TLS that asks for the name.
    Tls,
    Tcp,
}

/// Whether a node allows the call: by the caller's configuration, and by the configuration of the
/// callee.
fn allowed(snapshot: &Snapshot, caller: &str, call: &Call) -> bool {
    let caller: FunctionId = caller.parse().unwrap();
    let config = snapshot.function_config(&caller).unwrap();
    let host = call.name.clone().unwrap_or_else(|| call.address.to_string());
    let Some(callee) = callee(&config.callees, call) else { return false };
    let outside = snapshot.function_config(&callee.id).unwrap();
    let Run::Egress(egress) = &outside.run else { return false };
    let leads_there = match &call.name {
        Some(name) => egress.has_host(name) && egress.may_resolve_to(call.address, &|_| false),
        None => egress.has_address(call.address, &|_| false),
    };
    if !leads_there {
        return false;
    }
    let identity = config.identity.as_str();
    if call.how == How::Http {
        let Some(port) = egress.http_port(call.port).filter(|port| port.protocol == EgressProtocol::Http) else {
            return false;
        };
        let target = callee.id.to_string();
        let permits = |program: ProgramSpec| {
            let program = Program::new(program);
            let output = program.judge(&RequestInput {
                now_ms: 1_700_000_000_000,
                peer: Peer { identity: Some(identity), address: Some(Ipv4Addr::LOCALHOST.into()) },
                target: &target,
                port: port.number,
                protocol: Protocol::Http1,
                method: call.method,
                authority: &host,
                path: "/",
                headers: Vec::new(),
                verified: None,
            });
            matches!(output, Output::Decided(decision) if matches!(decision.verdict, Verdict::Allow { .. }))
        };
        return permits(config.outbound.clone()) && permits(outside.inbound);
    }
    let Some(port) = callee.ports.iter().find(|port| port.number == call.port) else { return false };
    let fits = port.protocol == PortProtocol::Tcp || (call.how == How::Tls && call.name.is_some());
    let peer = Peer { identity: Some(identity), address: Some(Ipv4Addr::LOCALHOST.into()) };
    fits && connection::judge(&outside.inbound, peer, call.port, call.name.as_deref().unwrap_or_default()).is_ok()
}

fn callee<'a>(callees: &'a [Callee], call: &Call) -> Option<&'a Callee> {
    let Some(name) = &call.name else {
        let of = |callee: &'a Callee| callee.addresses.iter().map(move |block| (block, callee));
        let blocks = callees.iter().flat_map(of).filter(|(block, _)| block.contains(call.address));
        return blocks.max_by_key(|(block, _)| block.prefix).map(|(_, callee)| callee);
    };
    let by = |host: &String| callees.iter().find(|callee| callee.hosts.contains(host));
    by(name).or_else(|| by(&egress::wildcard(name)?))
}

#[test]
fn what_goes_out_is_what_the_original_lets_out() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/translated/egress.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let snapshot = load_text(&file, &text).unwrap_or_else(|problems| panic!("{problems:#?}"));
    assert_eq!(snapshot.warnings(), [], "what was made of them is as it is meant");
    let (mut failures, mut count) = (Vec::new(), 0);
    for case in text.lines().filter_map(|line| line.strip_prefix("#@ ")) {
        count += 1;
        let words: Vec<&str> = case.split(' ').collect();
        let address = words[2].parse().ok();
        let call = Call {
            name: address.is_none().then(|| words[2].to_owned()),
            address: address.unwrap_or_else(|| words[5].parse().unwrap()),
            port: words[3].parse().unwrap(),
            how: match words[4] {
                "http" => How::Http,
                "tls" => How::Tls,
                "tcp" => How::Tcp,
                other => panic!("{other}"),
            },
            method: if words.get(6) == Some(&"POST") { "POST" } else { "GET" },
        };
        if allowed(&snapshot, words[1], &call) != (words[0] == "allow") {
            failures.push(case);
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    assert!(count >= 40, "{count} cases");
}

/// A selector of an egress rule.
#[derive(Clone, Debug)]
enum To {
    Fqdn(&'static str),
    Block(&'static str, Option<&'static str>),
    World,
}

#[derive(Clone, Debug)]
struct Rule {
    to: To,
    /// Empty: all.
    ports: Vec<u16>,
    /// Only GET requests.
    get: bool,
}

#[derive(Clone, Debug)]
struct Policy {
    /// Whether it applies to `web` only.
    web: bool,
    allow: Vec<Rule>,
    deny: Vec<To>,
}

const FQDNS: [&str; 9] = [
    "api.example.org",
    "a.example.org",
    "example.org",
    "db.example.net",
    "*.example.org",
    "**.example.org",
    "a*.example.org",
    "*.*.org",
    "*",
];
const NAMES: [&str; 6] =
    ["api.example.org", "a.example.org", "example.org", "a.b.example.org", "db.example.net", "other.example.com"];
const BLOCKS: [&str; 10] = [
    "198.51.100.0/24",
    "198.51.100.128/25",
    "198.51.0.0/16",
    "203.0.113.0/24",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "0.0.0.0/0",
    "128.0.0.0/1",
    "169.254.169.254/32",
    "127.0.0.0/8",
];
const ADDRESSES: [&str; 9] = [
    "198.51.100.7",
    "198.51.100.200",
    "198.51.7.7",
    "203.0.113.9",
    "192.0.2.1",
    "10.1.2.3",
    "10.200.0.1",
    "169.254.169.254",
    "127.0.0.1",
];
const SPECIAL: [&str; 3] = ["10.0.0.0/8", "169.254.0.0/16", "127.0.0.0/8"];
const PORTS: [u16; 4] = [80, 443, 5432, 8443];

fn to() -> impl Strategy<Value = To> {
    let block = (proptest::sample::select(&BLOCKS[..]), proptest::option::of(proptest::sample::select(&BLOCKS[..])));
    prop_oneof![
        4 => proptest::sample::select(&FQDNS[..]).prop_map(To::Fqdn),
        3 => block.prop_map(|(block, except)| To::Block(block, except)),
        1 => Just(To::World),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    let ports = proptest::collection::btree_set(proptest::sample::select(&PORTS[..]), 0..3);
    let rule = (to(), ports, proptest::bool::weighted(0.25)).prop_map(|(to, ports, get)| {
        let ports: Vec<u16> = ports.into_iter().collect();
        Rule { to, get: get && !ports.is_empty(), ports }
    });
    let denied = to().prop_filter("names are not denied", |to| !matches!(to, To::Fqdn(_)));
    let deny = prop_oneof![3 => Just(Vec::new()), 1 => proptest::collection::vec(denied, 1..3)];
    (any::<bool>(), proptest::collection::vec(rule, 0..4), deny).prop_map(|(web, allow, deny)| Policy {
        web,
        allow,
        deny,
    })
}

fn call() -> impl Strategy<Value = Call> {
    let name = proptest::option::of(proptest::sample::select(&NAMES[..]));
    let how = proptest::sample::select(&[How::Http, How::Tls, How::Tcp][..]);
    let rest = (proptest::sample::select(&PORTS[..]), how, proptest::sample::select(&["GET", "POST"][..]));
    (name, proptest::sample::select(&ADDRESSES[..]), rest).prop_map(|(name, address, (port, how, method))| Call {
        name: name.map(ToOwned::to_owned),
        address: address.parse().unwrap(),
        port,
        how,
        method,
    })
}

fn block(text: &str) -> Cidr {
    let (address, prefix) = text.split_once('/').unwrap();
    Cidr { address: address.parse().unwrap(), prefix: prefix.parse().unwrap() }
}

/// Whether the destination matches the call in Cilium: by its address, or by the name that resolved
/// to it.
fn selects(to: &To, call: &Call) -> bool {
    let label =
        |pattern: &str, label: &str| pattern == "*" || pattern == label || (pattern == "a*" && label.starts_with('a'));
    match to {
        To::World => true,
        To::Block(inside, except) => {
            block(inside).contains(call.address) && !except.is_some_and(|except| block(except).contains(call.address))
        }
        To::Fqdn("*") => call.name.is_some(),
        To::Fqdn(pattern) => call.name.as_ref().is_some_and(|name| match pattern.strip_prefix("**.") {
            Some(rest) => name.strip_suffix(rest).is_some_and(|before| before.len() > 1 && before.ends_with('.')),
            None => {
                let (wanted, labels): (Vec<&str>, Vec<&str>) =
                    (pattern.split('.').collect(), name.split('.').collect());
                wanted.len() == labels.len() && wanted.iter().zip(labels).all(|(wanted, one)| label(wanted, one))
            }
        }),
    }
}

/// Whether Cilium allows the call.
fn cilium(policies: &[&Policy], call: &Call) -> bool {
    let denied = policies.iter().flat_map(|policy| &policy.deny).any(|to| selects(to, call));
    let mut rules = policies.iter().flat_map(|policy| &policy.allow);
    !denied
        && rules.any(|rule| {
            let requests = !rule.get || (call.how == How::Http && call.method == "GET");
            selects(&rule.to, call) && (rule.ports.is_empty() || rule.ports.contains(&call.port)) && requests
        })
}

fn yaml(policies: &[Policy]) -> String {
    let mut text = String::new();
    for name in ["web", "other"] {
        writeln!(
            text,
            "---\n{{apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}}}, spec: {{command: [a]}}}}"
        )
        .unwrap();
    }
    let destination = |to: &To| match to {
        To::Fqdn(pattern) if pattern.contains('*') => format!("toFQDNs: [{{matchPattern: \"{pattern}\"}}]"),
        To::Fqdn(name) => format!("toFQDNs: [{{matchName: {name}}}]"),
        To::Block(block, None) => format!("toCIDR: [{block}]"),
        To::Block(block, Some(except)) => format!("toCIDRSet: [{{cidr: {block}, except: [{except}]}}]"),
        To::World => "toEntities: [world]".to_owned(),
    };
    for (number, Policy { web, allow, deny }) in policies.iter().enumerate() {
        let selector = if *web { "{matchLabels: {app: web}}" } else { "{}" };
        let rule = |Rule { to, ports, get }: &Rule| {
            let listed: Vec<String> = ports.iter().map(|port| format!("{{port: \"{port}\"}}")).collect();
            let http = if *get { ", rules: {http: [{method: GET}]}" } else { "" };
            let ports = match listed.as_slice() {
                [] => String::new(),
                listed => format!(", toPorts: [{{ports: [{}]{http}}}]", listed.join(", ")),
            };
            format!("{{{}{ports}}}", destination(to))
        };
        let allow: Vec<String> = allow.iter().map(rule).collect();
        let deny: Vec<String> = deny.iter().map(|to| format!("{{{}}}", destination(to))).collect();
        writeln!(
            text,
            "---\napiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {{name: p{number}, namespace: shop}}\nspec:\n  \
             endpointSelector: {selector}\n  egress: [{}]\n  egressDeny: [{}]",
            allow.join(", "),
            deny.join(", ")
        )
        .unwrap();
    }
    text
}

/// Whether the mesh must carry the call if Cilium does: the rule lists its port, the call has the
/// protocol of that port, and no rule denies anything.
fn is_carried(policies: &[&Policy], call: &Call) -> bool {
    let is_special = SPECIAL.iter().any(|special| block(special).contains(call.address));
    let all = || policies.iter().flat_map(|policy| &policy.allow);
    let plain = policies.iter().all(|policy| policy.deny.is_empty()) && all().all(|rule| !rule.get);
    let by = |rule: &Rule| {
        let fits = match (&rule.to, call.port) {
            (To::Fqdn(pattern), _) if !["*.example.org"].contains(pattern) && pattern.contains('*') => false,
            (To::Fqdn(_), 80) => call.how == How::Http,
            (To::Fqdn(_), 443) => call.how == How::Tls,
            (To::Fqdn(name), _) if name.contains('*') => call.how == How::Tls,
            (To::Fqdn(_), _) => call.how == How::Tcp,
            _ => call.how == How::Tcp && call.name.is_none(),
        };
        fits && selects(&rule.to, call) && rule.ports.contains(&call.port)
    };
    plain && !is_special && all().any(by)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_more_goes_out_than_cilium_would_let_out(
        policies in proptest::collection::vec(policy(), 1..4),
        calls in proptest::collection::vec(call(), 60),
    ) {
        let text = yaml(&policies);
        let snapshot = load_text(Path::new("/app/made.yaml"), &text).unwrap_or_else(|problems| panic!("{problems:#?}\n{text}"));
        for caller in ["web", "other"] {
            let own: Vec<&Policy> = policies.iter().filter(|policy| caller == "web" || !policy.web).collect();
            for call in &calls {
                let allowed = allowed(&snapshot, &format!("shop/{caller}"), call);
                prop_assert!(!allowed || cilium(&own, call), "{caller} must not: {call:?}\n{text}");
                let special = SPECIAL.iter().find(|special| block(special).contains(call.address));
                if let (true, Some(special)) = (allowed, special) {
                    let listed = own.iter().flat_map(|policy| &policy.allow).any(|rule| {
                        let by_itself = matches!(rule.to, To::Block(one, _) if block(special).contains(block(one).address)
                            && block(one).prefix >= block(special).prefix);
                        by_itself && cilium(&[&Policy { web: true, allow: vec![rule.clone()], deny: Vec::new() }], call)
                    });
                    prop_assert!(call.name.is_none() && listed, "{caller} must not, it is special: {call:?}\n{text}");
                    prop_assert!(!call.address.is_loopback(), "{caller} reaches the node itself: {call:?}\n{text}");
                }
                prop_assert!(allowed || !is_carried(&own, call), "{caller} may: {call:?}\n{text}");
            }
        }
    }
}
