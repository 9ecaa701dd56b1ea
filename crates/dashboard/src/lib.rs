//! Views of a mesh for people: the graph of its calls, with the traffic of each edge, and the web
//! server of the page that shows it.
//!
//! `source` is the node or control plane that answers, `viewer` shares its answers among pages, and
//! `web` serves the page.

#![forbid(unsafe_code)]

pub mod filter;
pub mod graph;
mod history;
pub mod mesh;
pub mod source;
pub mod status;
mod text;
mod viewer;
pub mod web;
