//! What hyper needs to run on a worker.

use super::schedule;
use hyper::rt::Executor;
use std::future::Future;

pub(crate) use hyper_util::rt::TokioTimer as Timer;

/// Runs hyper's tasks on this thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalExecutor;

impl<F> Executor<F> for LocalExecutor
where
    F: Future<Output: 'static> + 'static,
{
    fn execute(&self, future: F) {
        schedule::spawn_part(async move { drop(future.await) });
    }
}
