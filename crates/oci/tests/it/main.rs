//! Integration tests. `scripts/test.py` gives each module a process of its own.

mod hostile;
mod layers;
mod registry;
mod shares;
mod store;
mod support;
