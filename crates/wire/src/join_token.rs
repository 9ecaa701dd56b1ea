//! Join tokens and node names.
//!
//! A join token holds a secret and the hash of a root certificate, by which the machine verifies
//! the control plane.

use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leno_identity::{RootPin, TrustDomain};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// Lets one machine join once. It is never printed: `Debug` shows the type's name only.
#[derive(Clone)]
pub struct JoinToken {
    secret: Zeroizing<[u8; SECRET]>,
    pin: RootPin,
    trust_domain: TrustDomain,
}

const SECRET: usize = 16;
const PIN: usize = 32;
/// The longest name of a node in Kubernetes.
const MAX_NODE_NAME: usize = 253;
const PREFIX: &str = "leno-join-";

/// A text that is no join token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a join token: one begins with `leno-join-` and is made by `leno token join`")]
pub struct NoToken;

/// The operating system could not provide random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no join token could be generated")]
pub struct NoRandomness;

/// A text that is not a node name: 1 to 253 characters out of `a-z`, `0-9`, `.` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a node name: expected 1 to 253 characters out of a-z, 0-9, `.` and `-`")]
pub struct BadNodeName(String);

impl JoinToken {
    /// Makes a token with a new secret, for a control plane with this root.
    pub fn generate(pin: RootPin, trust_domain: TrustDomain) -> Result<Self, NoRandomness> {
        let mut secret = Zeroizing::new([0; SECRET]);
        rand::fill(&mut *secret).map_err(|_| NoRandomness)?;
        Ok(Self { secret, pin, trust_domain })
    }

    /// The token as text, for the node. Pass it only over a confidential channel.
    pub fn reveal(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET + PIN + self.trust_domain.as_str().len()));
        bytes.extend_from_slice(&*self.secret);
        bytes.extend_from_slice(self.pin.as_bytes());
        bytes.extend_from_slice(self.trust_domain.as_str().as_bytes());
        Zeroizing::new(format!("{PREFIX}{}", *Zeroizing::new(URL_SAFE_NO_PAD.encode(&*bytes))))
    }

    /// The root by which the control plane is known.
    pub fn pin(&self) -> RootPin {
        self.pin
    }

    /// The trust domain that the node joins.
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// Whether bytes may be the secret of a join token. Credentials of platforms are longer.
    pub fn is_secret(bytes: &[u8]) -> bool {
        bytes.len() == SECRET
    }

    /// The secret, which only the node and the control plane know.
    pub fn secret(&self) -> &[u8; 16] {
        &self.secret
    }
}

impl FromStr for JoinToken {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(NoToken)?;
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(encoded).map_err(|_| NoToken)?);
        let (secret, rest) = bytes.split_first_chunk::<SECRET>().ok_or(NoToken)?;
        let (pin, trust_domain) = rest.split_first_chunk::<PIN>().ok_or(NoToken)?;
        let trust_domain = std::str::from_utf8(trust_domain).ok().and_then(|text| text.parse().ok()).ok_or(NoToken)?;
        Ok(Self { secret: Zeroizing::new(*secret), pin: RootPin::from_bytes(*pin), trust_domain })
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinToken")
    }
}

/// Checks the name of a node.
pub fn check_node_name(name: &str) -> Result<(), BadNodeName> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    // A segment of dots is no name in a SPIFFE ID.
    if name.is_empty()
        || name.len() > MAX_NODE_NAME
        || !name.bytes().all(allowed)
        || name.bytes().all(|byte| byte == b'.')
    {
        return Err(BadNodeName(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_identity::Authority;

    #[test]
    fn a_token_as_text_and_never_in_a_log() {
        let domain: TrustDomain = "orders.example".parse().unwrap();
        let pin = RootPin::of(Authority::new(&domain).unwrap().bundle().roots().next().unwrap());
        let token = JoinToken::generate(pin, domain).unwrap();
        let text = token.reveal();
        let read: JoinToken = text.parse().unwrap();
        assert_eq!((read.secret(), read.pin(), read.trust_domain()), (token.secret(), pin, token.trust_domain()));
        assert_eq!(format!("{token:?} {token:#?}"), "JoinToken JoinToken");
        for wrong in
            ["", "leno-join-", "leno-join-!", "leno-join-AAAA", &text[1..], &text[..60], &format!("{}_", *text)]
        {
            assert!(wrong.parse::<JoinToken>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_nodes() {
        for name in ["a", "node-1.example", &"n".repeat(253)] {
            check_node_name(name).unwrap();
        }
        for name in ["", "A", "a b", "ä", "a/b", ".", "..", &"n".repeat(254)] {
            assert_eq!(check_node_name(name), Err(BadNodeName(name.to_owned())));
        }
    }
}
