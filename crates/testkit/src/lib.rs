//! Code that tests of several crates share.

mod etcd;
mod eventually;
mod ports;

pub use etcd::EtcdServer;
pub use eventually::{Condition, TIMEOUT, eventually, eventually_async};
pub use ports::free_port;
