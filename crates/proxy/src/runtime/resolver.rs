//! Looks up names outside of the mesh.
//!
//! Look-ups run on the node's own runtime: they share sockets and a cache, whichever worker asks. An answer is used as long as its TTL says. What a name
//! server can make this node hold is bounded: names, addresses for each, and look-ups at a time.

use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use hickory_resolver::config::{NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Names that are remembered. When there are more, those are forgotten whose time is over, and otherwise all.
const MOST_NAMES: usize = 4096;
/// Addresses of one name that are used.
const MOST_ADDRESSES: usize = 32;
/// Look-ups at a time.
const AT_A_TIME: usize = 256;
/// An answer is not used for longer, whatever its TTL.
const LONGEST_TTL: Duration = Duration::from_secs(3600);
/// A name that does not exist is not asked for again for at least so long, and at most so long.
const NEGATIVE_TTL: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LookupError {
    /// The name servers say so, or nobody answers.
    #[error("{name} cannot be looked up: {reason}")]
    Failed {
        /// The name.
        name: String,
        /// The cause, in words.
        reason: String,
    },
    /// Nobody answered in time.
    #[error("{name} cannot be looked up: no answer within {limit:?}")]
    Timeout {
        /// The name.
        name: String,
        /// How long it took.
        limit: Duration,
    },
    /// There are too many look-ups.
    #[error("{name} cannot be looked up: too many other names are being looked up")]
    TooMany {
        /// The name.
        name: String,
    },
}

/// Looks up names. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Resolver(Arc<Inner>);

struct Inner {
    /// `None`: the node has no runtime, which only is so in tests.
    runtime: Option<Handle>,
    servers: Vec<SocketAddr>,
    client: Mutex<Option<TokioResolver>>,
    known: Mutex<HashMap<Box<str>, Known>>,
    room: Arc<Semaphore>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("servers", &self.servers).finish_non_exhaustive()
    }
}

/// The answer about a name.
#[derive(Clone)]
struct Known {
    addresses: Arc<[IpAddr]>,
    until: Instant,
}

impl Resolver {
    /// Asks these name servers; none: those of the machine. Look-ups run on the runtime in which this is called.
    pub(crate) fn new(servers: Vec<SocketAddr>) -> Self {
        Self(Arc::new(Inner {
            runtime: Handle::try_current().ok(),
            servers,
            client: Mutex::default(),
            known: Mutex::default(),
            room: Arc::new(Semaphore::new(AT_A_TIME)),
        }))
    }

    /// The addresses of a name, IPv4 before IPv6; never none. It can be dropped at any time.
    pub(crate) async fn look_up(&self, name: &str, limit: Duration) -> Result<Arc<[IpAddr]>, LookupError> {
        if let Some(known) = self.known(name) {
            return Ok(known);
        }
        let failed = |reason: String| LookupError::Failed { name: name.to_owned(), reason };
        let runtime = self.0.runtime.clone().ok_or_else(|| failed("there is no runtime".to_owned()))?;
        let Ok(permit) = self.0.room.clone().try_acquire_owned() else {
            return Err(LookupError::TooMany { name: name.to_owned() });
        };
        let client = self.client().map_err(|error| failed(error.to_string()))?;
        // The dot at its end keeps search domains out.
        let asked = format!("{name}.");
        let looked_up = runtime.spawn(async move {
            let _permit = permit;
            tokio::time::timeout(limit, client.lookup_ip(asked)).await
        });
        let answer = looked_up.await.map_err(|error| failed(error.to_string()))?;
        let answer = answer.map_err(|_| LookupError::Timeout { name: name.to_owned(), limit })?;
        let answer = answer.map_err(|error| failed(error.to_string()))?;
        let addresses: Arc<[IpAddr]> = answer.iter().take(MOST_ADDRESSES).collect();
        if addresses.is_empty() {
            return Err(failed("it has no address".to_owned()));
        }
        self.remember(name, Known { addresses: addresses.clone(), until: answer.valid_until() });
        Ok(addresses)
    }

    fn known(&self, name: &str) -> Option<Arc<[IpAddr]>> {
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get(name)?;
        (known.until > Instant::now()).then(|| known.addresses.clone())
    }

    fn remember(&self, name: &str, answer: Known) {
        let now = Instant::now();
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_NAMES {
            known.retain(|_, known| known.until > now);
        }
        if known.len() >= MOST_NAMES {
            known.clear();
        }
        if answer.until > now {
            known.insert(name.into(), answer);
        }
    }

    fn client(&self) -> Result<TokioResolver, hickory_resolver::net::NetError> {
        let mut made = self.0.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*made {
            return Ok(client.clone());
        }
        let mut builder = if self.0.servers.is_empty() {
            TokioResolver::builder_tokio()?
        } else {
            let server = |address: &SocketAddr| {
                let mut server = NameServerConfig::udp_and_tcp(address.ip());
                server.connections.iter_mut().for_each(|connection| connection.port = address.port());
                server
            };
            let servers = self.0.servers.iter().map(server).collect();
            TokioResolver::builder_with_config(
                ResolverConfig::from_parts(None, Vec::new(), servers),
                TokioRuntimeProvider::default(),
            )
        };
        let options: &mut ResolverOpts = builder.options_mut();
        options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
        options.cache_size = MOST_NAMES as u64;
        options.positive_max_ttl = Some(LONGEST_TTL);
        let [shortest, longest] = NEGATIVE_TTL;
        (options.negative_min_ttl, options.negative_max_ttl) = (Some(shortest), Some(longest));
        let client = builder.build()?;
        *made = Some(client.clone());
        Ok(client)
    }
}
