//! HTTP of a mesh: the API of the control plane ([`control`]) and the admin listener of a node
//! ([`node`]), with their routes, views and the OpenAPI description.
#![forbid(unsafe_code)]

pub mod alerts;
mod certificates;
pub mod changes;
pub mod control;
pub mod gateways;
pub mod jobs;
pub mod limits;
pub mod log_page;
pub mod namespaces;
pub mod node;
pub mod nodes;
mod pods;
pub mod policies;
mod revisions;
pub mod rollouts;
mod scaling;
mod scrape;
mod shares;
pub mod upgrade;
