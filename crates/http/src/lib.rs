//! HTTP messages and connections, without policies, functions or sockets.
//!
//! | module | purpose |
//! |---|---|
//! | [`head`], [`hop`], [`edits`] | checks heads, and adds, removes and edits their fields |
//! | [`body`], [`wire`], [`upload`] | message bodies, frame by frame |
//! | [`framing`], [`proxy_header`] | checks the bytes of a client's HTTP/1.1 connection, and parses the PROXY header |
//! | [`http2`], [`inflow`], [`interim`] | HTTP/2 streams, limits on frames and interim responses |
//! | [`forwarded`] | the client behind trusted proxies |
//! | [`activity`] | the timeouts of a client's connection |
//! | [`failure`], [`outcome`], [`peer`] | failures and their statuses, results of calls, peers |
#![forbid(unsafe_code)]

pub mod activity;
pub mod body;
pub mod edits;
pub mod failure;
pub mod forwarded;
pub mod framing;
pub mod head;
pub mod hop;
pub mod http2;
pub mod inflow;
pub mod interim;
pub mod outcome;
pub mod peer;
pub mod proxy_header;
pub mod upload;
pub mod wire;
