//! The pipeline's interface to running instances. The node's supervisor implements it.

pub use leno_http::failure::{Unavailable, Unproven};

use crate::state::end_notice::EndNotice;
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

/// Finds an instance for a permitted request, and starts one if there is none. It is only called
/// after the verdict.
pub trait Instances: Send + Sync + 'static {
    /// Leases a running instance that can take one more request. Neither waits nor starts anything.
    /// `None`: call [`Instances::acquire`].
    ///
    /// Addresses in `avoid` are used only if there is no other. The instance is one of `revision`
    /// (0: the function's revisions are not numbered). If that revision has just ended, the
    /// instance is one of the revision that gets most requests.
    fn try_acquire(&self, function: &FunctionId, revision: u32, avoid: &[SocketAddr]) -> Option<Lease>;

    /// Like [`Instances::try_acquire`], but waits for an instance with capacity, and starts one if
    /// none is running. The future may be dropped at any time.
    ///
    /// After its deadline, a request has no use. It need not wait if no instance can have capacity
    /// before then.
    fn acquire<'a>(
        &'a self,
        function: &'a FunctionId,
        revision: u32,
        avoid: &'a [SocketAddr],
        deadline: Option<Instant>,
    ) -> Acquire<'a>;

    /// Number of instances of all revisions that are running and ready, as far as known. 0: the
    /// next request starts one.
    fn count(&self, function: &FunctionId) -> u32;

    /// Whether this node may start an instance. If not, the function has left the node, and
    /// [`Instances::acquire`] fails with [`Unavailable::Unknown`].
    fn may_start(&self, function: &FunctionId) -> bool {
        let _ = function;
        true
    }
}

/// The future of [`Instances::acquire`].
pub type Acquire<'a> = Pin<Box<dyn Future<Output = Result<Lease, Unavailable>> + Send + 'a>>;

/// Permission to send one request to one instance. Dropping it tells the supervisor that the
/// request is over.
pub struct Lease {
    /// Where the instance listens.
    pub address: SocketAddr,
    /// The instance's name, as given to [`crate::state::credential::Credentials::mint`]. `None`:
    /// the server at this address is no instance of this node.
    pub instance: Option<Arc<str>>,
    /// Counts the request until the lease is dropped.
    pub guard: Box<dyn InstanceProof>,
}

/// The part of a lease that lives as long as its request.
pub trait InstanceProof: Send + Sync {
    /// Connects to the instance, which listens at `address`. The returned connection is proved to
    /// lead to the instance: another process may listen at an instance's address.
    fn connect(&self, address: SocketAddr) -> Connect<'_>;

    /// Reports that the response has begun, or that more of it has arrived.
    fn heard(&self) {}

    /// Reports that the request, which began at `since`, got no response within the whole time that
    /// its function allows.
    fn timed_out(&self, since: Instant) {
        let _ = since;
    }

    /// Where to give notice that the server has closed a connection; `None`: nowhere.
    #[doc(hidden)]
    fn end_notice(&self) -> Option<Arc<EndNotice>> {
        None
    }

    /// Whether the instance may be lost. A request of which nothing was sent should then go to
    /// another instance.
    fn is_suspect(&self) -> bool {
        false
    }

    /// Connects to another port of the instance than the one for requests. Only an instance in a
    /// jail has such ports. `kernel` is to look up the listening program there.
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
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Nothing proves that the connection leads to the instance. No byte was sent.
    #[error("{0}")]
    Unproven(#[from] Unproven),
}

/// The proof for addresses that are served by no instance of this node. It proves nothing.
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
