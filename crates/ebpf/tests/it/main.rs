//! Integration tests. `scripts/test.py` runs each module in its own process.

mod direct;
mod intercept;
mod networks;
mod pods;
