//! The routes of Gateway API documents.

use super::Snapshot;
use crate::route_status::RouteReport;
use leno_model::{CallRoute, Fault, FunctionId, GatewayRoutes};
use std::collections::{BTreeMap, BTreeSet};

/// All compiled routes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Routes {
    pub gateway: GatewayRoutes,
    /// The functions and Externals to which routes of the gateway lead.
    pub routed: BTreeSet<FunctionId>,
    /// Routes for calls, by callee. Those of each kind are sorted by name.
    pub calls: BTreeMap<FunctionId, Vec<ScopedRoute>>,
    /// Faults of requests that come to functions by `expose`.
    pub faults: BTreeMap<FunctionId, Vec<Fault>>,
    pub report: RouteReport,
}

/// A route for calls, and the callers whose calls follow it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScopedRoute {
    /// Only callers of this namespace, which is not the callee's; `None`: all.
    pub consumers: Option<String>,
    pub route: CallRoute,
}

impl Routes {
    /// The routes for a caller's requests to a callee. Those of the caller's namespace take the place
    /// of the others (GEP-1294).
    pub(crate) fn for_calls(&self, caller: &FunctionId, callee: &FunctionId) -> impl Iterator<Item = &ScopedRoute> {
        let all = self.calls.get(callee).map_or(&[][..], Vec::as_slice);
        let own = |route: &ScopedRoute| route.consumers.as_ref() == Some(&caller.namespace);
        let has_own = all.iter().any(own);
        all.iter().filter(move |route| if has_own { own(route) } else { route.consumers.is_none() })
    }
}

impl Snapshot {
    /// The listeners and routes of Gateway documents, which every gateway gets.
    pub fn gateway_routes(&self) -> &GatewayRoutes {
        &self.routes.gateway
    }

    /// The status of Gateways and routes.
    pub fn route_report(&self) -> &RouteReport {
        &self.routes.report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_model::{HttpRoute, HttpRouteKind, Precedence};

    #[test]
    fn routes_of_the_callers_namespace_take_the_place_of_the_others() {
        let scoped = |name: &str, consumers: Option<&str>| {
            let (kind, precedence) = (HttpRouteKind::Http, Precedence::MostSpecific);
            let route = HttpRoute { name: name.to_owned(), kind, precedence, rules: Vec::new() };
            ScopedRoute { consumers: consumers.map(str::to_owned), route: CallRoute { route, port: None } }
        };
        let stock: FunctionId = "shop/stock".parse().unwrap();
        let of_stock = [("blog/a", Some("blog")), ("blog/b", Some("blog")), ("shop/c", None), ("shop/d", None)];
        let of_stock = of_stock.map(|(name, consumers)| scoped(name, consumers)).to_vec();
        let routes = Routes { calls: BTreeMap::from([(stock.clone(), of_stock)]), ..Routes::default() };
        let names = |caller: &str, callee: &FunctionId| -> Vec<String> {
            let caller = caller.parse().unwrap();
            routes.for_calls(&caller, callee).map(|scoped| scoped.route.route.name.clone()).collect()
        };
        assert_eq!(names("blog/front", &stock), ["blog/a", "blog/b"]);
        assert_eq!(names("shop/cart", &stock), ["shop/c", "shop/d"]);
        assert_eq!(names("other/cart", &stock), ["shop/c", "shop/d"]);
        assert!(names("blog/front", &"shop/other".parse().unwrap()).is_empty());
    }
}
