//! The files of a folder that are documents. A file that may be a document is never ignored
//! silently: a rule whose file cannot be read any more must not vanish as if it had been deleted.

use crate::problem::Problem;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Depth of folders within folders; links can make them endless.
const DEEPEST: usize = 32;

/// The files at a path.
#[derive(Debug, Default)]
pub(crate) struct DocumentFiles {
    /// The documents' files, in the order of their names.
    pub files: Vec<PathBuf>,
    /// Files and folders that may be documents and cannot be read.
    pub problems: Vec<Problem>,
    /// Files and folders whose names begin with a dot.
    pub hidden: usize,
    /// Files with names other than `*.yaml` and `*.yml`.
    pub others: usize,
}

/// A file, or all `*.yaml` and `*.yml` files of a folder and of the folders in it. Links are
/// followed; names that begin with a dot are not read, so a mounted ConfigMap, whose files are
/// links through `..data`, is read once.
pub(crate) fn find(path: &Path) -> DocumentFiles {
    let mut found = DocumentFiles::default();
    match fs::metadata(path) {
        Err(error) => found.problem(path, unreadable(path, &error)),
        Ok(metadata) if metadata.is_dir() => {
            found.folder(path, &mut vec![number(&metadata)]);
            if found.files.is_empty() && found.problems.is_empty() {
                found.problem(path, ("there are no *.yaml or *.yml files in this folder".to_owned(), ""));
            }
        }
        Ok(metadata) if metadata.is_file() => found.files.push(path.to_owned()),
        Ok(metadata) => found.problem(path, special(&metadata)),
    }
    found
}

impl DocumentFiles {
    /// `above`: the folders that contain this one, and itself as the last.
    fn folder(&mut self, folder: &Path, above: &mut Vec<(u64, u64)>) {
        let entries = fs::read_dir(folder).and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<PathBuf>>>()
        });
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => return self.problem(folder, unreadable(folder, &error)),
        };
        entries.sort();
        for path in entries {
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                self.hidden += 1;
                continue;
            }
            let document = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
            match fs::metadata(&path) {
                // The file may have been deleted since the folder was listed; a link that still
                // exists leads nowhere.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {}
                // The name of a link does not show its target: it may have been a folder of
                // documents.
                Err(error) => self.problem(&path, unreadable(&path, &error)),
                Ok(metadata) if metadata.is_dir() => self.inner(&path, &metadata, above),
                Ok(metadata) if document && metadata.is_file() => self.files.push(path),
                Ok(metadata) if document => self.problem(&path, special(&metadata)),
                Ok(_) => self.others += 1,
            }
        }
    }

    fn inner(&mut self, path: &Path, metadata: &Metadata, above: &mut Vec<(u64, u64)>) {
        let own = number(metadata);
        if above.contains(&own) {
            return self.problem(path, ("leads back to a folder that it is in".to_owned(), "remove the link"));
        }
        if above.len() > DEEPEST {
            return self.problem(path, ("too many folders within each other".to_owned(), "expected at most 32"));
        }
        above.push(own);
        self.folder(path, above);
        above.pop();
    }

    fn problem(&mut self, path: &Path, (message, fix): (String, &str)) {
        self.problems.push(Problem::of_file(path, message, fix));
    }
}

fn number(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn unreadable(path: &Path, error: &io::Error) -> (String, &'static str) {
    match error.kind() {
        io::ErrorKind::NotFound if path.is_symlink() => {
            let target = fs::read_link(path).unwrap_or_default();
            (format!("is a link to {}, which is not there", target.display()), "restore what it leads to, or remove it")
        }
        _ => (format!("cannot be read: {error}"), ""),
    }
}

fn special(metadata: &Metadata) -> (String, &'static str) {
    let kind = metadata.file_type();
    let name = if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    (format!("is {name}"), "expected a file; give it another name, or remove it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(found: &DocumentFiles, folder: &Path) -> Vec<String> {
        let name = |path: &PathBuf| path.strip_prefix(folder).unwrap().display().to_string();
        found.files.iter().map(name).collect()
    }

    fn problem(folder: &Path) -> String {
        let found = find(folder);
        assert_eq!(found.problems.len(), 1, "{found:?}");
        found.problems[0].to_string()
    }

    #[test]
    fn folders_and_links_are_followed_and_the_rest_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, linked_folder) = (folder.path(), tempfile::tempdir().unwrap());
        for inner in ["a/b", ".git"] {
            fs::create_dir_all(folder.join(inner)).unwrap();
        }
        for file in ["c.yaml", "a/d.yml", "a/b/e.yaml", ".git/f.yaml", "README.md", ".hidden.yaml"] {
            fs::write(folder.join(file), "").unwrap();
        }
        fs::write(linked_folder.path().join("g.yaml"), "").unwrap();
        symlink(linked_folder.path(), folder.join("linked")).unwrap();
        symlink(linked_folder.path().join("g.yaml"), folder.join("h.yaml")).unwrap();
        let found = find(folder);
        assert_eq!(names(&found, folder), ["a/b/e.yaml", "a/d.yml", "c.yaml", "h.yaml", "linked/g.yaml"]);
        assert_eq!((found.problems.len(), found.hidden, found.others), (0, 2, 1));
    }

    #[test]
    fn a_mounted_config_map_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("..2026_01_01")).unwrap();
        fs::write(folder.path().join("..2026_01_01/shop.yaml"), "").unwrap();
        symlink("..2026_01_01", folder.path().join("..data")).unwrap();
        symlink("..data/shop.yaml", folder.path().join("shop.yaml")).unwrap();
        assert_eq!(names(&find(folder.path()), folder.path()), ["shop.yaml"]);
        fs::remove_file(folder.path().join("..data")).unwrap();
        assert!(problem(folder.path()).contains("shop.yaml: is a link to ..data/shop.yaml, which is not there"));
    }

    #[test]
    fn what_might_be_a_document_and_cannot_be_read_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.yaml"), "").unwrap();
        // This holds for any name: the link may have led to a folder.
        symlink("nowhere", folder.path().join("rules")).unwrap();
        assert!(problem(folder.path()).contains("rules: is a link to nowhere"));
        fs::remove_file(folder.path().join("rules")).unwrap();

        symlink(".", folder.path().join("loop")).unwrap();
        assert!(problem(folder.path()).contains("loop: leads back to a folder that it is in"));
        fs::remove_file(folder.path().join("loop")).unwrap();

        let fifo = folder.path().join("b.yaml");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert!(problem(folder.path()).contains("b.yaml: is a FIFO; expected a file"));
        assert!(problem(&fifo).contains("is a FIFO"));
        fs::remove_file(&fifo).unwrap();

        let socket = std::os::unix::net::UnixListener::bind(&fifo).unwrap();
        assert!(problem(folder.path()).contains("is a socket"));
        drop(socket);
        fs::remove_file(&fifo).unwrap();
        assert!(find(folder.path()).problems.is_empty());
    }
}
