//! Input of a program: the parts of a request head that it declares, and the identities that the
//! runtime established.
//!
//! Borrowed from the bytes that the runtime wrote into the sandbox; nothing is copied.

use crate::spec::{KeyId, Protocol};
use alloc::vec::Vec;
use core::net::IpAddr;
use serde::{Deserialize, Serialize};

/// Largest encoded input, in bytes. The proxy's limit on heads is far below.
pub const MAX_INPUT: usize = 64 * 1024;

/// All that a verdict may depend on. Of the request's head it has the parts that the program
/// declares ([`crate::needs::Needs`]), and nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestInput<'a> {
    /// Milliseconds since the Unix epoch, by the runtime's clock. It takes the first eight bytes of
    /// the encoding ([`crate::abi::without_time`]).
    #[serde(with = "postcard::fixint::le")]
    pub now_ms: u64,
    /// Who opened the connection.
    #[serde(borrow)]
    pub peer: Peer<'a>,
    /// `namespace/name` of the function that the request was routed to; empty if it matched no function (outbound).
    pub target: &'a str,
    /// Port that the caller asked for.
    pub port: u16,
    /// As recognised by the runtime.
    pub protocol: Protocol,
    /// Method, as sent.
    pub method: &'a str,
    /// Host, and port if given.
    pub authority: &'a str,
    /// Path and query, as sent.
    pub path: &'a str,
    /// The declared header fields in order, names in lower case; no pseudo-headers.
    #[serde(borrow)]
    pub headers: Vec<Header<'a>>,
    /// The key that made the one token which [`crate::token::locate`] finds in this head, if the runtime has verified that.
    pub verified: Option<KeyId>,
}

/// Who opened the connection, as established by the runtime (never by a header).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer<'a> {
    /// SPIFFE ID from mutual TLS, or from the runtime's own knowledge on the same node.
    pub identity: Option<&'a str>,
    /// Address of the socket's other end; `None`: the program has not declared that it looks at it.
    pub address: Option<IpAddr>,
}

/// One header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header<'a> {
    /// Lower case.
    pub name: &'a str,
    /// As sent; not necessarily UTF-8.
    pub value: &'a [u8],
}
