//! Functions that pass messages through shared memory: `protocol: chain`.
//!
//! ```no_run
//! use leno_sdk::{Chain, StatusCode};
//!
//! let chain = Chain::from_environment()?;
//! while let Some(call) = chain.next() {
//!     // The answer is the body of the call, where it is.
//!     call.answer_with(StatusCode::OK, |body| body.into())?;
//! }
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Messages are judged by the mesh like those over HTTP: a call to a function that is no callee of
//! this one is answered with 403. The difference is that bodies stay in place. A [`Buffer`] is in
//! memory that the other functions of the chain can read and this program alone can write. A
//! received body may be [passed on](ReceivedBody), as a whole or in part, without a copy.
//!
//! # Threads
//! All types may be used by many threads at once. One waiting thread reads the socket for all
//! others that wait, so this library starts no thread, and a waiting program uses no processor
//! time. [`Chain::serve`] handles many calls on one thread. A program that forks must not use the
//! chain in the child.
//!
//! # Trust
//! Received bodies are shown in place. If a function of the chain writes to a body after sending
//! it, its readers see the change; this library never does so. A program that does not trust the
//! other functions of the chain that far copies a body before it reads it ([`ReceivedBody::bytes`] is a
//! slice like any other).
#![deny(unsafe_code)] // allowed one call at a time: the peer of a socket, and memory that others write

mod arena;
mod body;
mod call;
mod chain;
mod channel;
mod connect;
mod error;
mod hear;
mod link;
mod pending;
mod serve;
mod state;
mod wait;

pub use arena::OnFull;
pub use body::{Buffer, Payload, ReceivedBody, SharedBody};
pub use call::Call;
pub use chain::Chain;
pub use connect::ConnectError;
pub use error::Error;
pub use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
pub use leno_shm::head::{BadHead, RequestHead, ResponseHead};
pub use pending::{Answer, Pending};
