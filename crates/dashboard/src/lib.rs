//! Views of a mesh for people: the graph of its calls, with the traffic of each edge.

#![forbid(unsafe_code)]

pub mod graph;
pub mod mesh;
mod text;
