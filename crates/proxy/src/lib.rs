//! Carries one request from the socket to its upstream and back: the *corridor*.
//!
//! Read it in the order in which things happen: [`listen`] accepts, [`connection`] finds out who speaks and how, [`exchange`] is
//! the corridor itself, [`upstream`] forwards.
#![forbid(unsafe_code)]

pub mod head;
pub mod instances;
pub mod peer;
pub mod random;
pub mod route;
pub mod snapshot;
