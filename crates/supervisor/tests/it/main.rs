//! Integration tests. `scripts/test.py` gives each module a process of its own.

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
