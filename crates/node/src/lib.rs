//! One node of the mesh: the supervisor of its instances, the proxy for its requests, and the
//! reconciler that puts into force the resources that the control plane delivers.
//!
//! [`start`] puts them together and returns [`Running`], which gives the node's addresses and its
//! readiness, and stops the node.
#![forbid(unsafe_code)]

mod callers;
mod channels;
mod destinations;
mod draining;
mod engines;
mod hot_restart;
mod images;
mod instances;
mod jobs;
mod kernel;
mod listeners;
mod loader;
mod loads;
mod omissions;
mod open_ports;
mod placement;
mod pods;
mod questions;
mod quotas;
mod reconciler;
mod retries;
mod start;
mod warm;
mod workloads;

pub use engines::{EngineRefusal, Engines, NoEngine};
pub use hot_restart::{ChildLink, OfferError, Parent, ParentError, StateCheck, TakeoverError};
pub use images::{SecretError, registries};
pub use listeners::Listeners;
pub use placement::whole_machine;
pub use pods::{
    Capture, CaptureError, CaptureOptions, MachineCapture, PodHandle, PodOptions, PodState, PodStatus, Pods,
    remove_files,
};
pub use questions::PendingView;
pub use start::{HotRestartOptions, Join, Running, start};
