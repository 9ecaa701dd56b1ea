//! Integration tests. `scripts/test.py` gives each module a process of its own.

mod authority;
mod gateway;
mod mtls;
mod profile;
mod rotation;
mod support;
