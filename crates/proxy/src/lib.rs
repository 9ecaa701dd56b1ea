//! Carries one request from the socket to its upstream and back.
//!
//! The modules form layers. Each module uses only those below it in this table:
//!
//! | module | what it does |
//! |---|---|
//! | `listener` | accepts connections, terminates TLS, identifies the peer, detects the protocol |
//! | `corridor` | the path of one request: route, judge, forward, judge the response; only `judge` touches the sandbox |
//! | `fetch` | downloads the key sets and modules that the configuration names by URL |
//! | `state` | what all workers of a node share: snapshot, ledger, credentials, instances |
//!
//! [`serve`] starts the workers of a [`Node`].
#![forbid(unsafe_code)]

mod corridor;
mod fetch;
mod listener;
mod state;
#[cfg(test)]
mod testing;

pub use corridor::judge;
pub use corridor::judge::replay;
pub use corridor::open::GRACE;
pub use fetch::download::Download;
pub use fetch::jwks;
pub use fetch::modules::ModuleFetcher;
pub use listener::{Addresses, Handle, Interceptor, Options, ServeError, serve, take_over};
pub use state::component::ComponentSecrets;
pub use state::egress_guard::{EgressGuard, Requester};
pub use state::function::FunctionEntry;
pub use state::machines::Machines;
pub use state::node::Node;
pub use state::removed::Removed;
pub use state::snapshot::NodeSnapshot;
pub use state::{
    addresses, channels, connections, credential, endpoints, extension, instances, kernel, ledger, links, modules,
    shards, signature,
};
