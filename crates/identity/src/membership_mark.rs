//! Distinguishes the certificates of one membership from those of another under the same name, and
//! holds the revoked memberships.

use crate::key::NoKey;
use arc_swap::ArcSwap;
use aws_lc_rs::rand;
use rcgen::SerialNumber;
use rustls::CommonState;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// Octets of a serial number with a mark. Other serial numbers of this authority have 16, so the
/// two cannot be confused.
const OCTETS: usize = 20;
/// The first octet: the number is positive and has all its octets (RFC 5280, section 4.1.2.2).
const FIRST: u8 = 0x40;

/// Eight octets in the serial numbers of a node's certificate and of the certificates that the node
/// has for functions. A node that joins again under the same name gets another mark, so a stolen
/// certificate becomes worthless once its node is revoked or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MembershipMark(pub [u8; 8]);

impl MembershipMark {
    /// The mark in the certificate at the other end of a connection; `None`: there is none.
    pub fn of_peer(connection: &CommonState) -> Option<Self> {
        Self::of(connection.peer_certificates()?.first()?)
    }

    /// The mark in a certificate; `None`: there is none.
    pub fn of(leaf: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
        let serial = <[u8; OCTETS]>::try_from(certificate.raw_serial()).ok()?;
        let (first, rest) = serial.split_first()?;
        (*first == FIRST).then_some(Self(*rest.first_chunk()?))
    }

    /// A serial number with this mark and 88 random bits.
    pub(crate) fn serial_number(self) -> Result<SerialNumber, NoKey> {
        let mut random = [0; OCTETS - 9];
        rand::fill(&mut random).map_err(|_| NoKey)?;
        let octets: Vec<u8> = [FIRST].into_iter().chain(self.0).chain(random).collect();
        Ok(SerialNumber::from_slice(&octets))
    }
}

/// The memberships whose certificates are refused though they have not expired.
#[derive(Default)]
pub(crate) struct RevokedMemberships {
    /// Sorted.
    marks: ArcSwap<Vec<MembershipMark>>,
    /// Whether there is any mark. Usually there is none, and then the list is not read.
    any: AtomicBool,
}

impl RevokedMemberships {
    pub(crate) fn set(&self, mut marks: Vec<MembershipMark>) {
        marks.sort_unstable();
        let any = !marks.is_empty();
        self.marks.store(Arc::new(marks));
        self.any.store(any, Ordering::Release);
    }

    pub(crate) fn contains(&self, mark: Option<MembershipMark>) -> bool {
        self.any.load(Ordering::Acquire) && mark.is_some_and(|mark| self.marks.load().binary_search(&mark).is_ok())
    }

    /// Whether a certificate belongs to such a membership.
    pub(crate) fn has(&self, leaf: &CertificateDer<'_>) -> bool {
        self.any.load(Ordering::Acquire) && self.contains(MembershipMark::of(leaf))
    }
}
