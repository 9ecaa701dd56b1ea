//! Secrets are read from files of the node when they are needed. Errors never hold any of them.

use crate::slice::Secret;
use std::fs::File;
use std::io::{self, Read};

/// More is not a secret but a mistake.
const LARGEST: u64 = 1 << 20;

impl Secret {
    /// What its file holds.
    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut value = Vec::new();
        File::open(&self.from)?.take(LARGEST + 1).read_to_end(&mut value)?;
        if value.len() as u64 > LARGEST {
            return Err(io::Error::other("it is larger than 1 MiB"));
        }
        Ok(value)
    }

    /// The same for an environment: text, without the line end that editors put at the end of files, which is hardly ever part of a
    /// password.
    pub fn text(&self) -> io::Result<String> {
        let mut text = String::from_utf8(self.bytes()?).map_err(|_| io::Error::other("it is not UTF-8"))?;
        if text.ends_with('\n') {
            text.pop();
        }
        if text.contains('\0') {
            return Err(io::Error::other("a NUL character cannot be in the environment"));
        }
        Ok(text)
    }
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
        assert_eq!(secret.text().unwrap(), "swordfish");
        assert_eq!(secret.bytes().unwrap(), b"swordfish\n");
    }

    #[test]
    fn what_cannot_be_a_secret_of_an_environment_is_an_error() {
        for (content, why) in
            [(&b"a\0b"[..], "NUL"), (&[b's', 0xff], "UTF-8"), (&vec![b's'; LARGEST as usize + 1], "larger than 1 MiB")]
        {
            let (_folder, secret) = secret(content);
            let text = secret.text().unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
    }
}
