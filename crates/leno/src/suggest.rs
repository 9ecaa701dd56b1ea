//! `leno suggest`: documents that would allow the refused calls of a function.

use crate::NodeAddress;
use crate::client::Node;
use crate::output::Format;
use crate::screen::{shown, shown_all, shown_json};
use anyhow::{Context, Result, bail, ensure};
use leno_model::FunctionId;
use leno_telemetry::destinations::{Destination, DestinationKind};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;

/// Commands that write suggested documents.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Write External documents and policies for the refused destinations of a function.
    ///
    /// A node keeps 128 destinations of each function, and counts the others. It forgets them when
    /// it ends.
    Egress {
        /// Function or job: `name`, or `namespace/name`.
        function: String,
        #[command(flatten)]
        format: Format,
        #[command(flatten)]
        node: NodeAddress,
    },
}

/// Carries out a command.
pub(crate) fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Egress { function, format, node } => egress(&function, &node, format),
    }
}

/// The refused destinations of a function, as the node reports them.
#[derive(Deserialize)]
struct RefusedDestinations {
    destinations: Vec<Destination>,
    /// Refusals of further destinations, which exceeded the node's limit.
    beyond: u64,
}

/// The suggestion for one host or address.
#[derive(Default)]
struct HostSuggestion {
    count: u64,
    /// Port and protocol.
    ports: BTreeMap<u16, &'static str>,
    methods: BTreeSet<String>,
    paths: BTreeSet<String>,
    /// Only its name is known.
    guessed: bool,
}

/// Prints documents that would allow a function's refused calls to external services.
fn egress(function: &str, node: &NodeAddress, format: Format) -> Result<ExitCode> {
    let node = Node::of(node)?;
    let functions: Vec<FunctionId> = names(&node, "/functions", "function")?;
    let callers = functions.iter().cloned().chain(names(&node, "/jobs", "job")?).collect::<Vec<_>>();
    let id = find(&callers, function)?;
    let (status, body) = node.ask(&format!("/destinations/{id}"))?;
    ensure!(status == 200, "the node at {} answered {status}: {}", node.admin, shown(body.trim_end()));
    if format.is_json() {
        println!("{}", shown_json(&body));
        return Ok(ExitCode::SUCCESS);
    }
    let refused: RefusedDestinations =
        serde_json::from_str(&body).context("the node's answer is not a list of destinations")?;
    let externals = names(&node, "/externals", "external")?;
    print!("{}", tell(&id, &refused, &functions, &externals)?);
    Ok(ExitCode::SUCCESS)
}

fn names(node: &Node, path: &str, column: &str) -> Result<Vec<FunctionId>> {
    let (status, body) = node.ask(path)?;
    ensure!(status == 200, "the node at {} answered {status}: {}", node.admin, shown(body.trim_end()));
    let rows: Vec<Value> = serde_json::from_str(&body).context("the node's answer is not JSON")?;
    Ok(rows.iter().filter_map(|row| row[column].as_str()?.parse().ok()).collect())
}

/// Finds the function by `name` or `namespace/name`.
fn find(known: &[FunctionId], text: &str) -> Result<FunctionId> {
    let mut matching = known.iter().filter(|id| id.name == text || id.to_string() == text);
    match (matching.next(), matching.next()) {
        (Some(id), None) => Ok(id.clone()),
        (Some(one), Some(other)) => bail!("`{text}` may mean {one} or {other}"),
        (None, _) => bail!("there is no function and no job `{}`; see `leno get functions`", shown(text)),
    }
}

fn tell(
    id: &FunctionId,
    refused: &RefusedDestinations,
    functions: &[FunctionId],
    externals: &[FunctionId],
) -> Result<String> {
    let mut text = String::new();
    if refused.destinations.is_empty() && refused.beyond == 0 {
        let _ = writeln!(text, "# {id} was refused nothing outside of the mesh since the node started.");
        return Ok(text);
    }
    let _ = writeln!(
        text,
        "# What {id} was refused since the node started. Allow what it needs, not what it asked for: whoever steers the function steers what is asked."
    );
    if refused.beyond > 0 {
        let _ = writeln!(
            text,
            "# {} more refusals are not in this list: there were too many destinations.",
            refused.beyond
        );
    }
    let mut callees = Vec::new();
    let mut suggested = BTreeMap::<&str, HostSuggestion>::new();
    for destination in &refused.destinations {
        if let Some(callee) = &destination.callee {
            text += &rule(id, callee, destination)?;
        } else if let Some(function) = named(id, &destination.host, functions) {
            let _ = writeln!(
                text,
                "# {} times: {}, which is the function {function}.",
                destination.count,
                shown(&destination.host)
            );
            callees.push(shortest(id, function));
        } else if !is_host(&destination.host) {
            let _ = writeln!(
                text,
                "# {} times: `{}`, which is no name outside.",
                destination.count,
                shown(&destination.host)
            );
        } else {
            suggested.entry(&destination.host).or_default().add(destination);
        }
    }
    let own = functions.iter().chain(externals).filter(|known| known.namespace == id.namespace);
    let mut taken: BTreeSet<String> = own.map(|known| known.name.clone()).collect();
    for (host, suggested) in &suggested {
        let name = label(host, &mut taken);
        text += &suggested.documents(id, host, &name)?;
        callees.push(name);
    }
    if !callees.is_empty() {
        callees.sort();
        callees.dedup();
        let _ = writeln!(text, "# And in the document of {id}:\n#   callees: [{}]", callees.join(", "));
    }
    Ok(text)
}

/// A policy for a callee whose own policies refused.
fn rule(id: &FunctionId, callee: &FunctionId, destination: &Destination) -> Result<String> {
    let what = match destination.asked {
        DestinationKind::Request => "requests",
        DestinationKind::Connection | DestinationKind::Name => "connections",
    };
    let mut text = format!(
        "# {} {what}: {callee} exists, and none of its policies allows them, or it has no such port ({}).\n",
        destination.count,
        destination.port.map_or_else(String::new, |port| port.to_string())
    );
    let name = format!("{}-from-{}", callee.name, id.name);
    text += &policy(
        id,
        callee,
        name.get(..63).unwrap_or(&name),
        operation(
            &destination.methods,
            &literal(&destination.paths).collect(),
            &destination.port.into_iter().collect::<Vec<_>>(),
        ),
    )?;
    Ok(text)
}

/// The observed operations, in the form of a rule.
fn operation(methods: &BTreeSet<String>, paths: &BTreeSet<String>, ports: &[u16]) -> Value {
    match (methods.is_empty(), paths.is_empty()) {
        (false, false) => json!({ "methods": methods, "paths": paths }),
        (false, true) => json!({ "methods": methods, "ports": ports }),
        (true, _) => json!({ "ports": ports }),
    }
}

/// The paths that a rule can contain as they are: a `*` or a `{` in a path would match more.
fn literal(paths: &BTreeSet<String>) -> impl Iterator<Item = String> {
    let plain = |path: &&String| path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/%@,=".contains(&byte));
    paths.iter().filter(plain).cloned()
}

fn policy(id: &FunctionId, callee: &FunctionId, name: &str, to: Value) -> Result<String> {
    document(json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": "Policy",
        "metadata": { "name": name, "namespace": callee.namespace },
        "spec": {
            "functions": [callee.name],
            "authorization": { "rules": [{ "name": id.name, "from": [{ "identities": [id.to_string()] }], "to": [to] }] },
        },
    }))
}

fn document(value: Value) -> Result<String> {
    Ok(format!("---\n{}\n", serde_saphyr::to_string(&shown_all(value))?.trim_end()))
}

impl HostSuggestion {
    fn add(&mut self, destination: &Destination) {
        self.count += destination.count;
        self.methods.extend(destination.methods.iter().cloned());
        self.paths.extend(literal(&destination.paths));
        let port = match (destination.asked, destination.port) {
            // Programs without support for the mesh begin TLS themselves.
            (DestinationKind::Name, _) | (_, None) => {
                self.guessed = self.ports.is_empty();
                if self.guessed { (443, "tls") } else { return }
            }
            (DestinationKind::Request, Some(80)) => (443, "https"),
            (DestinationKind::Request, Some(port)) => (port, "http"),
            (DestinationKind::Connection, Some(443)) => (443, "tls"),
            (DestinationKind::Connection, Some(port)) => (port, "tcp"),
        };
        if destination.asked != DestinationKind::Name && self.guessed {
            self.ports.clear();
            self.guessed = false;
        }
        self.ports.insert(port.0, port.1);
    }

    fn documents(&self, id: &FunctionId, host: &str, name: &str) -> Result<String> {
        let mut text = format!("# {} times.", self.count);
        if self.guessed {
            text += " Only its name was looked up: the port is a guess.";
        }
        if self.ports.values().any(|protocol| *protocol == "https") {
            text += " The function sends plain HTTP to port 80, and the node begins TLS; if it is to stay plain: {port: 80, protocol: http}.";
        }
        text.push('\n');
        let ports: Vec<Value> =
            self.ports.iter().map(|(port, protocol)| json!({ "port": port, "protocol": protocol })).collect();
        let place = match bare(host).parse::<IpAddr>() {
            Ok(address) => json!({ "addresses": [address.to_string()], "ports": ports }),
            Err(_) => json!({ "hosts": [host], "ports": ports }),
        };
        text += &document(json!({
            "apiVersion": "leno.dev/v1alpha1",
            "kind": "External",
            "metadata": { "name": name, "namespace": id.namespace },
            "spec": place,
        }))?;
        let to = operation(&self.methods, &self.paths, &self.ports.keys().copied().collect::<Vec<_>>());
        let callee = FunctionId { namespace: id.namespace.clone(), name: name.to_owned() };
        text += &policy(id, &callee, name, to)?;
        Ok(text)
    }
}

fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

/// Whether an External document can name this host.
fn is_host(host: &str) -> bool {
    let label = |label: &str| {
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(good)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let name = host.len() <= 253 && host.contains('.') && host.split('.').all(label);
    let inside = [".svc", ".svc.cluster.local", ".localhost"].iter().any(|end| host.ends_with(end));
    bare(host).parse::<IpAddr>().is_ok() || (name && !inside)
}

/// The function of the mesh that a host names.
fn named<'a>(id: &FunctionId, host: &str, functions: &'a [FunctionId]) -> Option<&'a FunctionId> {
    let host = host.strip_suffix(".cluster.local").unwrap_or(host);
    let host = host.strip_suffix(".svc").unwrap_or(host);
    functions.iter().find(|function| {
        let FunctionId { namespace, name } = function;
        (host == name && *namespace == id.namespace) || host.split_once('.') == Some((name, namespace))
    })
}

fn shortest(id: &FunctionId, callee: &FunctionId) -> String {
    if id.namespace == callee.namespace { callee.name.clone() } else { callee.to_string() }
}

/// An unused name for a document about a host.
fn label(host: &str, taken: &mut BTreeSet<String>) -> String {
    let dashed: String =
        bare(host).chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
    let cut = dashed.get(..56).unwrap_or(&dashed).trim_matches('-');
    let stem = if cut.is_empty() { "outside" } else { cut };
    let numbered = (2..).map(|number| format!("{stem}-{number}"));
    let free = std::iter::once(stem.to_owned()).chain(numbered).find(|name| !taken.contains(name));
    let name = free.unwrap_or_default();
    taken.insert(name.clone());
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(asked: DestinationKind, host: &str, port: Option<u16>) -> Destination {
        let texts = |text: &str| {
            if asked == DestinationKind::Request { BTreeSet::from([text.to_owned()]) } else { BTreeSet::new() }
        };
        let (methods, paths) = (texts("GET"), texts("/v1"));
        Destination { asked, host: host.to_owned(), port, callee: None, count: 2, methods, paths }
    }

    fn told(destinations: Vec<Destination>) -> String {
        let id = FunctionId::new("shop", "cart").unwrap();
        let stock = FunctionId::new("shop", "stock").unwrap();
        tell(&id, &RefusedDestinations { destinations, beyond: 0 }, &[id.clone(), stock], &[]).unwrap()
    }

    #[test]
    fn what_is_suggested_is_accepted_and_allows_what_was_asked() {
        let text = told(vec![
            destination(DestinationKind::Request, "api.example.com", Some(80)),
            destination(DestinationKind::Name, "api.example.com", None),
            destination(DestinationKind::Name, "only.name.example", None),
            destination(DestinationKind::Connection, "203.0.113.7", Some(5432)),
            destination(DestinationKind::Name, "stock", None),
            destination(DestinationKind::Name, "localdomain", None),
            Destination {
                callee: FunctionId::new("shop", "only-name-example").ok(),
                ..destination(DestinationKind::Request, "only.name.example", Some(80))
            },
        ]);
        let caller = "---\n{apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {name: cart, namespace: shop}, spec: {command: [c], \
                      callees: [203-0-113-7, api-example-com, only-name-example, stock]}}\n---\n{apiVersion: leno.dev/v1alpha1, kind: Function, \
                      metadata: {name: stock, namespace: shop}, spec: {command: [s]}}\n";
        assert!(text.contains("#   callees: [203-0-113-7, api-example-com, only-name-example, stock]"), "{text}");
        let loaded = leno_config::load_text("suggested.yaml".as_ref(), &(text.clone() + caller));
        let snapshot = loaded.unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
        let config = snapshot.function_config(&FunctionId::new("shop", "api-example-com").unwrap()).unwrap();
        let leno_model::Run::Egress(egress) = config.run else { panic!("it is outside") };
        assert_eq!(egress.http_port(80).unwrap().number, 443);
        assert_eq!(config.inbound.authorization.len(), 1);
    }

    #[test]
    fn hostile_texts_stay_texts() {
        let text = told(vec![
            destination(DestinationKind::Name, "a\nkind: Policy\n.example", None),
            destination(DestinationKind::Name, "a-b.example", None),
            destination(DestinationKind::Name, "a.b.example", None),
            destination(DestinationKind::Request, "[::]", Some(80)),
            destination(DestinationKind::Name, "cart.", None),
            Destination {
                paths: BTreeSet::from(["/a*".to_owned(), "/\u{1b}[2J\n- x".to_owned()]),
                ..destination(DestinationKind::Request, "api.example.com", Some(80))
            },
        ]);
        assert!(!text.contains('\u{1b}') && !text.contains("\nkind: Policy\n."), "{text}");
        let caller = "---\n{apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {name: cart, namespace: shop}, spec: {command: [c]}}\n";
        leno_config::load_text("suggested.yaml".as_ref(), &(text.clone() + caller))
            .unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
        assert!(!text.contains("/a*"), "it would match more than was asked: {text}");
    }
}
