//! Integration tests. `scripts/test.py` runs each module in its own process.

mod authority;
mod bundle;
mod gateway;
mod mtls;
mod profile;
mod rotation;
mod support;
