//! The addresses of control planes, for times without a name server.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::net::lookup_host;

/// How long a name server may take, if the addresses of the name are known. It may be on the same node
/// as the control plane that was lost.
const LOOK_UP: Duration = Duration::from_secs(1);

/// The last addresses of each name.
#[derive(Debug, Default)]
pub(crate) struct KnownAddresses(Mutex<BTreeMap<String, Vec<SocketAddr>>>);

/// Those of this process.
pub(crate) static KNOWN: KnownAddresses = KnownAddresses(Mutex::new(BTreeMap::new()));

impl KnownAddresses {
    /// The addresses of `host:port`: those of now, or the last ones if the name server does not answer.
    pub(crate) async fn of(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        self.of_with(name, async { Ok(lookup_host(name).await?.collect()) }).await
    }

    async fn of_with(
        &self,
        name: &str,
        look_up: impl Future<Output = io::Result<Vec<SocketAddr>>>,
    ) -> io::Result<Vec<SocketAddr>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        let found = match &known {
            None => look_up.await,
            Some(_) => tokio::time::timeout(LOOK_UP, look_up).await.unwrap_or(Err(io::ErrorKind::TimedOut.into())),
        };
        match (found, known) {
            (Ok(found), known) if !found.is_empty() || known.is_none() => {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), found.clone());
                Ok(found)
            }
            (found, Some(known)) => {
                let error = found.err().map(tracing::field::display);
                tracing::warn!(name, error, "the name of a control plane is not found; its last addresses are used");
                Ok(known)
            }
            (found, None) => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[tokio::test]
    async fn the_last_addresses_count_while_the_name_server_is_away() {
        let (known, name) = (KnownAddresses::default(), "control:15010");
        let addresses = |number: u8| vec![SocketAddr::from(([10, 0, 0, number], 15010))];
        let away = || ready(Err(io::Error::other("no name server")));
        assert_eq!(known.of_with(name, away()).await.unwrap_err().to_string(), "no name server");
        assert_eq!(known.of_with(name, ready(Ok(addresses(1)))).await.unwrap(), addresses(1));
        assert_eq!(known.of_with(name, away()).await.unwrap(), addresses(1));
        assert_eq!(known.of_with(name, pending()).await.unwrap(), addresses(1));
        assert_eq!(known.of_with(name, ready(Ok(addresses(2)))).await.unwrap(), addresses(2), "it is there again");
        assert_eq!(known.of_with(name, ready(Ok(Vec::new()))).await.unwrap(), addresses(2));
        assert!(known.of_with("other:15010", away()).await.is_err());
    }
}
