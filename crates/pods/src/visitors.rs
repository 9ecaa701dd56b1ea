//! Threads that do jobs in the networks of pods. A thread of each pod would take memory for its stack and
//! its allocations.

use crate::error::{CaptureError, Explain};
use crate::network::PodNetwork;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};

/// Jobs that wait for a thread.
const WAITING: usize = 256;
/// More threads than processors would only wait for each other.
const MOST: usize = 4;

/// The network of this process.
const OWN: &str = "/proc/thread-self/ns/net";

type Job = Box<dyn FnOnce() + Send>;

/// The threads. They end with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct Visitors {
    threads: Arc<[mpsc::Sender<(PodNetwork, Job)>]>,
    next: Arc<AtomicUsize>,
}

impl Visitors {
    pub(crate) fn start() -> Result<Self, CaptureError> {
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(MOST);
        let threads = (0..count).map(|_| start()).collect::<Result<_, _>>()?;
        Ok(Self { threads, next: Arc::default() })
    }

    /// Does a job in a network. It must not wait for anything: other pods wait for it.
    pub(crate) async fn visit<T: Send + 'static>(
        &self,
        network: &PodNetwork,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let ended = || io::Error::other("the pod's network cannot be entered");
        let (answer, answered) = oneshot::channel();
        // The task that waits for the answer may have ended.
        let job: Job = Box::new(move || drop(answer.send(job())));
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.threads.len();
        let thread = self.threads.get(next).ok_or_else(ended)?;
        thread.send((network.clone(), job)).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }
}

fn start() -> Result<mpsc::Sender<(PodNetwork, Job)>, CaptureError> {
    let (sender, mut jobs) = mpsc::channel::<(PodNetwork, Job)>(WAITING);
    let own = PodNetwork::at(Path::new(OWN))?;
    let work = move || {
        while let Some((network, job)) = jobs.blocking_recv() {
            if network.enter().is_ok() {
                job();
            }
            // A thread that stayed would keep the network of a pod that ends.
            if own.enter().is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("pod visitor".to_owned()).spawn(work);
    thread.explain("a thread for the networks of pods")?;
    Ok(sender)
}
