//! An order-processing application of three functions, and their common code.
//!
//! `frontend-api` takes orders from clients and passes them to `order-service`, which asks
//! `inventory-service` whether they can be filled. The functions know nothing about identities,
//! tokens, retries, limits or traces, which are the mesh's business. They only call others by name,
//! or through the proxy that `HTTP_PROXY` names ([`mesh`]).
#![forbid(unsafe_code)]

pub mod mesh;
pub mod order;
pub mod server;

/// The inventory's gRPC interface.
pub mod inventory {
    #![allow(missing_docs)]
    tonic::include_proto!("inventory.v1");
}
