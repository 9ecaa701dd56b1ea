//! What `/metrics` has of what the control plane knows.

use crate::jobs;
use leno_control::{JobStatus, Status};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;

/// Everything as it is at one moment.
#[derive(Debug)]
pub struct Scrape {
    jobs: Vec<JobStatus>,
}

impl Scrape {
    pub fn of(control: Status) -> Self {
        Self { jobs: control.jobs }
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        jobs::encode(&self.jobs, &mut encoder)
    }
}
