//! Routes of calls: those of [`leno_model::Callee`].

use super::rules::{self, Rules};
use leno_model::{CallRoute, Callee, FunctionId};
use leno_routing::{BadPattern, call_tables};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The tables of a node for calls. Callers with the same routes to a callee share one.
#[derive(Debug, Default)]
pub struct CallTables(Mutex<HashMap<FunctionId, Vec<Weak<CalleeTable>>>>);

/// The rules of a caller's calls.
#[derive(Debug, Default)]
pub(crate) struct CallRoutes {
    by_callee: HashMap<FunctionId, Arc<CalleeTable>>,
    /// The longest time that a call may take by a rule.
    pub longest: Duration,
}

/// The rules of calls to one callee, or why they cannot be used.
type Usable = Result<Rules, BadPattern>;

/// The rules of calls to one callee, by port.
#[derive(Debug)]
struct CalleeTable {
    /// The routes that it was made of.
    routes: Arc<[CallRoute]>,
    /// For the ports that routes name.
    named: HashMap<u16, Usable>,
    /// For all others; `None`: there are none.
    others: Option<Usable>,
    longest: Duration,
}

impl CallRoutes {
    /// The rules of calls to these callees. Their routes become those of the shared tables.
    pub(crate) fn new(callees: &mut [Callee], tables: &CallTables) -> Self {
        let mut routes = Self::default();
        for callee in callees.iter_mut().filter(|callee| !callee.routes.is_empty()) {
            let table = tables.of(&callee.id, &callee.routes);
            callee.routes = table.routes.clone();
            routes.longest = routes.longest.max(table.longest);
            routes.by_callee.insert(callee.id.clone(), table);
        }
        routes
    }

    /// The rules of calls to this port of a callee; `None`: its calls follow no routes.
    pub(crate) fn of(&self, callee: &FunctionId, port: u16) -> Option<&Usable> {
        let table = self.by_callee.get(callee)?;
        table.named.get(&port).or(table.others.as_ref())
    }
}

impl CallTables {
    /// The table of these routes.
    fn of(&self, callee: &FunctionId, routes: &Arc<[CallRoute]>) -> Arc<CalleeTable> {
        if let Some(table) = self.known(callee, routes, None) {
            return table;
        }
        // Not under the lock: other functions are loaded meanwhile.
        let made = Arc::new(CalleeTable::new(&callee.namespace, routes.clone()));
        self.known(callee, routes, Some(&made)).unwrap_or(made)
    }

    /// The table of these routes that callers have. If none has it: keeps `new`.
    fn known(
        &self,
        callee: &FunctionId,
        routes: &Arc<[CallRoute]>,
        new: Option<&Arc<CalleeTable>>,
    ) -> Option<Arc<CalleeTable>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(callee).into_iter().flatten().filter_map(Weak::upgrade);
        let found = known.into_iter().find(|table| table.routes == *routes);
        if let (None, Some(new)) = (&found, new) {
            all.retain(|_, tables| {
                tables.retain(|table| table.strong_count() > 0);
                !tables.is_empty()
            });
            all.entry(callee.clone()).or_default().push(Arc::downgrade(new));
        }
        found
    }
}

impl CalleeTable {
    fn new(namespace: &str, routes: Arc<[CallRoute]>) -> Self {
        let rules: Vec<_> = routes.iter().map(|call| rules::rules(&call.route)).collect();
        let longest = rules.iter().flatten().filter_map(|rule| rule.longest()).max().unwrap_or_default();
        let all: Vec<&CallRoute> = routes.iter().collect();
        let mut by_port: HashMap<Option<u16>, Usable> = call_tables(namespace, &all)
            .into_iter()
            .map(|(port, routes)| (port, Rules::new(routes.into_iter().flat_map(|route| &rules[route]))))
            .collect();
        let others = by_port.remove(&None);
        let named = by_port.into_iter().filter_map(|(port, rules)| Some((port?, rules))).collect();
        Self { routes, named, others, longest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_model::{HttpRoute, HttpRouteKind, Precedence};

    fn callee(routes: &[&str]) -> Callee {
        let route = |name: &&str| CallRoute {
            route: HttpRoute {
                name: (*name).to_owned(),
                kind: HttpRouteKind::Http,
                precedence: Precedence::MostSpecific,
                rules: Vec::new(),
            },
            port: None,
        };
        let id: FunctionId = "shop/stock".parse().unwrap();
        Callee {
            identity: "spiffe://test.example/ns/shop/sa/stock".parse().unwrap(),
            id,
            hosts: Vec::new(),
            ports: Vec::new(),
            addresses: Vec::new(),
            routes: routes.iter().map(route).collect(),
        }
    }

    #[test]
    fn callers_with_the_same_routes_share_a_table() {
        let tables = CallTables::default();
        let load = |routes: &[&str]| {
            let mut callees = [callee(routes)];
            let loaded = CallRoutes::new(&mut callees, &tables);
            let [callee] = callees;
            (loaded.by_callee[&callee.id].clone(), callee.routes)
        };
        let (one, routes) = load(&["shop/a", "shop/b"]);
        let (same, same_routes) = load(&["shop/a", "shop/b"]);
        assert!(Arc::ptr_eq(&one, &same) && Arc::ptr_eq(&routes, &same_routes));
        let (consumers, _) = load(&["blog/a"]);
        assert!(!Arc::ptr_eq(&one, &consumers));
        assert_eq!(tables.0.lock().unwrap().values().map(Vec::len).sum::<usize>(), 2);
        drop((one, same, routes, same_routes));
        let (next, _) = load(&["shop/c"]);
        assert_eq!(tables.0.lock().unwrap().values().map(Vec::len).sum::<usize>(), 2, "the unused one has gone");
        drop((next, consumers));
    }
}
