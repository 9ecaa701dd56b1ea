//! Code that the tests of several crates and the benchmarks share: processes, meshes, clusters,
//! servers beside them, and waiting.
#![allow(missing_docs, reason = "tests read well by names")]

pub mod browser;
pub mod cluster;
pub mod control;
pub mod documentation;
mod etcd;
mod eventually;
mod http;
pub mod keys;
pub mod mesh;
mod ports;
pub mod process;

pub use etcd::EtcdServer;
pub use eventually::{Condition, TIMEOUT, eventually, eventually_async};
pub use http::{Admin, Answer, curl, try_curl};
pub use mesh::leno_program;
pub use ports::{free_addresses, free_port};
pub use process::Process;
