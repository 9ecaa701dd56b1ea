//! Integration tests. `scripts/test.py` gives each module a process of its own.

mod components;
mod containment;
mod engines;
mod extension;
mod residue;
mod support;
mod threads;
