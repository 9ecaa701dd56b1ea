//! Guards the connections of this process to addresses that documents of a namespace name: key
//! sets, modules, images.
//!
//! The guard looks a name up once, and the connection goes to one of the addresses that it has
//! checked. It refuses special addresses unless the namespace's bounds list them. Otherwise the
//! author of a document could send requests to this machine, to its metadata service or to other
//! machines of the mesh.

use super::machines::Machines;
use leno_model::{FunctionConfig, egress};
use leno_policy::host::of_authority;
use leno_policy::spec::Cidr;
use leno_runtime::resolver::{LookupError, Resolver};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Checks and looks up the addresses of hosts to fetch from.
#[derive(Clone, Debug)]
pub struct EgressGuard {
    resolver: Resolver,
    machines: Arc<Machines>,
}

/// Why nothing may be fetched from a host.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The address is special, and the namespace's bounds do not list it.
    #[error(
        "{address} is a special address; `egress` of the namespace's quota (NamespaceQuota {namespace}) would have to list it"
    )]
    SpecialAddress {
        /// The address.
        address: IpAddr,
        /// The namespace.
        namespace: String,
    },
    /// All addresses of the host are refused.
    #[error("{host}: {reason}")]
    Host {
        /// The host.
        host: String,
        /// The refusal of one of its addresses.
        reason: Box<Self>,
    },
    /// The URL has no valid host.
    #[error("`{}` is not a host", .0.escape_debug())]
    NotAHost(String),
    /// The host has no address.
    #[error(transparent)]
    Lookup(#[from] LookupError),
}

/// The namespace whose document names an address to fetch from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    /// The namespace.
    pub namespace: String,
    /// The special addresses that it may fetch from; `None`: all, because its documents are the
    /// operator's own files.
    pub egress: Option<Vec<Cidr>>,
}

impl Requester {
    /// The requester of URLs in a function's documents.
    pub fn of(config: &FunctionConfig) -> Self {
        Self { namespace: config.id.namespace.clone(), egress: config.bounds.egress.clone() }
    }
}

/// Hashes the namespace only, which is distinct for almost all requesters.
impl Hash for Requester {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.namespace.hash(state);
    }
}

impl Requester {
    /// Whether something may be fetched from this address.
    ///
    /// # Errors
    /// The error names the cause, and the setting that would permit the address.
    pub fn check(&self, address: IpAddr, machines: &Machines) -> Result<(), EgressError> {
        if egress::may_fetch_from(self.egress.as_deref(), address, &|address| machines.have(address)) {
            return Ok(());
        }
        Err(EgressError::SpecialAddress { address, namespace: self.namespace.clone() })
    }
}

impl EgressGuard {
    /// Asks these name servers; none: those of the machine. Look-ups run on the runtime in which
    /// this is called.
    pub fn new(name_servers: Vec<SocketAddr>, machines: Arc<Machines>) -> Self {
        Self { resolver: Resolver::new(name_servers), machines }
    }

    pub(crate) fn with_resolver(resolver: Resolver, machines: Arc<Machines>) -> Self {
        Self { resolver, machines }
    }

    /// Whether something may be fetched from this address.
    ///
    /// # Errors
    /// The error names the cause, and the setting that would permit the address.
    pub fn check(&self, address: IpAddr, requester: &Requester) -> Result<(), EgressError> {
        requester.check(address, &self.machines)
    }

    /// The addresses of a host of a URL that may be fetched from; never none.
    ///
    /// # Errors
    /// The host has no address, or none that may be fetched from.
    pub(crate) async fn addresses(
        &self,
        host: &str,
        requester: &Requester,
        limit: Duration,
    ) -> Result<Arc<[IpAddr]>, EgressError> {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let found: Arc<[IpAddr]> = match bare.parse() {
            Ok(address) => Arc::new([address]),
            Err(_) => {
                let name = of_authority(bare).ok_or_else(|| EgressError::NotAHost(host.to_owned()))?;
                self.resolver.look_up(&name, &requester.namespace, limit).await?
            }
        };
        let (mut good, mut refused) = (Vec::new(), None);
        for address in found.iter() {
            match self.check(*address, requester) {
                Ok(()) => good.push(*address),
                Err(reason) => refused = Some(reason),
            }
        }
        match refused {
            Some(reason) if good.is_empty() => {
                Err(EgressError::Host { host: host.to_owned(), reason: Box::new(reason) })
            }
            _ => Ok(good.into()),
        }
    }
}
