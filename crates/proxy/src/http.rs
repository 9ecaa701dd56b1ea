//! HTTP for the whole proxy: heads, bodies, header edits, failures, and the peers of connections. Nothing here knows policies or functions.

pub(crate) mod activity;
pub(crate) mod body;
pub(crate) mod edits;
pub(crate) mod failure;
pub(crate) mod head;
pub(crate) mod hop;
pub(crate) mod http2;
pub(crate) mod inflow;
pub(crate) mod interim;
pub(crate) mod outcome;
pub mod peer;
pub(crate) mod upload;
pub(crate) mod wire;
