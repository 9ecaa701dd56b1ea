//! Listings of what functions reach besides other functions: external services, and the memory of
//! chains.

use super::Admin;
use leno_model::size::Size;
use leno_model::{ChainLink, FunctionId, Run};
use leno_proxy::links::large_pages;
use leno_proxy::{FunctionEntry, NodeSnapshot, channels};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

impl Admin {
    /// External services and their callers.
    pub(super) fn externals(&self) -> Value {
        let snapshot = self.node.snapshot.load();
        let mut rows: Vec<(&str, Value)> = Vec::new();
        for entry in snapshot.functions.values() {
            let Run::Egress(egress) = &entry.config.run else { continue };
            let calls =
                |other: &&Arc<FunctionEntry>| other.config.callees.iter().any(|callee| callee.id == entry.config.id);
            let mut callers: Vec<&str> =
                snapshot.functions.values().filter(calls).map(|caller| &*caller.name).collect();
            callers.sort_unstable();
            let addresses = egress.addresses.iter().map(|block| format!("{}/{}", block.address, block.prefix));
            let load = self.node.policy_state.health.get(&entry.config.id).load(1, Instant::now());
            let row = json!({
                "external": &*entry.name,
                "hosts": egress.hosts,
                "addresses": addresses.collect::<Vec<_>>(),
                "ports": egress.ports.iter().map(|port| format!("{} {}", port.number, json!(port.protocol).as_str().unwrap_or_default())).collect::<Vec<_>>(),
                "callers": callers,
                "connections": load.connections,
            });
            rows.push((&entry.name, row));
        }
        rows.sort_by(|one, other| one.0.cmp(other.0));
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// Functions of chains, by chain.
    pub(super) fn chains(&self) -> Value {
        let snapshot = self.node.snapshot.load();
        let mut rows: Vec<((&str, &str), Value)> = Vec::new();
        for entry in snapshot.functions.values() {
            let Some(ChainLink { chain, memory, large_pages, to, .. }) = &entry.config.chain else { continue };
            let row = json!({
                "chain": chain,
                "function": &*entry.name,
                "protocol": entry.config.protocol,
                "memory": Size(*memory).to_string(),
                "large_pages": large_pages.then(|| large_pages::check().map_or_else(|error| error.to_string(), |()| "asked for".to_owned())),
                "to": to.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "direct": self.direct(&snapshot, &entry.config.id, to),
            });
            rows.push(((chain, &entry.name), row));
        }
        rows.sort_by_key(|(place, _)| *place);
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// For each callee, whether calls bypass the sidecar, or why not.
    fn direct(&self, snapshot: &NodeSnapshot, caller: &FunctionId, to: &[FunctionId]) -> Value {
        let channels = &self.node.channels;
        let told = |callee: &FunctionId| {
            let words = channels::in_words(snapshot, caller, callee);
            let told = match words.as_str() {
                "direct" if !channels.are_made() => "the kernel of this node makes no channels".to_owned(),
                "direct" => {
                    let (open, counts) = channels.of(caller, callee);
                    format!("direct, {open} open, {} calls", counts.calls)
                }
                _ => words,
            };
            (callee.to_string(), Value::String(told))
        };
        Value::Object(to.iter().map(told).collect())
    }
}
