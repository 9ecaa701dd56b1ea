//! Helpers of the tests. Each test uses some of them.

pub(crate) mod layer;
pub(crate) mod layout;
pub(crate) mod registry;

use leno_files::FileAccess;
use leno_oci::{Image, Limits, Progress, Registries, Result, Store};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Another tool. Panics with the name of its package if it is missing.
pub(crate) fn tool(name: &str) -> Command {
    let found =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|folder| folder.join(name).exists());
    assert!(found, "{name} is missing; type: sudo apt-get install {name}");
    Command::new(name)
}

pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Registries without any proxy.
pub(crate) fn registries() -> Registries {
    Registries { proxies: Default::default(), ..Registries::default() }
}

pub(crate) fn store(folder: &Path) -> Store {
    Store::open(folder, Limits::default(), registries()).unwrap()
}

/// Resolves and pulls.
pub(crate) async fn pull(store: &Store, reference: &str) -> Result<Image> {
    let reference = store.reference(reference)?.named_by("test", &FileAccess::Any);
    let digest = store.resolve(&reference).await?;
    store.pull(&reference.with_digest(digest), &Progress::default()).await
}

/// The visible properties of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileProperties {
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: (i64, i64),
    pub(crate) device: u64,
    /// The target of a symbolic link, or the content.
    pub(crate) content: Vec<u8>,
    pub(crate) xattrs: BTreeMap<String, Vec<u8>>,
    /// The first name of the same file.
    pub(crate) same_as: PathBuf,
}

/// All files in a folder, and the folder itself.
pub(crate) fn tree(root: &Path) -> BTreeMap<PathBuf, FileProperties> {
    let (mut seen, mut inodes) = (BTreeMap::new(), BTreeMap::new());
    walk(root, root, &mut seen, &mut inodes);
    seen
}

fn walk(root: &Path, path: &Path, seen: &mut BTreeMap<PathBuf, FileProperties>, inodes: &mut BTreeMap<u64, PathBuf>) {
    let metadata = fs::symlink_metadata(path).unwrap();
    let name = path.strip_prefix(root).unwrap().to_owned();
    let content = if metadata.is_symlink() {
        fs::read_link(path).unwrap().into_os_string().as_bytes().to_vec()
    } else if metadata.is_file() {
        fs::read(path).unwrap()
    } else {
        Vec::new()
    };
    let same_as = inodes.entry(metadata.ino()).or_insert_with(|| name.clone()).clone();
    seen.insert(
        name,
        FileProperties {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            device: metadata.rdev(),
            content,
            xattrs: xattrs(path),
            same_as,
        },
    );
    if metadata.is_dir() {
        let mut entries: Vec<PathBuf> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| walk(root, entry, seen, inodes));
    }
}

pub(crate) fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let mut all = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
        value.truncate(length);
        all.insert(String::from_utf8(name.to_vec()).unwrap(), value);
    }
    all
}
