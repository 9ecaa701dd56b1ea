//! What the pipeline needs to know about running instances. The node's supervisor provides it.

pub use leno_http::failure::{Unavailable, Unproven};

use crate::state::kernel::Kernel;
use leno_model::FunctionId;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Finds an instance for a permitted request, and starts one if there is none. It is only called after the verdict.
pub trait Instances: Send + Sync + 'static {
    /// Leases a running instance with room for one more request. Neither waits nor starts anything. `None`: call [`Instances::acquire`].
    ///
    /// An address in `avoid` is given only if there is no other. The instance is one of `revision` (0: the function's revisions are not
    /// numbered). If that revision has just gone, it is one of the revision that gets most requests.
    fn try_acquire(&self, function: &FunctionId, revision: u32, avoid: &[SocketAddr]) -> Option<Lease>;

    /// Like [`Instances::try_acquire`], but waits for room, and starts an instance if none is running. The future may be dropped at any
    /// time.
    ///
    /// After its deadline, a request is of no use to anybody. It need not wait if no instance can have room before then.
    fn acquire<'a>(
        &'a self,
        function: &'a FunctionId,
        revision: u32,
        avoid: &'a [SocketAddr],
        deadline: Option<Instant>,
    ) -> Acquire<'a>;

    /// Number of instances of all revisions that are known, running and ready. 0: the next request starts one.
    fn count(&self, function: &FunctionId) -> u32;
}

/// The future of [`Instances::acquire`].
pub type Acquire<'a> = Pin<Box<dyn Future<Output = Result<Lease, Unavailable>> + Send + 'a>>;

/// Permission to send one request to one instance. Dropping it tells the supervisor that the request is over.
pub struct Lease {
    /// Where the instance listens.
    pub address: SocketAddr,
    /// The instance's name, as given to [`crate::state::credential::Credentials::mint`]. `None`: somebody else serves this address.
    pub instance: Option<Arc<str>>,
    /// Counts the request until the lease is dropped.
    pub guard: Box<dyn InstanceProof>,
}

/// What a lease holds as long as its request lasts.
pub trait InstanceProof: Send + Sync {
    /// Connects to the instance, which listens at `address`. Once this returns, the other end is known to be the instance: anybody may listen
    /// where an instance should.
    fn connect(&self, address: SocketAddr) -> Connect<'_>;

    /// The response to the request has begun, or more of it has come.
    fn heard(&self) {}

    /// The request began at `since`, has had the whole time that a request to its function may take, and got no response.
    fn timed_out(&self, since: Instant) {
        let _ = since;
    }

    /// Whether the instance may be lost, so that a request of which nothing was sent had better go to another one.
    fn is_suspect(&self) -> bool {
        false
    }

    /// Connects to another port of the instance than the one for requests, which only one in a room has. `kernel` is to look for the program there.
    fn connect_to<'a>(&'a self, port: u16, kernel: Option<&'a dyn Kernel>) -> Connect<'a> {
        let _ = (port, kernel);
        Box::pin(async { Err(io::Error::from(io::ErrorKind::Unsupported).into()) })
    }
}

/// The future of [`InstanceProof::connect`].
pub type Connect<'a> = Pin<Box<dyn Future<Output = Result<TcpStream, ConnectError>> + Send + 'a>>;

/// Why there is no connection to an instance.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is none.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Nothing proves that the connection leads to the instance. No byte was sent.
    #[error("{0}")]
    Unproven(#[from] Unproven),
}

/// Nothing is known about an address that somebody else serves.
impl InstanceProof for () {
    fn connect(&self, address: SocketAddr) -> Connect<'_> {
        Box::pin(async move { Ok(TcpStream::connect(address).await?) })
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
