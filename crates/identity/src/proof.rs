//! Proves that a certificate of another authority works here, before that authority signs
//! certificates in use.

use crate::control::control_server_config;
use crate::failure::in_words;
use crate::store::{RenewError, SvidStore};
use crate::tls::{TlsError, client_config, server_name};
use leno_model::SpiffeId;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConnection, ServerConnection};
use std::future::Future;
use std::io;

/// Turns that a handshake takes at most; it takes three.
const TURNS: usize = 10;

/// Why a certificate does not work.
#[derive(Debug, thiserror::Error)]
pub enum ProofError<E: std::error::Error> {
    /// It was not signed, or is refused.
    #[error(transparent)]
    Certificate(#[from] RenewError<E>),
    /// No TLS configuration can be made of it.
    #[error(transparent)]
    Configuration(#[from] TlsError),
    /// One end refused the other.
    #[error("the handshake failed: {0}")]
    Handshake(#[from] HandshakeError),
}

/// Why a handshake fails.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// One end refused the other.
    #[error("{}", in_words(.0))]
    Tls(#[from] rustls::Error),
    /// Bytes could not be passed on.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The client showed no certificate.
    #[error("the client showed no certificate")]
    NoCertificate,
    /// It takes more turns than a handshake has.
    #[error("it does not end")]
    Endless,
}

impl SvidStore {
    /// Requests a certificate for `id`, and does a handshake with itself in which both ends show
    /// it, with the roots and the clock of this store. The store does not change.
    pub async fn prove<S, F, E>(&self, id: &SpiffeId, sign: S) -> Result<(), ProofError<E>>
    where
        S: FnOnce(Vec<u8>) -> F,
        F: Future<Output = Result<Vec<CertificateDer<'static>>, E>>,
        E: std::error::Error,
    {
        let apart = Self::with_clock(self.bundle().as_ref().clone(), self.clock().clone());
        apart.renew(id, sign).await?;
        let server = ServerConnection::new(control_server_config(&apart, id)?).map_err(HandshakeError::from)?;
        let name = server_name(&SpiffeId::control(apart.bundle().trust_domain()).map_err(TlsError::from)?)?;
        let client = ClientConnection::new(client_config(&apart, id, id)?, name).map_err(HandshakeError::from)?;
        Ok(handshake(client, server)?)
    }
}

fn handshake(mut client: ClientConnection, mut server: ServerConnection) -> Result<(), HandshakeError> {
    for _ in 0..TURNS {
        if !client.is_handshaking() && !server.is_handshaking() {
            let shown = server.peer_certificates().is_some();
            return if shown { Ok(()) } else { Err(HandshakeError::NoCertificate) };
        }
        let mut sent = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sent)?;
        }
        let mut rest = &sent[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest)?;
            server.process_new_packets()?;
        }
        let mut sent = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut sent)?;
        }
        let mut rest = &sent[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest)?;
            client.process_new_packets()?;
        }
    }
    Err(HandshakeError::Endless)
}
