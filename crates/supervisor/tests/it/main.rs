//! Integration tests. `scripts/test.py` runs each module in its own process.

mod accounts;
mod capture;
mod confinement;
mod containers;
mod jobs;
mod liveness;
mod revisions;
mod scaling;
mod shares;
mod supervisor;
mod support;
