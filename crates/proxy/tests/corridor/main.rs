//! The corridor over real sockets: real clients, real upstreams, raw bytes where a client library would be too polite.

mod mesh;
mod raw;
mod upstream;

mod gateway;
