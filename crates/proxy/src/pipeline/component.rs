//! Runs functions that are components, on the thread that judged their requests, with no socket in
//! between.
//!
//! A permitted request is given to a fresh instance ([`run`]). Each call that the instance makes
//! begins another exchange on the same thread, with the instance's function as the caller
//! ([`outgoing`]). So inbound policies, the function, its outbound policies and, if it is on this
//! node, its callee form one pipeline. A run is a task that works for its function: a long
//! computation takes turns with other functions' requests. A run ends when no exchange waits for it
//! any more.

mod body;
mod outgoing;
mod run;

pub(super) use run::{Running, start};
