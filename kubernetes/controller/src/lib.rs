//! Leno's control plane for Kubernetes. It reads the mesh from an API server: documents, and the
//! pods to which they apply.
#![forbid(unsafe_code)]

pub mod api;
pub mod index;
pub mod review;
