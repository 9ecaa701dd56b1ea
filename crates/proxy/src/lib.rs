//! Carries one request from the socket to its upstream and back.
//!
//! The code stands in rooms, and each room uses only those below it:
//!
//! | room | what happens in it |
//! |---|---|
//! | `listener` | accepts connections, ends TLS, finds out who speaks and how |
//! | `corridor` | the way of one request: route, judge, forward, judge the response; `judge` alone touches the sandbox |
//! | `fetch` | gets key sets and modules that the configuration names by address |
//! | `state` | what all workers of a node share: snapshot, ledger, credentials, instances |
//! | `telemetry` | what is told of each exchange: metrics, access log, spans, recent records |
//! | `http` | heads, bodies and failures of HTTP, whoever exchanges them |
//! | `runtime` | tasks, clocks, connections of the node's own |
//!
//! [`serve`] starts the workers of a [`Node`].
#![forbid(unsafe_code)]

mod corridor;
mod fetch;
mod http;
mod listener;
mod runtime;
mod state;
mod telemetry;
#[cfg(test)]
mod testing;

pub use corridor::judge;
pub use fetch::jwks;
pub use fetch::modules::ModuleFetcher;
pub use http::peer;
pub use listener::{Addresses, Handle, Options, ServeError, serve};
pub use runtime::random;
pub use state::function::FunctionEntry;
pub use state::node::Node;
pub use state::snapshot::NodeSnapshot;
pub use state::{credential, extension, instances, ledger, modules, shards, signature};
pub use telemetry::record::Record;
pub use telemetry::recorder::Recorder;
pub use telemetry::{Telemetry, metrics, ring, stats};
