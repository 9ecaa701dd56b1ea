//! What the corridor needs to know of running instances. The node's supervisor provides it.

pub use crate::http::failure::{Unavailable, Unproven};

use leno_config::FunctionId;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use tokio::time::Instant;

/// Finds an instance for a permitted request, and starts one where there is none. Nobody calls this before the verdict.
pub trait Instances: Send + Sync + 'static {
    /// A running instance with room for one more request, not at one of the addresses in `avoid` as long as there is another.
    /// Neither waits nor starts anything. `None`: [`Instances::acquire`] has to be asked.
    ///
    /// Of this revision (0: nobody numbers them); if it has just gone, of the one that gets most.
    fn try_acquire(&self, function: &FunctionId, revision: u32, avoid: &[SocketAddr]) -> Option<Lease>;

    /// Like [`Instances::try_acquire`], but starts an instance where none is running and waits for room. The future may be dropped at any time.
    ///
    /// A request is of no use to anybody after its deadline: it need not be kept if nothing can come of it until then.
    fn acquire<'a>(
        &'a self,
        function: &'a FunctionId,
        revision: u32,
        avoid: &'a [SocketAddr],
        deadline: Option<Instant>,
    ) -> Acquire<'a>;

    /// Instances that are known, running and ready, of all revisions; 0: the next request starts one.
    fn count(&self, function: &FunctionId) -> u32;
}

/// The wait for an instance.
pub type Acquire<'a> = Pin<Box<dyn Future<Output = Result<Lease, Unavailable>> + Send + 'a>>;

/// Permission to send one request to one instance; dropping it tells that the request is over.
pub struct Lease {
    /// Where the instance listens.
    pub address: SocketAddr,
    /// Its name, the same that [`crate::state::credential::Credentials::mint`] was given; `None` for addresses that someone else runs.
    pub instance: Option<Arc<str>>,
    /// Whatever counts the request; dropped with the lease.
    pub guard: Box<dyn Guard>,
}

/// What a lease holds as long as its request lasts.
pub trait Guard: Send + Sync {
    /// Whether a connection from `near`, where this process has it, to `far` arrives at the instance. Asked once for each new connection, when it is
    /// established and before the first byte is sent: anybody may listen where an instance should.
    fn verify(&self, near: SocketAddr, far: SocketAddr) -> Result<(), Unproven>;
}

/// Of an address that somebody else serves, nothing is known.
impl Guard for () {
    fn verify(&self, _: SocketAddr, _: SocketAddr) -> Result<(), Unproven> {
        Ok(())
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("address", &self.address)
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}
