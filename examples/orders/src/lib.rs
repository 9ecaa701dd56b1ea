//! An order-processing application of three functions, and what they have in common.
//!
//! `frontend-api` takes orders from outside and hands them to `order-service`, which asks `inventory-service` whether they can
//! be filled. None of them knows about identities, tokens, retries, limits or traces: that is the mesh's business. All they do
//! for it is to call others by name, or through the proxy that `HTTP_PROXY` names ([`mesh`]).
#![forbid(unsafe_code)]

pub mod mesh;
pub mod order;
pub mod server;

/// The inventory's gRPC interface.
pub mod inventory {
    #![allow(missing_docs)]
    tonic::include_proto!("inventory.v1");
}
