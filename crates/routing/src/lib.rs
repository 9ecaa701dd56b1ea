//! Routes: finds the rule that a request follows, and applies it to the head. Pure functions of
//! checked routes ([`leno_model::HttpRoute`]) and request heads.
//!
//! A [`RouteTable`] has the rules for one host, or for one callee. Its order is that of the Gateway
//! API; [`RouteTable`] describes the places that the specification leaves open.
#![forbid(unsafe_code)]

mod automaton;
mod backend;
mod capacity;
pub mod cors;
mod entry;
mod group;
mod headers;
mod pattern;
#[cfg(any(test, fuzzing))]
pub mod reference;
mod request;
mod rewrite;
mod rule_set;
mod table;
mod tree;
mod values;

pub use automaton::check_regex;
pub use backend::{is_mirrored, pick};
pub use capacity::{ExcessRule, GatewaySite, call_tables, excess, gateway_tables, host_pattern};
pub use entry::Entry;
pub use headers::modify;
pub use request::RequestParts;
pub use rewrite::{BadRewrite, RequestOrigin, redirect, rewritten_path};
pub use table::{BadPattern, RouteTable, check_path};
