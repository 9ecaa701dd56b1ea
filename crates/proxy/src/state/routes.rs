//! The gateway's routes, which map host and path to the exposed function, and the routes of
//! documents.

pub(crate) mod calls;
pub(crate) mod faults;
pub(crate) mod gateway;
pub(crate) mod rules;
pub(crate) mod streams;

use super::function::FunctionEntry;
use super::shards::Shards;
use http::{HeaderMap, Method};
use leno_model::{HttpRouteKind, PathPattern, RouteMatch};
use leno_policy::host::of_authority;
use leno_routing::{Entry, RequestParts, RouteTable, host_pattern};
use std::sync::{Arc, LazyLock};

/// The functions that are exposed at a host, by path prefix.
type Exposed = RouteTable<Arc<FunctionEntry>>;

/// The routes of the gateway. The more specific host wins (exact, then the longest `*.suffix`, then
/// `*`), then the longer path prefix. Copies share their unchanged parts.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    exact: Shards<String, Exposed>,
    /// By suffix, including its leading dot.
    suffixes: Shards<String, Exposed>,
    any: Exposed,
}

/// The hosts of a listener or route: exact, below a suffix (with its leading dot), or all (empty).
#[derive(Debug, PartialEq, Eq)]
struct HostPattern(Box<str>);

impl HostPattern {
    /// `host`: exact, `*.suffix`, or `*`.
    fn new(host: &str) -> Self {
        Self(host_pattern(host).trim_start_matches('*').into())
    }

    fn serves(&self, host: &str) -> bool {
        match self.0.chars().next() {
            None => true,
            Some('.') => host.ends_with(&*self.0),
            Some(_) => *host == *self.0,
        }
    }

    /// An exact host comes before a longer suffix, and that before a shorter one.
    fn precision(&self) -> (bool, usize) {
        (!self.0.starts_with('.') && !self.0.is_empty(), self.0.len())
    }
}

impl Routes {
    /// Adds the routes of a function.
    pub fn insert(&mut self, entry: &Arc<FunctionEntry>) {
        for expose in &entry.config.expose {
            for host in &expose.hosts {
                // Of two functions with the same path, which the configuration refuses anyway, the
                // name decides.
                let exposed = Entry {
                    route: entry.name.to_string(),
                    kind: HttpRouteKind::Http,
                    pattern: prefix(&expose.path),
                    value: entry.clone(),
                };
                self.change(host, |table| {
                    if let Err(error) = table.insert(exposed) {
                        tracing::error!("{host}{} is not exposed: {error}", expose.path);
                    }
                });
            }
        }
    }

    /// Removes the routes of a function.
    pub fn remove(&mut self, entry: &Arc<FunctionEntry>) {
        for expose in &entry.config.expose {
            let pattern = prefix(&expose.path);
            for host in &expose.hosts {
                self.change(host, |table| {
                    table.remove(HttpRouteKind::Http, &pattern, |other| Arc::ptr_eq(other, entry));
                });
            }
        }
    }

    fn change(&mut self, host: &str, change: impl FnOnce(&mut Exposed)) {
        let host = host_pattern(host);
        let (tables, key) = match host.strip_prefix('*') {
            Some("") => return change(&mut self.any),
            Some(suffix) => (&mut self.suffixes, suffix.to_owned()),
            None => (&mut self.exact, host),
        };
        let mut table = tables.remove(&key).unwrap_or_default();
        change(&mut table);
        if !table.is_empty() {
            tables.insert(key, table);
        }
    }

    /// The function exposed at this authority and normalised path (without query).
    pub fn find(&self, authority: &str, path: &str) -> Option<&Arc<FunctionEntry>> {
        let host = of_authority(authority)?;
        let mut owner = None;
        if let Some(table) = self.exact.get(host.as_ref())
            && let Some(entry) = pick(table, path, &mut owner)
        {
            return Some(entry);
        }
        if !self.suffixes.is_empty() {
            for (dot, _) in host.match_indices('.') {
                if let Some(table) = self.suffixes.get(&host[dot..])
                    && let Some(entry) = pick(table, path, &mut owner)
                {
                    return Some(entry);
                }
            }
        }
        pick(&self.any, path, &mut owner)
    }
}

/// The function of a host that has the path. A host belongs to a namespace: paths that its functions
/// do not have never go to another namespace's wildcard.
fn pick<'r>(table: &'r Exposed, path: &str, owner: &mut Option<&'r str>) -> Option<&'r Arc<FunctionEntry>> {
    static HEADERS: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);
    let request = RequestParts { authority: "", path, query: None, method: &Method::GET, headers: &HEADERS };
    let found = table.find(&request, |entry| owner.is_none_or(|owner| entry.config.id.namespace == *owner));
    if found.is_none() && owner.is_none() {
        *owner = table.any_entry().map(|exposed| &*exposed.value.config.id.namespace);
    }
    found.map(|exposed| &exposed.value)
}

/// The paths at which a function is exposed.
fn prefix(path: &str) -> RouteMatch {
    let path = PathPattern::Prefix(path.trim_end_matches('/').to_owned());
    RouteMatch { path, method: String::new(), headers: Vec::new(), query: Vec::new() }
}

impl FunctionEntry {
    /// Whether it is exposed at this authority and normalised path (without query).
    pub(crate) fn is_exposed(&self, authority: &str, path: &str) -> bool {
        let Some(host) = of_authority(authority) else { return false };
        let matches = |pattern: &str| {
            let pattern = host_pattern(pattern);
            pattern.strip_prefix('*').map_or(*host == *pattern, |suffix| host.ends_with(suffix))
        };
        self.config.expose.iter().any(|expose| {
            is_below(path, expose.path.trim_end_matches('/')) && expose.hosts.iter().any(|host| matches(host))
        })
    }
}

/// Whether `path` is `prefix` or below it, by segments.
fn is_below(path: &str, prefix: &str) -> bool {
    prefix.is_empty() || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use leno_model::Expose;
    use leno_sandbox::Engine;

    #[test]
    fn the_paths_that_a_host_leaves_go_to_no_other_namespace() {
        let mut routes = Routes::default();
        for (name, host, path) in [
            ("shop/api", "shop.example", "/api"),
            ("shop/page", "*.example", "/"),
            ("blog/post", "blog.example", "/post"),
            ("rest/rest", "*", "/"),
        ] {
            let mut config = testing::config(name);
            config.expose = vec![Expose { hosts: vec![host.into()], path: path.into() }];
            routes.insert(&Arc::new(FunctionEntry::load(&Engine::inline(), config)));
        }
        for (host, path, function) in [
            ("shop.example", "/api/1", Some("shop/api")),
            ("shop.example", "/", Some("shop/page")),
            ("blog.example", "/post/1", Some("blog/post")),
            ("blog.example", "/", None),
            ("other.example", "/", Some("shop/page")),
            ("other", "/", Some("rest/rest")),
        ] {
            let found = routes.find(host, path).map(|entry| entry.config.id.to_string());
            assert_eq!(found.as_deref(), function, "{host}{path}");
        }
    }

    #[test]
    fn a_function_is_exposed_where_the_gateway_finds_it() {
        let mut config = testing::config("shop/orders");
        let hosts = |hosts: &[&str]| hosts.iter().map(ToString::to_string).collect();
        config.expose = vec![
            Expose { hosts: hosts(&["Shop.example", "*.Shops.example"]), path: "/orders/".into() },
            Expose { hosts: hosts(&["all.example"]), path: "/".into() },
        ];
        let entry = Arc::new(FunctionEntry::load(&Engine::inline(), config.clone()));
        let mut routes = Routes::default();
        routes.insert(&entry);
        let mut exposed = 0;
        for host in [
            "shop.example",
            "SHOP.example",
            "Shop.Example.:8080",
            "a.shops.example",
            "a.b.Shops.example",
            "shops.example",
            "all.example",
            "x",
        ] {
            for path in ["/", "/orders", "/orders/1", "/ordersx", ""] {
                let found = routes.find(host, path).is_some();
                assert_eq!(entry.is_exposed(host, path), found, "{host} {path}");
                exposed += usize::from(found);
            }
        }
        assert_eq!(exposed, 5 * 2 + 5);
        config.expose = vec![Expose { hosts: hosts(&["*"]), path: "/".into() }];
        assert!(FunctionEntry::load(&Engine::inline(), config).is_exposed("anything", "/"));
    }
}
