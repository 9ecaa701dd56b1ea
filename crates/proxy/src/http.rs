//! HTTP, as every room needs it: heads, bodies, edits, failures, and who is at the other end. Nothing here knows of policies or functions.

pub(crate) mod activity;
pub(crate) mod body;
pub(crate) mod edits;
pub(crate) mod failure;
pub(crate) mod head;
pub(crate) mod http2;
pub mod peer;
pub(crate) mod upload;
