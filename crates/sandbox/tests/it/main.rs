//! Integration tests. `scripts/test.py` runs each module in a separate process.

mod components;
mod containment;
mod engines;
mod extension;
mod residue;
mod support;
mod threads;
