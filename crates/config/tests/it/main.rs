//! Integration tests. `scripts/test.py` runs each module in its own process.

mod cache;
mod compile;
mod extensions;
mod gateway_api;
mod hostile;
mod inline;
mod jwks;
mod mistakes;
mod pods;
mod refused;
mod routes;
mod schema;
mod secrets;
mod tenants;
mod wasm;
