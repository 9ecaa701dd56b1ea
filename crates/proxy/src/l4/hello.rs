//! The hello of a TLS client, from which the node reads the server name (SNI). The bytes are kept, so
//! that the server gets them too.

use super::Stop;
use leno_policy::host::of_authority;
use rustls::server::Acceptor;
use std::borrow::Cow;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_rustls::rustls;

/// Limit on the bytes of a hello. Usual ones have some hundred to two thousand.
const MAX_BYTES: usize = 16 * 1024;

/// Reads a hello into `read`, which may have its beginning, and returns the server name in the form in which hosts are compared;
/// `None`: it names none.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    read: &mut Vec<u8>,
    longest: Duration,
) -> Result<Option<String>, Stop> {
    let name = tokio::time::timeout(longest, read_all(stream, read)).await;
    name.map_err(|_| Stop::Refused(format!("no whole TLS hello came within {longest:?}")))?
}

async fn read_all(stream: &mut (impl AsyncRead + Unpin), read: &mut Vec<u8>) -> Result<Option<String>, Stop> {
    let (mut hello, mut taken) = (Hello::default(), 0);
    loop {
        let new = read.get(taken..).unwrap_or_default();
        taken = read.len();
        match hello.take(new).map_err(Stop::Refused)? {
            Some(name) => return Ok(name),
            None if read.len() > MAX_BYTES => return Err(Stop::Refused("its TLS hello is too long".to_owned())),
            None => {}
        }
        if stream.read_buf(read).await? == 0 {
            return Err(Stop::Failed("it ended before it said anything".to_owned()));
        }
    }
}

/// A hello that is read piece by piece.
#[derive(Default)]
pub(crate) struct Hello(Acceptor);

impl Hello {
    /// Takes the next bytes. Returns the server name once the hello is whole, if it has one. The error
    /// is the reason of a refusal.
    pub(crate) fn take(&mut self, mut new: &[u8]) -> Result<Option<Option<String>>, String> {
        let not_tls = |error: &dyn std::fmt::Display| format!("what came is no TLS: {error}");
        while !new.is_empty() {
            // It takes a part at a time.
            if self.0.read_tls(&mut new).map_err(|error| not_tls(&error))? == 0 {
                return Err("its TLS hello is too long".to_owned());
            }
        }
        match self.0.accept() {
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().and_then(of_authority).map(Cow::into_owned);
                Ok(Some(name))
            }
            Ok(None) => Ok(None),
            Err((error, _)) => Err(not_tls(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore};

    fn hello_of(name: &'static str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(config), ServerName::try_from(name).unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_hello_names_its_server_however_it_arrives() {
        for (name, wanted) in [("Shop.Example", Some("shop.example")), ("192.0.2.1", None)] {
            let bytes = hello_of(name);
            for length in [1, 50, bytes.len()] {
                let mut hello = Hello::default();
                let found = bytes.chunks(length).find_map(|piece| hello.take(piece).unwrap());
                assert_eq!(found.unwrap().as_deref(), wanted, "{name} by {length}");
            }
            crate::fuzzing::hello(&bytes);
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let cut = hello_of("shop.example");
        assert_eq!(Hello::default().take(&cut[..cut.len() - 1]), Ok(None));
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0, 4, 9, 0, 0, 0]] {
            let refused = Hello::default().take(bytes).unwrap_err();
            assert!(refused.contains("no TLS"), "{refused}");
            crate::fuzzing::hello(bytes);
        }
    }
}
