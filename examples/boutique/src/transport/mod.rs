//! Transports of calls between functions. All of them keep their connections and log nothing, so
//! that comparisons show only the transport. Each function has a single thread.

pub mod chain;
pub mod grpc;
pub mod http;

use std::collections::HashMap;
use std::net::SocketAddr;

/// The addresses of functions, without a mesh: `BOUTIQUE_DIRECT=cart=127.0.0.1:9001,…`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Direct(HashMap<String, SocketAddr>);

impl Direct {
    /// Reads the addresses from the environment; `None`: there is a mesh.
    pub fn from_env() -> Result<Option<Self>, String> {
        std::env::var("BOUTIQUE_DIRECT").ok().map(|text| Self::parse(&text)).transpose()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let pair = |pair: &str| {
            let (name, address) = pair.split_once('=')?;
            Some((name.to_owned(), address.parse().ok()?))
        };
        let pairs = text.split(',').filter(|pair| !pair.is_empty());
        let all =
            pairs.map(|text| pair(text).ok_or_else(|| format!("`{text}` in BOUTIQUE_DIRECT is not NAME=ADDRESS")));
        all.collect::<Result<_, _>>().map(Self)
    }

    fn address(&self, callee: &str) -> Option<SocketAddr> {
        self.0.get(callee).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let direct = Direct::parse("cart=127.0.0.1:9001,ad=127.0.0.1:9002,").unwrap();
        assert_eq!(direct.address("ad"), Some(SocketAddr::from(([127, 0, 0, 1], 9002))));
        assert_eq!(direct.address("email"), None);
        assert!(Direct::parse("cart").is_err() && Direct::parse("cart=here").is_err());
    }
}
