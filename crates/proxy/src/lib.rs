//! Proxies requests from the socket to their upstream and back.
//!
//! The modules form layers. Each module uses only those below it in this table:
//!
//! | module | task |
//! |---|---|
//! | `listener` | accepts connections, terminates TLS, identifies the peer, detects the protocol |
//! | `l4` | TCP connections without HTTP requests: find the callee, judge, connect, copy bytes |
//! | `pipeline` | one request: route, judge, forward, judge the response; only `judge` touches the sandbox |
//! | `fetch` | downloads the key sets and modules that the configuration names by URL |
//! | `state` | the shared state of a node's workers: snapshot, limits, tokens, health, credentials, instances |
//!
//! [`serve`] starts the workers of a [`Node`].
#![forbid(unsafe_code)]

mod fetch;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod l4;
mod listener;
mod pipeline;
mod state;
#[cfg(test)]
mod testing;

pub use fetch::download::Download;
pub use fetch::jwks;
pub use fetch::modules::ModuleFetcher;
pub use l4::connection_rules;
pub use listener::{
    Addresses, GatewayPorts, Handle, Interceptor, Options, PodListeners, PortError, ServeError, serve, take_over,
};
pub use pipeline::judge;
pub use pipeline::judge::replay;
pub use pipeline::open::GRACE;
pub use state::component::{ComponentError, ComponentSecrets};
pub use state::egress_guard::{EgressError, EgressGuard, Requester};
pub use state::function::{FunctionEntry, ProgramError};
pub use state::machines::Machines;
pub use state::node::Node;
pub use state::removed_functions::RemovedFunctions;
pub use state::routes::calls::CallTables;
pub use state::routes::gateway::{GatewayTables, OpenedListener, PortProtocol};
pub use state::snapshot::{Change as SnapshotChange, NodeSnapshot};
pub use state::{
    addresses, channels, credential, destinations, endpoints, extension, health, instances, kernel, limits, links,
    modules, pods, policy_state, shards, signature, tokens,
};
