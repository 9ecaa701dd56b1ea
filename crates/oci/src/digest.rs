use aws_lc_rs::digest::{Context, SHA256};
use std::fmt;
use std::str::FromStr;

/// A SHA-256 digest, written `sha256:` and 64 hexadecimal digits. It names a blob by its content.
///
/// OCI also knows SHA-512, which hardly any tool uses; it is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `content`.
    pub fn of(content: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(content);
        hasher.finish()
    }

    /// The 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn from_hex(hex: &str) -> Option<Self> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Self(bytes))
    }

    /// The chain IDs of unpacked layers, bottom to top, as the OCI image specification defines
    /// them. Each names a layer together with all layers below it.
    pub(crate) fn chain(diff_ids: &[Self]) -> Vec<Self> {
        let mut below = None;
        let next = |layer: &Self| {
            let id = below.map_or(*layer, |below| Self::of(format!("{below} {layer}").as_bytes()));
            below = Some(id);
            id
        };
        diff_ids.iter().map(next).collect()
    }
}

/// A text that is no supported digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no digest that is supported; expected `sha256:` and 64 lower-case hexadecimal digits")]
pub struct DigestError(String);

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        text.strip_prefix("sha256:").and_then(Self::from_hex).ok_or_else(|| DigestError(text.to_owned()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone)]
pub(crate) struct Hasher(Context);

impl Default for Hasher {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.finish().as_ref());
        Digest(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_as_they_are_read() {
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), text);
        assert_eq!(text.parse(), Ok(Digest::of(b"")));
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        let good = Digest::of(b"").hex();
        for bad in [
            "",
            &good,
            &format!("sha512:{good}"),
            &format!("sha256:{}", &good[1..]),
            &format!("sha256:{good}0"),
            &format!("sha256:{}", good.to_uppercase()),
        ] {
            assert!(bad.parse::<Digest>().unwrap_err().to_string().contains("64 lower-case"), "{bad}");
        }
    }

    #[test]
    fn a_chain_begins_with_the_digest_of_its_first_layer() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        assert_eq!(Digest::chain(&[a, b]), [a, Digest::of(format!("{a} {b}").as_bytes())]);
    }
}
