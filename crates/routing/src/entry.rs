//! The entries of route tables.

use leno_model::{HttpRouteKind, RouteMatch};

/// One match of one rule.
#[derive(Debug)]
pub struct Entry<T> {
    /// Name of the route, `namespace/name`.
    pub route: String,
    /// Kind of the route.
    pub kind: HttpRouteKind,
    /// The requests that follow it.
    pub pattern: RouteMatch,
    /// The rule's value, by which a caller knows it.
    pub value: T,
}
