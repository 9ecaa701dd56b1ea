//! Secrets in files of the node. Errors never contain a secret.

use leno_files::{FileAccess, MAX_SMALL_FILE, readers};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// The most bytes of all secrets of one function.
const MAX_TOTAL: usize = 8 << 20;

/// A secret of a function or job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// Name of the environment variable or of the file.
    pub name: String,
    /// The node's file with the secret.
    pub from: PathBuf,
    /// The instance gets it in its environment; otherwise in a file.
    pub environment: bool,
}

/// The content of a secret's file. No log may contain it.
pub enum SecretValue {
    /// For the environment: text, without the newline that editors add at the end of a file.
    Text(String),
    /// For a file of the instance: all bytes.
    Bytes(Vec<u8>),
}

impl SecretValue {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

impl Secret {
    /// The value for a header field or the environment. Blocks on the file system.
    ///
    /// # Errors
    /// The file cannot be read, or is not a text.
    pub fn text(&self, access: &FileAccess) -> io::Result<String> {
        let mut text = String::from_utf8(self.bytes(access)?).map_err(|_| io::Error::other("it is not UTF-8"))?;
        if text.ends_with('\n') {
            text.pop();
        }
        if text.contains('\0') {
            return Err(io::Error::other("a NUL character cannot be in the environment"));
        }
        Ok(text)
    }

    fn bytes(&self, access: &FileAccess) -> io::Result<Vec<u8>> {
        leno_files::read(&self.from, access, MAX_SMALL_FILE)
    }

    fn value(&self, access: &FileAccess) -> io::Result<SecretValue> {
        if self.environment {
            self.text(access).map(SecretValue::Text)
        } else {
            self.bytes(access).map(SecretValue::Bytes)
        }
    }
}

/// Reads the secrets of a function or job, on the threads that read files of its namespace. Returns
/// the values in the same order.
///
/// # Errors
/// Names the secret and its file.
pub async fn secret_values(secrets: &[Secret], namespace: &str, access: &FileAccess) -> io::Result<Vec<SecretValue>> {
    let Some(first) = secrets.first() else { return Ok(Vec::new()) };
    if let Some((secret, reason)) =
        secrets.iter().find_map(|secret| Some((secret, access.refusal(namespace, &secret.from)?)))
    {
        return Err(explain(secret, &io::Error::new(io::ErrorKind::PermissionDenied, reason)));
    }
    let (own, access) = (secrets.to_vec(), access.clone());
    let read = readers::run(namespace, readers::MAX_WAIT, move || {
        let mut left = MAX_TOTAL;
        let value = |secret: &Secret| {
            let value = secret.value(&access).map_err(|error| explain(secret, &error))?;
            left = left.checked_sub(value.len()).ok_or_else(|| {
                let text = format!("all secrets of a function together have more than {MAX_TOTAL} bytes");
                explain(secret, &io::Error::new(io::ErrorKind::FileTooLarge, text))
            })?;
            Ok(value)
        };
        Ok(own.iter().map(value).collect::<io::Result<Vec<_>>>())
    });
    // Any of the files may be the one that hangs. The error names the first.
    read.await.map_err(|error| explain(first, &error))?
}

fn explain(secret: &Secret, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("secret `{}` from {}: {error}", secret.name, secret.from.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(content: &[u8]) -> (tempfile::TempDir, Secret) {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("secret");
        std::fs::write(&from, content).unwrap();
        (folder, Secret { name: "TOKEN".into(), from, environment: true })
    }

    #[test]
    fn a_line_end_is_not_part_of_a_text() {
        let (_folder, secret) = secret(b"swordfish\n");
        assert_eq!(secret.text(&FileAccess::Any).unwrap(), "swordfish");
        assert_eq!(secret.bytes(&FileAccess::Any).unwrap(), b"swordfish\n");
    }

    #[test]
    fn what_cannot_be_a_secret_of_an_environment_is_an_error() {
        for (content, why) in [
            (&b"a\0b"[..], "NUL"),
            (&[b's', 0xff], "UTF-8"),
            (&vec![b's'; MAX_SMALL_FILE as usize + 1], "more than 1048576"),
        ] {
            let (_folder, secret) = secret(content);
            let text = secret.text(&FileAccess::Any).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
    }
}
