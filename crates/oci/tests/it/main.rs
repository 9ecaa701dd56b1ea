//! Integration tests. `scripts/test.py` runs each module in a separate process.

mod hostile;
mod layers;
mod registry;
mod shares;
mod store;
mod support;
