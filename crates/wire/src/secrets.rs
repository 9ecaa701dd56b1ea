//! The encoding of a function's stored secrets. Their own types have none, so that no other code
//! encodes them.

use crate::encoding::{EncodingError, Observe, from_bytes_observed, to_bytes};
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

/// Encodes stored secrets. The marks of the values, which only the control plane can compute, are in
/// the payload: without them, its version would help to guess values.
pub(crate) fn encode(values: &SecretValues) -> Result<Zeroizing<Vec<u8>>, EncodingError> {
    let delivered = |(StoredKey { secret, key }, value): (&StoredKey, &SecretBytes)| DeliveredSecret {
        secret: secret.clone(),
        key: key.clone(),
        value: value.expose().to_vec(),
        mark: value.mark(),
    };
    to_bytes(&values.iter().map(delivered).collect::<Vec<_>>()).map(Zeroizing::new)
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
