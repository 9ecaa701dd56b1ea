//! The gateway's routes, which map host and path to the exposed function, and the routes of
//! documents.

pub(crate) mod calls;
pub(crate) mod gateway;
pub(crate) mod rules;

use super::function::FunctionEntry;
use super::shards::Shards;
use leno_policy::host::{of_authority, of_document};
use std::sync::Arc;

/// The routes of the gateway. The more specific host wins (exact, then the longest `*.suffix`, then
/// `*`), then the longer path prefix. Copies share their unchanged parts.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    exact: Shards<String, Arc<[PathRoute]>>,
    /// By suffix, including its leading dot.
    suffixes: Shards<String, Arc<[PathRoute]>>,
    any: Arc<[PathRoute]>,
}

#[derive(Clone, Debug)]
struct PathRoute {
    /// Path prefix without a trailing slash; empty: every path.
    prefix: Arc<str>,
    entry: Arc<FunctionEntry>,
}

impl Routes {
    /// Adds the routes of a function.
    pub fn insert(&mut self, entry: &Arc<FunctionEntry>) {
        for expose in &entry.config.expose {
            let exposed = PathRoute { prefix: expose.path.trim_end_matches('/').into(), entry: entry.clone() };
            for host in &expose.hosts {
                self.change(host, |list| {
                    let at = list.partition_point(|other| other.comes_before(&exposed));
                    list.insert(at, exposed.clone());
                });
            }
        }
    }

    /// Removes the routes of a function.
    pub fn remove(&mut self, entry: &Arc<FunctionEntry>) {
        for host in entry.config.expose.iter().flat_map(|expose| &expose.hosts) {
            self.change(host, |list| list.retain(|exposed| !Arc::ptr_eq(&exposed.entry, entry)));
        }
    }

    fn change(&mut self, host: &str, change: impl FnOnce(&mut Vec<PathRoute>)) {
        let (lists, key) = match host.strip_prefix('*') {
            Some("") => {
                let mut list = self.any.to_vec();
                change(&mut list);
                self.any = list.into();
                return;
            }
            Some(suffix) => (&mut self.suffixes, suffix_key(suffix)),
            None => (&mut self.exact, normal(host)),
        };
        let mut list = lists.get(&key).map(|list| list.to_vec()).unwrap_or_default();
        change(&mut list);
        if list.is_empty() {
            lists.remove(&key);
        } else {
            lists.insert(key, list.into());
        }
    }

    /// The function exposed at this authority and normalised path (without query).
    pub fn find(&self, authority: &str, path: &str) -> Option<&Arc<FunctionEntry>> {
        let host = of_authority(authority)?;
        let mut owner = None;
        if let Some(list) = self.exact.get(host.as_ref())
            && let Some(entry) = pick(list, path, &mut owner)
        {
            return Some(entry);
        }
        if !self.suffixes.is_empty() {
            for (dot, _) in host.match_indices('.') {
                if let Some(list) = self.suffixes.get(&host[dot..])
                    && let Some(entry) = pick(list, path, &mut owner)
                {
                    return Some(entry);
                }
            }
        }
        pick(&self.any, path, &mut owner)
    }
}

/// The function of a host's list that has the path. A host belongs to a namespace: paths that its
/// functions do not have never go to another namespace's wildcard.
fn pick<'r>(list: &'r [PathRoute], path: &str, owner: &mut Option<&'r str>) -> Option<&'r Arc<FunctionEntry>> {
    let mut routes = list.iter().filter(|route| is_below(path, &route.prefix));
    let found = match owner {
        None => routes.next(),
        Some(owner) => routes.find(|route| route.entry.config.id.namespace == **owner),
    };
    if found.is_none() && owner.is_none() {
        *owner = list.first().map(|route| &*route.entry.config.id.namespace);
    }
    found.map(|route| &route.entry)
}

impl FunctionEntry {
    /// Whether it is exposed at this authority and normalised path (without query).
    pub(crate) fn is_exposed(&self, authority: &str, path: &str) -> bool {
        let Some(host) = of_authority(authority) else { return false };
        let matches = |pattern: &str| match pattern.strip_prefix('*') {
            Some(suffix) => host.ends_with(&suffix_key(suffix)),
            None => *host == normal(pattern),
        };
        self.config.expose.iter().any(|expose| {
            is_below(path, expose.path.trim_end_matches('/')) && expose.hosts.iter().any(|host| matches(host))
        })
    }
}

impl PathRoute {
    /// The longer path comes first. The name decides only between two functions with the same path,
    /// which the configuration refuses anyway.
    fn comes_before(&self, other: &Self) -> bool {
        let order = other.prefix.len().cmp(&self.prefix.len()).then_with(|| self.entry.name.cmp(&other.entry.name));
        order.is_lt()
    }
}

/// Whether `path` is `prefix` or below it, by segments.
fn is_below(path: &str, prefix: &str) -> bool {
    prefix.is_empty() || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The form in which configured hosts are compared. The compiler writes this form; an older control
/// plane may not.
fn normal(host: &str) -> String {
    of_document(host).unwrap_or_else(|| host.to_ascii_lowercase())
}

/// The same for the part of a wildcard after `*`, with its dot.
fn suffix_key(suffix: &str) -> String {
    suffix.strip_prefix('.').map_or_else(String::new, |name| [".", &normal(name)].concat())
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
