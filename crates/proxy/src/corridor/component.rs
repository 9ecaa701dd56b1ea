//! Functions that are components: run on the thread that judged their requests, with no socket in between.
//!
//! A permitted request is given to a fresh instance ([`run`]), whose own calls begin another exchange on the same thread, as its function's
//! ([`outside`]): inbound policies, the function, its outbound policies and, if it is here, its callee are one pipeline. A run is a task
//! that works for its function, so that a long computation takes turns with others' requests, and it ends when nobody waits for it.

mod body;
mod outside;
mod run;

pub(super) use run::{Running, start};
