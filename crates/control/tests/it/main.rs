//! Integration tests. `scripts/test.py` gives each module a process of its own.

mod backends;
mod changes;
mod delivery;
mod jobs;
mod kept_modules;
mod membership;
mod outage;
mod placement;
mod protocol;
mod releases;
mod rollout;
mod rotation;
mod store;
mod support;
