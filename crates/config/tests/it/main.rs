//! Integration tests. `scripts/test.py` gives each module a process of its own.

mod compile;
mod extensions;
mod hostile;
mod imported;
mod imported_outside;
mod jwks;
mod refused;
mod tenants;
mod wasm;
