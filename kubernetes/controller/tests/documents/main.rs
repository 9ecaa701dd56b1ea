//! Documents of a cluster.

mod cluster;
mod definitions;
mod examples;
mod objects;
mod rights;
mod scale;
mod status;
