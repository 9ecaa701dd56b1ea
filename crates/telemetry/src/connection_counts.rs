//! Counts of connections without requests, by caller and callee, for `/metrics`. Both are functions
//! that the configuration names, and those that are gone are forgotten, so there are no more of
//! these than pairs of them.

use super::exposition::{Collector, Exposition, Family};
use super::families;
use leno_model::FunctionId;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Caller and callee.
type Pair = (FunctionId, FunctionId);

/// Connections and bytes since the node started.
#[derive(Debug, Default)]
pub struct Connections(Mutex<BTreeMap<Pair, Totals>>);

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    opened: u64,
    closed: u64,
    refused: u64,
    sent: u64,
    received: u64,
}

impl Connections {
    /// A connection was opened.
    pub fn opened(&self, caller: &FunctionId, callee: &FunctionId) {
        self.change(caller, callee, |totals| totals.opened += 1);
    }

    /// A connection has ended; the bytes that came from the caller, and that went to it.
    pub fn closed(&self, caller: &FunctionId, callee: &FunctionId, [sent, received]: [u64; 2]) {
        self.change(caller, callee, |totals| {
            totals.closed += 1;
            totals.sent += sent;
            totals.received += received;
        });
    }

    /// A connection was refused, or there was no endpoint for it.
    pub fn refused(&self, caller: &FunctionId, callee: &FunctionId) {
        self.change(caller, callee, |totals| totals.refused += 1);
    }

    fn change(&self, caller: &FunctionId, callee: &FunctionId, change: impl FnOnce(&mut Totals)) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry((caller.clone(), callee.clone())).or_default());
    }

    /// Forgets functions that were removed.
    pub fn retain(&self, keep: impl Fn(&FunctionId) -> bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(caller, callee), _| keep(caller) && keep(callee));
    }

    /// The counts, for `/metrics`.
    pub fn scrape(&self) -> Scrape {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Scrape(all.iter().map(|(pair, totals)| (pair.clone(), *totals)).collect())
    }
}

/// The counts at one moment.
#[derive(Debug)]
pub struct Scrape(Vec<(Pair, Totals)>);

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        type Value = fn(&Totals) -> u64;
        let counters: [(&'static Family<5>, Value); 5] = [
            (&families::TCP_OPENED, |totals| totals.opened),
            (&families::TCP_CLOSED, |totals| totals.closed),
            (&families::TCP_RECEIVED, |totals| totals.sent),
            (&families::TCP_SENT, |totals| totals.received),
            (&families::TCP_REFUSED, |totals| totals.refused),
        ];
        for (family, value) in counters {
            exposition.family(family).samples(self.0.iter().map(|((caller, callee), totals)| {
                let [caller, callee] = [caller, callee].map(|of| [of.name.as_str(), of.namespace.as_str()]);
                (["source", caller[0], caller[1], callee[0], callee[1]], value(totals))
            }));
        }
    }
}
