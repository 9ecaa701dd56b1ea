//! Checks the addresses to which an image's name may lead connections, if the operator has not
//! written that name.

use super::causes;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use url::{Host, Url};

/// Judges addresses of registries that the operator has not named, of the hosts these redirect to,
/// and of their token servers. The connection goes to an address that was judged; its name is not
/// looked up again. Registries that the settings name, and proxies, are the operator's and not
/// judged: a proxy resolves names itself.
#[derive(Clone, Default)]
pub struct AddressCheck(Option<Arc<Judge>>);

pub(super) type Reason = Box<dyn std::error::Error + Send + Sync>;
type Judge = dyn Fn(IpAddr) -> Result<(), Reason> + Send + Sync;

impl AddressCheck {
    /// The error of `judge` says why an address is refused.
    pub fn new<E: Into<Reason>>(judge: impl Fn(IpAddr) -> Result<(), E> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(move |address| judge(address).map_err(E::into))))
    }

    pub(super) fn is_any(&self) -> bool {
        self.0.is_none()
    }

    fn judge(&self, address: IpAddr) -> Result<(), Reason> {
        self.0.as_ref().map_or(Ok(()), |judge| judge(address))
    }

    /// Judges a URL whose host is an address. Names are judged when they are looked up.
    pub(super) fn url(&self, url: &Url) -> Result<(), Reason> {
        match url.host() {
            Some(Host::Ipv4(address)) => self.judge(address.into()),
            Some(Host::Ipv6(address)) => self.judge(address.into()),
            Some(Host::Domain(_)) | None => Ok(()),
        }
    }
}

impl fmt::Debug for AddressCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AddressCheck").field(&self.0.is_some()).finish()
    }
}

/// Looks names up for the HTTP client.
pub(super) struct Lookup {
    pub check: AddressCheck,
    /// Hosts of proxies.
    pub proxies: Vec<String>,
}

impl Resolve for Lookup {
    fn resolve(&self, name: Name) -> Resolving {
        let check = if self.proxies.iter().any(|proxy| proxy == name.as_str()) {
            AddressCheck::default()
        } else {
            self.check.clone()
        };
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await.map_err(|error| causes(&error))?;
            let (mut good, mut refused) = (Vec::new(), None);
            for address in found {
                match check.judge(address.ip()) {
                    Ok(()) => good.push(address),
                    Err(reason) => refused = Some(reason),
                }
            }
            match refused {
                Some(reason) if good.is_empty() => Err(format!("{}: {reason}", name.as_str()).into()),
                _ => Ok(Box::new(good.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send> as Addrs),
            }
        })
    }
}
