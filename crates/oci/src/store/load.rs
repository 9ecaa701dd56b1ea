//! Images and layers as they are read from the disk when the store is opened.

use super::disk::{HOLDER, Layer, LayerFile, StoredImage};
use crate::Digest;
use crate::beneath::is_opaque;
use crate::manifest::{self, Configuration, Descriptor, Document};
use crate::space::Space;
use crate::unpack::ROOT;
use rustix::fs::{CWD, Mode, OFlags};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

/// The space taken by files of these lengths, with their folder and the mark of a namespace.
pub(super) fn documents_space(lengths: impl Iterator<Item = u64>) -> Space {
    const BLOCK: u64 = 4096;
    let mut space = Space { bytes: 2 * BLOCK, files: 2 };
    lengths.for_each(|length| space += Space { bytes: length.next_multiple_of(BLOCK), files: 1 });
    space
}

/// The namespaces that have the image in this folder.
pub(super) fn holders(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_prefix(HOLDER)?.to_owned());
    entries.filter_map(name).collect()
}

/// Counts the files in a folder of an earlier release's store.
fn count_files(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.map(|entry| if is_folder(&entry) { 1 + count_files(&entry.path()) } else { 1 }).sum()
}

pub(super) fn load_layer(path: &Path) -> Option<Layer> {
    let chain = Digest::from_hex(path.file_name()?.to_str()?)?;
    let file: LayerFile = serde_json::from_slice(&fs::read(path.join("layer.json")).ok()?).ok()?;
    let root = path.join(ROOT);
    let opaque = root_is_opaque(&root).ok()?;
    let files = file.files.unwrap_or_else(|| count_files(&root));
    let space = Space { bytes: file.bytes, files };
    Some(Layer { chain, root, space, opaque, omitted: file.omitted })
}

pub(super) fn load_image(path: &Path) -> Option<(Digest, StoredImage)> {
    let digest = Digest::from_hex(path.file_name()?.to_str()?)?;
    let name = digest.to_string();
    let mut next = digest;
    let manifest = fs::read(path.join("manifest.json")).ok()?;
    let found = Digest::of(&manifest);
    for depth in 0.. {
        let Ok(index) = fs::read(path.join(index_name(depth))) else { break };
        let Document::Index(entries) = manifest::read(&name, &index).ok().filter(|_| Digest::of(&index) == next)?
        else {
            return None;
        };
        let inner = fs::read(path.join(index_name(depth + 1))).map_or(found, |inner| Digest::of(&inner));
        // The disk may have been moved to a machine with another processor.
        let leads = |entry: &Descriptor| {
            let runs = entry.platform().is_none_or(|platform| platform.rank().is_some());
            runs && entry.blob().is_ok_and(|blob| blob.digest == inner)
        };
        next = entries.iter().any(leads).then_some(inner)?;
    }
    let Document::Manifest(manifest) = manifest::read(&name, &manifest).ok().filter(|_| found == next)? else {
        return None;
    };
    let config =
        fs::read(path.join("config.json")).ok().filter(|config| Digest::of(config) == manifest.config.digest)?;
    let configuration = manifest::configuration(&name, &config, &manifest).ok()?;
    let Configuration { config, diff_ids, platform } = configuration;
    platform.rank()?;
    let indexes = (0..).map_while(|depth| fs::metadata(path.join(index_name(depth))).ok());
    let files = ["manifest.json", "config.json"].into_iter().filter_map(|name| fs::metadata(path.join(name)).ok());
    let documents = documents_space(files.chain(indexes).map(|found| found.len()));
    let (config, layers) = (Arc::new(config.into()), Digest::chain(&diff_ids));
    Some((digest, StoredImage { config, layers, documents, leases: HashMap::new() }))
}

/// The file name of an index at this depth.
pub(super) fn index_name(depth: usize) -> String {
    if depth == 0 { "index.json".to_owned() } else { format!("index-{depth}.json") }
}

pub(super) fn root_is_opaque(root: &Path) -> io::Result<bool> {
    let folder = rustix::fs::openat(
        CWD,
        root,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    Ok(is_opaque(folder.as_fd())?)
}
