//! Integration tests. `scripts/test.py` runs each module in its own process.

mod compile;
mod egress;
mod policies;
mod refused;
