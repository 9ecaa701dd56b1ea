//! The list of enforced namespaces that the agent leaves on its node for the time when it is away.
//!
//! The list is a file with one namespace a line. The agent replaces it as a whole whenever the set
//! of enforced namespaces of the cluster changes. The file is on disk rather than in `/run`, so that
//! it is there when the kubelet starts pods after a restart of the machine, before the agent runs.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// The list of a node.
pub const ENFORCED_FILE: &str = "/var/lib/leno/enforced";

/// The largest list that is read, in bytes: some 16,000 namespaces with the longest names.
const MAX_LIST: u64 = 1 << 20;

/// A set of namespaces whose pods may not start without the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnforcedNamespaces(BTreeSet<String>);

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum EnforcedError {
    /// A name that no namespace can have.
    #[error("line {line}: `{name}` is not the name of a namespace (1 to 63 of a-z, 0-9 and -)")]
    Name {
        /// The number of the line, from 1.
        line: usize,
        /// The beginning of the name.
        name: String,
    },
    /// A list that is too long to be one.
    #[error("the list is longer than {MAX_LIST} bytes")]
    TooLong,
    /// The file cannot be read or written.
    #[error("{}: {reason}", .file.display())]
    File {
        /// The list.
        file: PathBuf,
        /// The error of the system.
        reason: std::io::Error,
    },
}

impl EnforcedNamespaces {
    /// A list of these namespaces.
    pub fn new<I: IntoIterator<Item = S>, S: Into<String>>(namespaces: I) -> Result<Self, EnforcedError> {
        let mut set = BTreeSet::new();
        for (number, name) in namespaces.into_iter().enumerate() {
            let name = name.into();
            if !crate::is_namespace(&name) {
                return Err(EnforcedError::Name { line: number + 1, name: name.chars().take(80).collect() });
            }
            set.insert(name);
        }
        Ok(Self(set))
    }

    /// Whether the list has this namespace.
    pub fn contains(&self, namespace: &str) -> bool {
        self.0.contains(namespace)
    }

    /// The namespaces, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Reads a list. There is none on a node whose agent has never had a configuration.
    pub fn read(file: &Path) -> Result<Option<Self>, EnforcedError> {
        let failed = |reason| EnforcedError::File { file: file.to_owned(), reason };
        let mut text = String::new();
        match File::open(file) {
            Ok(opened) => opened.take(MAX_LIST + 1).read_to_string(&mut text).map_err(failed)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        if text.len() as u64 > MAX_LIST {
            return Err(EnforcedError::TooLong);
        }
        Self::new(text.lines()).map(Some)
    }

    /// Replaces the list at once: a reader sees the old list or the new one. The folder must exist.
    pub fn write(&self, file: &Path) -> Result<(), EnforcedError> {
        let mut text = String::new();
        for namespace in &self.0 {
            text.push_str(namespace);
            text.push('\n');
        }
        if text.len() as u64 > MAX_LIST {
            return Err(EnforcedError::TooLong);
        }
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let replace = || {
            let mut temporary = tempfile::Builder::new().prefix(".enforced.").tempfile_in(folder)?;
            temporary.write_all(text.as_bytes())?;
            // Without it, a machine that loses power can come back with an empty list.
            temporary.as_file().sync_all()?;
            temporary.persist(file)?;
            File::open(folder)?.sync_all()
        };
        replace().map_err(|reason| EnforcedError::File { file: file.to_owned(), reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("enforced");
        assert_eq!(EnforcedNamespaces::read(&file).unwrap(), None);
        for names in [vec![], vec!["shop"], vec!["shop", "a", "0-9"]] {
            let list = EnforcedNamespaces::new(names).unwrap();
            list.write(&file).unwrap();
            assert_eq!(EnforcedNamespaces::read(&file).unwrap(), Some(list));
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_damaged_list_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("enforced");
        for text in ["Shop\n", "shop\n\nother\n", "shop \n", "-a\n", "a-\n", "../x\n", "\0\0\0\0", &"a".repeat(64)] {
            std::fs::write(&file, text).unwrap();
            assert!(EnforcedNamespaces::read(&file).is_err(), "{text:?}");
        }
        std::fs::write(&file, b"shop\n\xff\n").unwrap();
        assert!(EnforcedNamespaces::read(&file).is_err());
        std::fs::write(&file, "a\n".repeat(1 << 20)).unwrap();
        assert!(matches!(EnforcedNamespaces::read(&file), Err(EnforcedError::TooLong)));
        let error = EnforcedNamespaces::read(folder.path()).unwrap_err();
        assert!(error.to_string().contains(&*folder.path().to_string_lossy()), "{error}");
    }

    #[test]
    fn a_name_of_no_namespace_is_named_with_its_line() {
        let error = EnforcedNamespaces::new(["shop", "Shop"]).unwrap_err();
        assert_eq!(error.to_string(), "line 2: `Shop` is not the name of a namespace (1 to 63 of a-z, 0-9 and -)");
    }
}
