//! Three applications whose functions call each other a lot: a shop of ten functions, a motion sensor with its actuator, and a car park.
//!
//! What a function does is written once, against the trait [`Calls`]. How calls get from one to the other is one of the [`transport`]s: HTTP/1.1 (through
//! a mesh or without one), gRPC, or the memory of a chain. A call is the same in each: a path, and a message in Protocol Buffers.
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
