//! Secrets that documents name: files of the node, and stored secrets. Errors never contain a
//! secret.

use crate::function_id::FunctionId;
use crate::stored_secret::{SecretValues, StoredKey};
use leno_files::{FileAccess, MAX_SMALL_FILE, readers};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// The most bytes of all secrets of one function.
const MAX_TOTAL: usize = 8 << 20;

/// The name of a newtype whose values are a text, as written, or a list or mapping. Without it, the
/// plain values `5` and `true` of a document would be a number and a boolean.
pub const TEXT_OR_MORE: &str = "leno.dev/text or more";

/// Where a secret comes from: `FILE`, or `{secret: NAME, key: KEY}` of a StoredSecret document in
/// the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SecretSource {
    /// A file of the node.
    File(PathBuf),
    /// A stored secret.
    Stored(StoredKey),
}

impl SecretSource {
    /// The file; `None`: it is a stored secret.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Stored(_) => None,
        }
    }

    /// The stored secret; `None`: it is a file.
    pub fn stored(&self) -> Option<&StoredKey> {
        match self {
            Self::File(_) => None,
            Self::Stored(key) => Some(key),
        }
    }
}

impl<P: Into<PathBuf>> From<P> for SecretSource {
    fn from(path: P) -> Self {
        Self::File(path.into())
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Stored(key) => key.fmt(f),
        }
    }
}

impl Serialize for SecretSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::File(path) => path.serialize(serializer),
            Self::Stored(key) => key.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for SecretSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Source;
        impl<'de> de::Visitor<'de> for Source {
            type Value = SecretSource;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a file, or {secret: NAME, key: KEY} of a StoredSecret")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
                deserializer.deserialize_any(self)
            }

            fn visit_str<E: de::Error>(self, path: &str) -> Result<Self::Value, E> {
                Ok(SecretSource::File(path.into()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                StoredKey::deserialize(de::value::MapAccessDeserializer::new(map)).map(SecretSource::Stored)
            }
        }
        deserializer.deserialize_newtype_struct(TEXT_OR_MORE, Source)
    }
}

impl JsonSchema for SecretSource {
    fn schema_name() -> Cow<'static, str> {
        "SecretSource".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A file of the node, relative to the document's folder; or `{secret: NAME, key: KEY}`, a key of a StoredSecret document in the same namespace.",
            "anyOf": [
                { "type": "string", "minLength": 1 },
                {
                    "type": "object",
                    "properties": {
                        "secret": { "description": "Name of the StoredSecret document.", "type": "string" },
                        "key": { "description": "Key in it.", "type": "string" }
                    },
                    "required": ["secret", "key"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

/// A secret of a function or job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// Name of the environment variable or of the file.
    pub name: String,
    /// Where it comes from.
    pub from: SecretSource,
    /// The instance gets it in its environment; otherwise in a file.
    pub environment: bool,
}

/// The value of a secret. No log may contain it.
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

/// Reads the secrets that the documents of one function name.
#[derive(Clone, Debug, Default)]
pub struct SecretReader {
    files: FileAccess,
    /// `None`: the control plane has delivered none.
    stored: Option<Arc<SecretValues>>,
}

impl SecretReader {
    /// Reads the files that `files` admits, and these stored secrets.
    pub fn new(files: FileAccess, stored: Option<Arc<SecretValues>>) -> Self {
        Self { files, stored }
    }

    /// Why documents of `namespace` may not name a source; `None`: they may.
    pub fn refusal(&self, namespace: &str, source: &SecretSource) -> Option<String> {
        self.files.refusal(namespace, source.file()?)
    }

    /// The whole value. Blocks on the file system.
    ///
    /// # Errors
    /// The file cannot be read, or the control plane has not delivered the stored secret.
    pub fn bytes(&self, source: &SecretSource) -> io::Result<Zeroizing<Vec<u8>>> {
        match source {
            SecretSource::File(path) => leno_files::read(path, &self.files, MAX_SMALL_FILE).map(Zeroizing::new),
            SecretSource::Stored(key) => {
                let value = self.stored.as_ref().and_then(|stored| stored.get(key));
                let absent = || io::Error::new(io::ErrorKind::NotFound, "the control plane has not delivered it");
                Ok(Zeroizing::new(value.ok_or_else(absent)?.expose().to_vec()))
            }
        }
    }

    /// The value for a header field or the environment. Blocks on the file system.
    ///
    /// # Errors
    /// As [`SecretReader::bytes`], and if the value is not a text.
    pub fn text(&self, source: &SecretSource) -> io::Result<Zeroizing<String>> {
        let bytes = self.bytes(source)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| io::Error::other("it is not UTF-8"))?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        if text.contains('\0') {
            return Err(io::Error::other("a NUL character cannot be in the environment"));
        }
        Ok(Zeroizing::new(text.to_owned()))
    }

    /// The stored secrets of this reader. Two readers with the same ones read the same values.
    pub fn stored(&self) -> Option<&Arc<SecretValues>> {
        self.stored.as_ref()
    }

    /// The files that it reads.
    pub fn files(&self) -> &FileAccess {
        &self.files
    }

    fn value(&self, secret: &Secret) -> io::Result<SecretValue> {
        if secret.environment {
            self.text(&secret.from).map(|mut text| SecretValue::Text(std::mem::take(&mut *text)))
        } else {
            self.bytes(&secret.from).map(|mut bytes| SecretValue::Bytes(std::mem::take(&mut *bytes)))
        }
    }
}

/// Reads the secrets of a function or job, on the threads that read files of its namespace. Returns
/// the values in the same order.
///
/// # Errors
/// Names the secret and its source.
pub async fn secret_values(
    secrets: &[Secret],
    function: &FunctionId,
    reader: SecretReader,
) -> io::Result<Vec<SecretValue>> {
    let Some(first) = secrets.first() else { return Ok(Vec::new()) };
    let namespace = &function.namespace;
    if let Some((secret, reason)) =
        secrets.iter().find_map(|secret| Some((secret, reader.refusal(namespace, &secret.from)?)))
    {
        return Err(explain(secret, &io::Error::new(io::ErrorKind::PermissionDenied, reason)));
    }
    let own = secrets.to_vec();
    let read = readers::run(namespace, readers::MAX_WAIT, move || {
        let mut left = MAX_TOTAL;
        let value = |secret: &Secret| {
            let value = reader.value(secret).map_err(|error| explain(secret, &error))?;
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
    io::Error::new(error.kind(), format!("secret `{}` from {}: {error}", secret.name, secret.from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(content: &[u8]) -> (tempfile::TempDir, SecretSource) {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("secret");
        std::fs::write(&from, content).unwrap();
        (folder, SecretSource::File(from))
    }

    fn reader() -> SecretReader {
        SecretReader::new(FileAccess::Any, None)
    }

    #[test]
    fn a_line_end_is_not_part_of_a_text() {
        let (_folder, secret) = secret(b"swordfish\n");
        assert_eq!(*reader().text(&secret).unwrap(), "swordfish");
        assert_eq!(*reader().bytes(&secret).unwrap(), b"swordfish\n");
    }

    #[test]
    fn what_cannot_be_a_secret_of_an_environment_is_an_error() {
        for (content, why) in [
            (&b"a\0b"[..], "NUL"),
            (&[b's', 0xff], "UTF-8"),
            (&vec![b's'; MAX_SMALL_FILE as usize + 1], "more than 1048576"),
        ] {
            let (_folder, secret) = secret(content);
            let text = reader().text(&secret).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn a_stored_secret_that_was_not_delivered_is_an_error() {
        let key = StoredKey { secret: "db".to_owned(), key: "password".to_owned() };
        let error = reader().bytes(&SecretSource::Stored(key)).unwrap_err().to_string();
        assert!(error.contains("not delivered"), "{error}");
    }
}
