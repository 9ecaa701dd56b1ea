//! Integration tests. `scripts/test.py` gives each module a process of its own.

mod containers;
mod rooms;
