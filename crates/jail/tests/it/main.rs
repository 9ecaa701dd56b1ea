//! Integration tests. `scripts/test.py` runs each module in its own process.

mod containers;
mod jails;
