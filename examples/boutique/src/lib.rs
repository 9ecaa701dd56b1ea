//! Three applications whose functions call each other a lot: a shop of ten functions, a motion sensor with its actuator, and a car park.
//!
//! The logic of a function is written once, against the trait [`calls::Calls`]. One of the [`transport`]s
//! carries the calls between functions: HTTP/1.1 (with or without a mesh), gRPC, or the shared
//! memory of a chain. A call is the same in each: a path, and a message in Protocol Buffers.
#![forbid(unsafe_code)]

pub mod calls;
pub mod function;
pub mod transport;

mod hop;
mod motion;
mod parking;
mod shop;

/// The messages.
pub mod messages {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/boutique.v1.rs"));
}
