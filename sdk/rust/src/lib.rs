//! Functions that hand each other memory: `protocol: chain`.
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
//! Messages are judged by the mesh like those over HTTP: a call to a function that is no callee of this one is answered with 403. Only bodies never move.
//! A [`Buffer`] is in memory that the other functions of the chain can read and this program alone can write. A body that came from somebody may be
//! [passed on](Received), as a whole or in part, without a copy.
//!
//! # Threads
//! All may be used by many threads at once. Whoever waits reads the socket for all who wait, so there is no thread behind this, and a program that waits
//! uses no processor time. [`Chain::serve`] handles many calls on one thread. A program that forks must not use the chain in the child.
//!
//! # Trust
//! Bodies that others wrote are shown in place. A function of the chain that goes on writing to what it has sent changes it under its readers; this
//! library never does. Whoever does not trust the others of the chain that far copies a body before looking at it ([`Received::bytes`] is a slice like any other).
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
pub use body::{Buffer, Payload, Received, Shared};
pub use call::Call;
pub use chain::Chain;
pub use connect::ConnectError;
pub use error::Error;
pub use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
pub use leno_shm::head::{BadHead, RequestHead, ResponseHead};
pub use pending::{Answer, Pending};
