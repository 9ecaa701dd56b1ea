//! What hyper needs to run on a worker.

pub(crate) use hyper_util::rt::TokioTimer as Timer;
