//! Cases behind a route: the request comes to another host and path, and the route rewrites it into
//! that of the case.

use super::table::{Case, Group};
use leno_model::{PathChange, PathPattern};
use leno_policy::host::normal_authority;
use leno_policy::path::normalise;
use leno_routing::rewritten_path;

/// The prefix that the route removes.
const PREFIX: &str = "/elsewhere";

/// The case with the request as the route leaves it; `None`: no route makes it, because a request
/// with this host or path comes to no route, or the function gets paths as received.
pub(crate) fn behind_a_route(group: &Group, case: &Case) -> Option<Case> {
    if group.function.contains_key("paths") {
        return None;
    }
    let mut rewritten = case.clone();
    let (path, query) = case.request.path.split_at(case.request.path.find('?').unwrap_or(case.request.path.len()));
    let asked = [PREFIX, path].concat();
    let asked = normalise(&asked).ok().filter(|asked| path.starts_with('/') && asked.starts_with(PREFIX))?;
    let (change, pattern) = (PathChange::Prefix("/".to_owned()), PathPattern::Prefix(PREFIX.to_owned()));
    rewritten.request.path = rewritten_path(&change, &pattern, &asked).expect("a normal path") + query;
    rewritten.request.authority = normal_authority(&case.request.authority)?.into_owned();
    Some(rewritten)
}
