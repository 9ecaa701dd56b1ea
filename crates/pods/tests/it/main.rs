//! Pods in network namespaces, with real interfaces between them.

#![allow(missing_docs)]

mod agents;
mod capture;
mod enforced;
#[path = "../../test-agent/forwarder.rs"]
mod forwarder;
mod networks;
mod release;
