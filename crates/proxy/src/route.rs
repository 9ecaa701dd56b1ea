//! Pure matches: host and path to the function that the gateway exposes there, host name to the callee that a caller means by it.

use crate::snapshot::FunctionEntry;
use leno_config::slice::Callee;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// What the gateway lets in. The more specific host wins (exact, then the longest `*.suffix`, then `*`), then the longer path prefix.
#[derive(Debug, Default)]
pub struct Routes {
    exact: HashMap<String, Vec<Route>>,
    /// By suffix with its leading dot.
    suffixes: HashMap<String, Vec<Route>>,
    any: Vec<Route>,
}

#[derive(Debug)]
struct Route {
    /// Without a trailing slash; empty: everything.
    prefix: String,
    entry: Arc<FunctionEntry>,
}

impl Routes {
    /// Collects what these functions expose.
    pub fn new<'a>(functions: impl Iterator<Item = &'a Arc<FunctionEntry>>) -> Self {
        let mut routes = Self::default();
        for entry in functions {
            for expose in &entry.slice.expose {
                for host in &expose.hosts {
                    let list = match host.strip_prefix('*') {
                        Some("") => &mut routes.any,
                        Some(suffix) => routes.suffixes.entry(suffix.to_ascii_lowercase()).or_default(),
                        None => routes.exact.entry(host.to_ascii_lowercase()).or_default(),
                    };
                    list.push(Route { prefix: expose.path.trim_end_matches('/').to_owned(), entry: entry.clone() });
                }
            }
        }
        let lists = routes.exact.values_mut().chain(routes.suffixes.values_mut()).chain([&mut routes.any]);
        for list in lists {
            // The name only settles what the configuration refuses anyway: two functions at one place.
            list.sort_by(|a, b| b.prefix.len().cmp(&a.prefix.len()).then_with(|| a.entry.name.cmp(&b.entry.name)));
        }
        routes
    }

    /// The function exposed at this host (without port) and normalised path (without query).
    pub fn find(&self, host: &str, path: &str) -> Option<&Arc<FunctionEntry>> {
        let host = lower(host);
        let pick = |list: &'_ Vec<Route>| list.iter().position(|route| is_below(path, &route.prefix));
        if let Some(list) = self.exact.get(host.as_ref())
            && let Some(index) = pick(list)
        {
            return Some(&list[index].entry);
        }
        if !self.suffixes.is_empty() {
            for (dot, _) in host.match_indices('.') {
                if let Some(list) = self.suffixes.get(&host[dot..])
                    && let Some(index) = pick(list)
                {
                    return Some(&list[index].entry);
                }
            }
        }
        pick(&self.any).map(|index| &self.any[index].entry)
    }
}

/// Whom `caller` means by this host name (without port); `None`: nobody that it may call.
pub fn callee<'a>(caller: &'a FunctionEntry, host: &str) -> Option<&'a Callee> {
    let host = lower(host);
    let index = caller.callees.get(host.strip_suffix('.').unwrap_or(&host))?;
    caller.slice.callees.get(*index)
}

/// Whether `path` is `prefix` or below it, by segments.
fn is_below(path: &str, prefix: &str) -> bool {
    prefix.is_empty() || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn lower(host: &str) -> Cow<'_, str> {
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}
