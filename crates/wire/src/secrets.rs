//! The encoding of a function's stored secrets. Their own types have none, so that no other code
//! encodes them.

use crate::encoding::{EncodingError, Observe, from_bytes_observed, to_bytes};
use crate::resource::{Content, Subject, Version};
use bytes::Bytes;
use leno_model::{SecretBytes, SecretValues, StoredKey};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

/// A value on its way to a node.
#[derive(Serialize, Deserialize)]
struct DeliveredSecret {
    secret: String,
    key: String,
    value: Vec<u8>,
    mark: [u8; 16],
}

impl Drop for DeliveredSecret {
    fn drop(&mut self) {
        self.value.zeroize();
    }
}

impl Content {
    /// Encodes the stored secrets of a function. The marks of the values, which only the control
    /// plane can compute, are in the payload: without them, its version would help to guess values.
    pub fn of_secrets(values: &SecretValues) -> Result<Self, EncodingError> {
        let delivered = |(StoredKey { secret, key }, value): (&StoredKey, &SecretBytes)| DeliveredSecret {
            secret: secret.clone(),
            key: key.clone(),
            value: value.expose().to_vec(),
            mark: value.mark(),
        };
        let payload = to_bytes(&values.iter().map(delivered).collect::<Vec<_>>())?;
        Ok(Self { version: Version::of(&payload), payload: Bytes::from_owner(Zeroizing::new(payload)) })
    }
}

impl Content {
    /// A payload of its own. One with secrets is overwritten when it is dropped.
    pub fn copy_payload(&self, subject: &Subject) -> Bytes {
        match subject {
            Subject::Secrets(_) => Bytes::from_owner(Zeroizing::new(self.payload.to_vec())),
            _ => Bytes::copy_from_slice(&self.payload),
        }
    }
}

pub(crate) fn decode(payload: &[u8], observe: Observe) -> Result<SecretValues, EncodingError> {
    let delivered: Vec<DeliveredSecret> = from_bytes_observed(payload, observe)?;
    let value = |mut delivered: DeliveredSecret| {
        let (secret, key) = (std::mem::take(&mut delivered.secret), std::mem::take(&mut delivered.key));
        let value = Zeroizing::new(std::mem::take(&mut delivered.value));
        (StoredKey { secret, key }, SecretBytes::new(value, delivered.mark))
    };
    Ok(delivered.into_iter().map(value).collect())
}
