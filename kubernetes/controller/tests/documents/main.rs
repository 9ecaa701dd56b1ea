//! Documents of a cluster.

mod cluster;
mod definitions;
mod objects;
mod rights;
mod status;
