//! The controller beside an API server: recorded conversations with a real one, replayed over
//! sockets.

mod authority;
mod conversation;
mod recorder;
mod review;
mod scale;
mod watch;
