//! Tests of the pipeline over real sockets: real clients, real upstreams, and raw bytes that no
//! client library would send.

mod mesh;
mod raw;
mod upstream;

mod as_received;
mod bodies;
mod client_faults;
mod clients;
mod close_codes;
mod drain;
mod faults;
mod floods;
mod frames;
mod gateway;
mod grpc_outcomes;
mod heads;
mod hops;
mod hostile;
mod http2;
mod https;
mod identity;
mod instances;
mod interim;
mod limits;
mod names;
mod nodes;
mod pod_calls;
mod pods;
mod proof;
mod renewal;
mod response_heads;
mod retries;
mod revoked;
mod routes;
mod shares;
mod tokens;
mod translation;
mod unasked;
mod unread;
mod unread_http2;
mod validity;
mod vanished;
mod verdicts;
mod websocket;
mod withdrawn;
