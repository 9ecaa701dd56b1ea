//! The folders of a node that programs may have.

use crate::{FileAccess, open_directory};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The owner of files on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// User ID.
    pub user: u32,
    /// Group ID.
    pub group: u32,
}

/// A folder that programs of a namespace may have, with the folders in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostFolder {
    /// Its absolute path.
    pub path: PathBuf,
    /// The owner of files that programs make; `None`: the folder's.
    pub owner: Option<Owner>,
}

/// The folders of a node that programs of a namespace may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAccess {
    /// Any folder: the author of the documents is the operator.
    Any,
    /// These folders. Links may not lead out of them, nor take their place.
    Listed(Vec<HostFolder>),
}

impl Default for HostAccess {
    /// No folder.
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

impl HostAccess {
    /// Why programs of `namespace` may not have a folder, and how to permit it; `None`: its name is
    /// admitted.
    pub fn refusal(&self, namespace: &str, path: &Path) -> Option<String> {
        let Self::Listed(folders) = self else { return None };
        if entry(folders, path).is_some() {
            return None;
        }
        let fix = format!(
            "an operator permits it with `kind: NamespaceQuota`, `metadata: {{name: {namespace}}}`, `spec: {{hostPaths: [{{path: {}}}]}}`",
            path.display()
        );
        let listed: Vec<String> = folders.iter().map(|folder| folder.path.display().to_string()).collect();
        Some(match &listed[..] {
            [] => format!("namespace `{namespace}` may have no folders of nodes; {fix}"),
            listed => format!("namespace `{namespace}` may have folders in {} only; {fix}", listed.join(", ")),
        })
    }

    /// Opens a folder, for [`rustix::fs::openat2`] and the like. Also returns the owner that the
    /// operator names for its files.
    ///
    /// # Errors
    /// If the folder is in none of the permitted ones, or a link leads out of them, or another
    /// account than root could have put a link in the place of one, or it cannot be opened. Blocks
    /// as long as the file system does.
    pub fn open(&self, path: &Path) -> io::Result<(OwnedFd, Option<Owner>)> {
        let Self::Listed(folders) = self else { return Ok((open_directory(path, &FileAccess::Any)?, None)) };
        let Some(listed) = entry(folders, path) else {
            let list: Vec<String> = folders.iter().map(|folder| folder.path.display().to_string()).collect();
            let text = format!("it is in none of the folders that its namespace may have ({})", list.join(", "));
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        };
        let beneath = FileAccess::Beneath(vec![listed.path.clone()]);
        Ok((open_directory(path, &beneath)?, listed.owner))
    }
}

/// The innermost listed folder that holds a path by its name.
fn entry<'a>(folders: &'a [HostFolder], path: &Path) -> Option<&'a HostFolder> {
    let holds = |folder: &&HostFolder| FileAccess::holders(std::slice::from_ref(&folder.path), path).next().is_some();
    folders.iter().filter(holds).max_by_key(|folder| folder.path.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn listed(folders: &[(&Path, Option<u32>)]) -> HostAccess {
        let folder = |(path, owner): &(&Path, Option<u32>)| HostFolder {
            path: path.to_path_buf(),
            owner: owner.map(|id| Owner { user: id, group: id }),
        };
        HostAccess::Listed(folders.iter().map(folder).collect())
    }

    #[test]
    fn the_innermost_listed_folder_names_the_owner() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner/deep");
        fs::create_dir_all(&inner).unwrap();
        let access = listed(&[(&folder.path().join("inner"), Some(7)), (folder.path(), None)]);
        assert_eq!(access.open(&inner).unwrap().1, Some(Owner { user: 7, group: 7 }));
        assert_eq!(access.open(folder.path()).unwrap().1, None);
        assert_eq!(HostAccess::Any.open(&inner).unwrap().1, None);
    }

    /// A program that may write to the outer folder replaces the inner one.
    #[test]
    fn a_link_in_the_place_of_a_listed_folder_gives_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let own = |name: &str| folder.path().join(name);
        fs::create_dir_all(own("shop/uploads/new")).unwrap();
        fs::create_dir_all(own("home/new")).unwrap();
        let both = listed(&[(&own("shop"), None), (&own("shop/uploads"), None)]);
        let inner = listed(&[(&own("shop/uploads"), None)]);
        let deep = listed(&[(&own("shop/uploads/new"), None)]);
        let hosts = ["shop/uploads", "shop/uploads/new"];
        for access in [&both, &inner] {
            assert!(hosts.iter().all(|name| access.open(&own(name)).is_ok()));
        }
        fs::rename(own("shop/uploads"), own("shop/away")).unwrap();
        for target in [own("home"), "../home".into()] {
            symlink(target, own("shop/uploads")).unwrap();
            for (access, name) in [(&both, hosts[0]), (&both, hosts[1]), (&inner, hosts[0]), (&deep, hosts[1])] {
                let error = access.open(&own(name)).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}: {error}");
                assert!(error.to_string().contains("list the folder to which the link leads"), "{error}");
            }
            fs::remove_file(own("shop/uploads")).unwrap();
        }
    }

    #[test]
    fn no_folder_is_had_outside_of_the_listed_ones() {
        let folder = tempfile::tempdir().unwrap();
        let own = |name: &str| folder.path().join(name);
        for inner in ["mine/data", "other"] {
            fs::create_dir_all(own(inner)).unwrap();
        }
        symlink("../other", own("mine/up")).unwrap();
        symlink("/etc", own("mine/absolute")).unwrap();
        let access = listed(&[(&own("mine"), None)]);
        assert!(access.open(&own("mine/data")).is_ok());
        for name in ["other", "mine/../other", "mine/up", "mine/absolute", "mine/absolute/ssl"] {
            let error = access.open(&own(name)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}: {error}");
        }
        let told = access.refusal("a", &own("other")).unwrap();
        assert!(told.contains("hostPaths") && told.contains(&*own("mine").to_string_lossy()), "{told}");
        assert_eq!(access.refusal("a", &own("mine/data")), None);
        assert!(HostAccess::default().refusal("a", Path::new("/srv")).unwrap().contains("no folders of nodes"));
    }
}
