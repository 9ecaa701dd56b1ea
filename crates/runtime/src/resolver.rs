//! Looks up names of hosts outside the mesh.
//!
//! Look-ups run on the node's tokio runtime, so all workers share sockets and a cache. Concurrent
//! look-ups of one name share one query. The node uses an answer until its TTL has passed. A name
//! server, or a function that looks up names, can use only bounded memory: names, addresses per
//! name, and concurrent look-ups are limited, per namespace and in total.

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Limit on cached names. Beyond it, nothing is added until answers expire.
const MOST_NAMES: usize = 4096;
/// Limit on the addresses of one name.
const MOST_ADDRESSES: usize = 32;
/// Limit on concurrent look-ups.
const AT_A_TIME: usize = 512;
/// Limit on concurrent look-ups of one namespace.
const OF_NAMESPACE: usize = 64;
/// Limit on the duration of a look-up.
const LONGEST: Duration = Duration::from_secs(10);
/// An upper bound on the TTL of an answer.
const LONGEST_TTL: Duration = Duration::from_secs(3600);
/// Lower and upper bound on the TTL of the answer that a name does not exist.
const NEGATIVE_TTL: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The name servers report an error, or none is reachable.
    #[error("{name} cannot be looked up: {reason}")]
    Failed {
        /// The name.
        name: String,
        /// The cause, in words.
        reason: String,
    },
    /// No name server answered in time.
    #[error("{name} cannot be looked up: no answer within {limit:?}")]
    Timeout {
        /// The name.
        name: String,
        /// How long it took.
        limit: Duration,
    },
    /// There are too many look-ups.
    #[error("{name} cannot be looked up: too many other names of this namespace, or in all, are being looked up")]
    TooMany {
        /// The name.
        name: String,
    },
}

/// Looks up names. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Resolver(Arc<Inner>);

struct Inner {
    /// `None`: there is no tokio runtime (tests only).
    runtime: Option<Handle>,
    servers: Vec<SocketAddr>,
    client: Mutex<Option<TokioResolver>>,
    known: Mutex<HashMap<Box<str>, CachedAnswer>>,
    flights: Mutex<Flights>,
}

/// Look-ups in flight.
#[derive(Default)]
struct Flights {
    by_name: HashMap<Box<str>, watch::Receiver<Option<Answer>>>,
    by_namespace: HashMap<Box<str>, usize>,
}

/// A look-up in flight. It ends when this is dropped, also by a panic.
struct Flight {
    resolver: Resolver,
    name: String,
    namespace: String,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.resolver.flights().end(&self.name, &self.namespace);
    }
}

/// The result of a look-up.
type Answer = Result<Arc<[IpAddr]>, LookupError>;

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("servers", &self.servers).finish_non_exhaustive()
    }
}

/// The answer about a name.
#[derive(Clone)]
struct CachedAnswer {
    addresses: Arc<[IpAddr]>,
    until: Instant,
}

impl Resolver {
    /// Uses these name servers; none: those of the machine. Look-ups run on the current tokio
    /// runtime.
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self(Arc::new(Inner {
            runtime: Handle::try_current().ok(),
            servers,
            client: Mutex::default(),
            known: Mutex::default(),
            flights: Mutex::default(),
        }))
    }

    /// The addresses of a name, IPv4 before IPv6; never none. The look-up counts for `namespace`.
    /// If the future is dropped, the look-up continues for other callers.
    pub async fn look_up(&self, name: &str, namespace: &str, limit: Duration) -> Answer {
        if let Some(known) = self.known(name) {
            return Ok(known);
        }
        let mut answer = self.fly(name, namespace)?;
        let answered = tokio::time::timeout(limit, answer.wait_for(Option::is_some)).await;
        match answered.map(|answer| answer.ok().and_then(|answer| answer.clone())) {
            Ok(Some(answer)) => answer,
            Ok(None) => Err(LookupError::Failed { name: name.to_owned(), reason: "the look-up broke off".to_owned() }),
            Err(_) => Err(LookupError::Timeout { name: name.to_owned(), limit }),
        }
    }

    /// Starts a look-up in the background, or joins the one in flight.
    fn fly(&self, name: &str, namespace: &str) -> Result<watch::Receiver<Option<Answer>>, LookupError> {
        let failed = |reason: String| LookupError::Failed { name: name.to_owned(), reason };
        let runtime = self.0.runtime.clone().ok_or_else(|| failed("there is no runtime".to_owned()))?;
        let client = self.client().map_err(|error| failed(error.to_string()))?;
        let mut flights = self.flights();
        if let Some(flight) = flights.by_name.get(name) {
            return Ok(flight.clone());
        }
        let full = flights.by_name.len() >= AT_A_TIME;
        let of_namespace = flights.by_namespace.entry(namespace.into()).or_default();
        if full || *of_namespace >= OF_NAMESPACE {
            return Err(LookupError::TooMany { name: name.to_owned() });
        }
        *of_namespace += 1;
        let (told, flight) = watch::channel(None);
        flights.by_name.insert(name.into(), flight.clone());
        let of = Flight { resolver: self.clone(), name: name.to_owned(), namespace: namespace.to_owned() };
        runtime.spawn(async move {
            let answer = of.resolver.ask(&client, &of.name).await;
            // The answer is cached before the flight ends, so no caller starts a second look-up.
            drop(of);
            told.send_replace(Some(answer));
        });
        Ok(flight)
    }

    async fn ask(&self, client: &TokioResolver, name: &str) -> Answer {
        let failed = |reason: String| LookupError::Failed { name: name.to_owned(), reason };
        // The dot at its end keeps search domains out.
        let answer = tokio::time::timeout(LONGEST, client.lookup_ip(format!("{name}."))).await;
        let answer = answer.map_err(|_| LookupError::Timeout { name: name.to_owned(), limit: LONGEST })?;
        let answer = answer.map_err(|error| failed(error.to_string()))?;
        let addresses: Arc<[IpAddr]> = answer.iter().take(MOST_ADDRESSES).collect();
        if addresses.is_empty() {
            return Err(failed("it has no address".to_owned()));
        }
        self.remember(name, CachedAnswer { addresses: addresses.clone(), until: answer.valid_until() });
        Ok(addresses)
    }

    fn flights(&self) -> MutexGuard<'_, Flights> {
        self.0.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, name: &str) -> Option<Arc<[IpAddr]>> {
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get(name)?;
        (known.until > Instant::now()).then(|| known.addresses.clone())
    }

    fn remember(&self, name: &str, answer: CachedAnswer) {
        let now = Instant::now();
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_NAMES {
            known.retain(|_, known| known.until > now);
        }
        if answer.until > now && known.len() < MOST_NAMES {
            known.insert(name.into(), answer);
        }
    }

    fn client(&self) -> Result<TokioResolver, hickory_resolver::net::NetError> {
        let mut made = self.0.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*made {
            return Ok(client.clone());
        }
        let mut builder = if self.0.servers.is_empty() {
            // This includes the hosts file of the machine.
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
        if !self.0.servers.is_empty() {
            options.use_hosts_file = ResolveHosts::Never;
        }
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

impl Flights {
    fn end(&mut self, name: &str, namespace: &str) {
        self.by_name.remove(name);
        if let Some(count) = self.by_namespace.get_mut(namespace) {
            *count -= 1;
            if *count == 0 {
                self.by_namespace.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::base::iana::Rcode;
    use domain::base::{Message, MessageBuilder, Rtype, Ttl};
    use domain::rdata::A;
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::net::UdpSocket;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A name server that answers for names that begin with `good`, after a while, and says nothing
    /// about others. Counts questions for addresses.
    async fn name_server() -> (SocketAddr, Arc<AtomicUsize>) {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let (address, count) = (socket.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counted = count.clone();
        tokio::spawn(async move {
            let mut question = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut question).await {
                let message = Message::from_octets(question[..length].to_vec()).unwrap();
                let asked = message.sole_question().unwrap();
                if !asked.qname().to_string().starts_with("good") || asked.qtype() != Rtype::A {
                    continue;
                }
                counted.fetch_add(1, Ordering::SeqCst);
                let mut reply = MessageBuilder::new_vec().start_answer(&message, Rcode::NOERROR).unwrap();
                reply.push((asked.qname(), Ttl::from_secs(60), A::new(Ipv4Addr::new(192, 0, 2, 7)))).unwrap();
                let (socket, reply) = (socket.clone(), reply.finish());
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    socket.send_to(&reply, from).await
                });
            }
        });
        (address, count)
    }

    #[tokio::test]
    async fn those_who_ask_for_one_name_wait_for_one_answer() {
        let (server, count) = name_server().await;
        let resolver = Resolver::new(vec![server]);
        let all: Vec<_> = (0..1000)
            .map(|_| {
                let resolver = resolver.clone();
                tokio::spawn(async move { resolver.look_up("good.example", "a", LIMIT).await })
            })
            .collect();
        for one in all {
            assert_eq!(one.await.unwrap().unwrap()[..], [IpAddr::from([192, 0, 2, 7])]);
        }
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(resolver.flights().by_namespace.is_empty());
    }

    #[tokio::test]
    async fn a_namespace_whose_names_are_not_answered_leaves_the_others_theirs() {
        let (server, _) = name_server().await;
        let resolver = Resolver::new(vec![server]);
        resolver.look_up("good.a.example", "a", LIMIT).await.unwrap();
        for number in 0..OF_NAMESPACE {
            let given_up = resolver.look_up(&format!("n{number}.example"), "a", Duration::ZERO).await;
            assert!(matches!(given_up, Err(LookupError::Timeout { .. })), "{given_up:?}");
        }
        let refused = resolver.look_up("good.other.example", "a", LIMIT).await;
        assert!(matches!(refused, Err(LookupError::TooMany { .. })), "{refused:?}");
        assert!(resolver.look_up("good.a.example", "a", LIMIT).await.is_ok(), "what is known needs no look-up");
        assert!(resolver.look_up("good.b.example", "b", LIMIT).await.is_ok(), "it is another namespace's");
    }
}
