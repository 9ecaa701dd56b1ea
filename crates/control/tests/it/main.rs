//! Integration tests. `scripts/test.py` runs each module in its own process.

mod backends;
mod changes;
mod delivery;
mod jobs;
mod kept_modules;
mod membership;
mod outage;
mod placement;
mod platform;
mod protocol;
mod releases;
mod rollout;
mod rotation;
mod secrets;
mod store;
mod support;
