//! The refused destinations of functions, for `leno suggest egress`.
//!
//! Functions choose their destinations, so the number of destinations and the details of each are
//! bounded. Those beyond the bounds are only counted.

use super::exposition::{Collector, Exposition};
use super::families;
use super::request_line::cut;
use leno_model::FunctionId;
use leno_policy::host::of_authority;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// Limit on the destinations of one function.
const MOST: usize = 128;
/// Limit on the functions.
const MOST_FUNCTIONS: usize = 4096;
/// Limit on the methods of one destination.
const MOST_METHODS: usize = 8;
/// Limit on the paths of one destination.
const MOST_PATHS: usize = 8;

/// How a function tried to reach a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DestinationKind {
    /// By a request.
    Request,
    /// By a connection without requests.
    Connection,
    /// By a look-up of its name.
    Name,
}

impl DestinationKind {
    fn label(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Connection => "connection",
            Self::Name => "name",
        }
    }
}

/// A destination that a function was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// How the function tried to reach it.
    pub asked: DestinationKind,
    /// Host or address, in lower case.
    pub host: String,
    /// Port; `None`: the function only looked its name up.
    pub port: Option<u16>,
    /// The callee, if the function may call it, but its policies refused.
    pub callee: Option<FunctionId>,
    /// How often it was refused.
    pub count: u64,
    /// Methods of the requests, a few.
    pub methods: BTreeSet<String>,
    /// Paths of the requests, a few.
    pub paths: BTreeSet<String>,
}

/// A destination, and the function that was refused it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefusedDestination {
    /// The function that asked.
    pub function: FunctionId,
    /// The destination.
    #[serde(flatten)]
    pub destination: Destination,
}

/// Identifies a destination of a function.
type Key = (DestinationKind, String, Option<u16>, Option<FunctionId>);

/// All refused destinations since the node started.
#[derive(Debug, Default)]
pub struct Destinations(Mutex<BTreeMap<FunctionId, OfFunction>>);

#[derive(Debug, Default)]
struct OfFunction {
    known: BTreeMap<Key, Destination>,
    counts: BTreeMap<DestinationKind, u64>,
}

impl Destinations {
    /// Counts a refused request.
    pub fn request(
        &self,
        caller: &FunctionId,
        callee: Option<&FunctionId>,
        (host, port): (&str, u16),
        (method, path): (&str, &str),
    ) {
        self.add(caller, (DestinationKind::Request, host, Some(port), callee), |destination| {
            remember(&mut destination.methods, method, MOST_METHODS);
            remember(&mut destination.paths, path, MOST_PATHS);
        });
    }

    /// Counts a refused connection.
    pub fn connection(&self, caller: &FunctionId, callee: Option<&FunctionId>, host: &str, port: u16) {
        self.add(caller, (DestinationKind::Connection, host, Some(port), callee), |_| ());
    }

    /// Counts a question about a name that has no address.
    pub fn name(&self, caller: &FunctionId, name: &str) {
        self.add(caller, (DestinationKind::Name, name, None, None), |_| ());
    }

    fn add(
        &self,
        caller: &FunctionId,
        (asked, host, port, callee): (DestinationKind, &str, Option<u16>, Option<&FunctionId>),
        learn: impl FnOnce(&mut Destination),
    ) {
        let mut functions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if functions.len() >= MOST_FUNCTIONS && !functions.contains_key(caller) {
            return;
        }
        let function = functions.entry(caller.clone()).or_default();
        *function.counts.entry(asked).or_default() += 1;
        let mut host: Box<str> = of_authority(host).unwrap_or(Cow::Borrowed(host)).into();
        cut(&mut host);
        let key = (asked, String::from(host), port, callee.cloned());
        if function.known.len() >= MOST && !function.known.contains_key(&key) {
            return;
        }
        let new = || Destination {
            asked,
            host: key.1.clone(),
            port,
            callee: callee.cloned(),
            count: 0,
            methods: BTreeSet::new(),
            paths: BTreeSet::new(),
        };
        let destination = function.known.entry(key.clone()).or_insert_with(new);
        destination.count += 1;
        learn(destination);
    }

    /// Those of one function, and how many refusals are of none of them: it had too many.
    pub fn of(&self, function: &FunctionId) -> (Vec<Destination>, u64) {
        let functions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(function) = functions.get(function) else { return (Vec::new(), 0) };
        let known: Vec<Destination> = function.known.values().cloned().collect();
        let reported: u64 = known.iter().map(|destination| destination.count).sum();
        (known, function.counts.values().sum::<u64>() - reported)
    }

    /// Those of all functions.
    pub fn all(&self) -> Vec<RefusedDestination> {
        let functions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(function, known): (&FunctionId, &OfFunction)| {
            let refused = known.known.values().cloned();
            refused
                .map(|destination| RefusedDestination { function: function.clone(), destination })
                .collect::<Vec<_>>()
        };
        functions.iter().flat_map(of).collect()
    }

    /// Forgets functions that are gone for good.
    pub fn retain(&self, keep: impl Fn(&FunctionId) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|function, _| keep(function));
    }

    /// The counts, for `/metrics`.
    pub fn scrape(&self) -> Scrape {
        let functions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(id, function): (&FunctionId, &OfFunction)| {
            let id = id.to_string();
            function.counts.iter().map(move |(asked, count)| (id.clone(), *asked, *count)).collect::<Vec<_>>()
        };
        Scrape(functions.iter().flat_map(of).collect())
    }
}

fn remember(known: &mut BTreeSet<String>, text: &str, most: usize) {
    if known.len() < most && !known.contains(text) {
        let mut text: Box<str> = text.into();
        cut(&mut text);
        known.insert(text.into());
    }
}

/// The counts at one moment.
#[derive(Debug)]
pub struct Scrape(Vec<(String, DestinationKind, u64)>);

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        let refused = self.0.iter().map(|(function, asked, count)| ([function.as_str(), asked.label()], *count));
        exposition.family(&families::DESTINATIONS_REFUSED).samples(refused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_function_asks_for_is_counted_and_bounded() {
        let destinations = Destinations::default();
        let id = FunctionId::new("shop", "cart").unwrap();
        for number in 0..2 * MOST {
            destinations.name(&id, &format!("n{number}.example"));
        }
        destinations.name(&id, "N0.example");
        let (known, beyond) = destinations.of(&id);
        assert_eq!((known.len(), beyond), (MOST, MOST as u64));
        assert_eq!(known.iter().find(|known| known.host == "n0.example").unwrap().count, 2);

        let other = FunctionId::new("shop", "stock").unwrap();
        for number in 0..2 * MOST_PATHS {
            destinations.request(&other, None, ("api.example", 443), ("GET", &format!("/{number}")));
        }
        destinations.connection(&other, None, "192.0.2.7", 5432);
        let (known, beyond) = destinations.of(&other);
        assert_eq!((known.len(), beyond), (2, 0));
        assert_eq!((known[0].count, known[0].paths.len()), (2 * MOST_PATHS as u64, MOST_PATHS));
        destinations.retain(|function| *function == other);
        assert!(destinations.of(&id).0.is_empty() && !destinations.of(&other).0.is_empty());
    }
}
