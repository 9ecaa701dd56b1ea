//! HTTP, as every room needs it: heads, bodies, edits, failures, and who is at the other end. Nothing here knows of policies or functions.

pub mod activity;
pub mod body;
pub mod edits;
pub mod failure;
pub mod head;
pub mod http2;
pub mod peer;
pub mod upload;
