//! Leno's control plane for Kubernetes. It reads the mesh from an API server: documents, and the
//! pods to which they apply.
#![forbid(unsafe_code)]

mod admin;
pub mod api;
pub mod authority;
pub mod crds;
pub mod documents;
pub mod index;
pub mod lease;
mod listener;
pub mod publication;
pub mod release;
pub mod review;
pub mod rights;
pub mod run;
pub mod status;
