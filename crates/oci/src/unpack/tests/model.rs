//! An image as a folder in memory, to which layers are applied as containerd applies them, and the
//! files that overlayfs shows of layers.

use super::{EntrySpec, Mark, mark};
use crate::path::Inside;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use tar_core::EntryType;

type Name = Vec<u8>;

#[derive(Clone, Debug)]
enum Kind {
    Folder(BTreeMap<Name, Node>),
    File(Vec<u8>),
    Link(Vec<u8>),
    Fifo,
}

#[derive(Clone, Debug)]
struct Node {
    kind: Kind,
    /// The latest layer that has it.
    layer: usize,
}

#[derive(Debug)]
pub(super) struct Model {
    root: Node,
    layer: usize,
    /// The devices of the present layer.
    devices: Vec<Vec<Name>>,
}

impl Default for Model {
    fn default() -> Self {
        Self { root: Node { kind: Kind::Folder(BTreeMap::new()), layer: 0 }, layer: 0, devices: Vec::new() }
    }
}

impl Node {
    fn entries(&mut self) -> &mut BTreeMap<Name, Self> {
        match &mut self.kind {
            Kind::Folder(entries) => entries,
            _ => panic!("no folder"),
        }
    }

    /// Keeps only the nodes of this layer.
    fn prune(&mut self, layer: usize) {
        if let Kind::Folder(entries) = &mut self.kind {
            entries.retain(|_, node| node.layer == layer);
            entries.values_mut().for_each(|node| node.prune(layer));
        }
    }
}

impl Model {
    /// Applies a layer, or returns that it is refused.
    pub(super) fn layer(&mut self, entries: &[EntrySpec]) -> Result<(), ()> {
        self.layer += 1;
        self.devices.clear();
        // The real unpacker finds faults of a single entry before it applies any; the outcome is
        // the same.
        entries.iter().try_for_each(|entry| self.entry(entry))
    }

    fn at(&mut self, path: &[Name]) -> &mut Node {
        path.iter().fold(&mut self.root, |node, name| node.entries().get_mut(name).unwrap())
    }

    fn entry(&mut self, entry: &EntrySpec) -> Result<(), ()> {
        let layer = self.layer;
        let path = Inside::new(entry.path.as_bytes()).map_err(|_| ())?;
        let names = |path: &Inside| -> Vec<Name> { path.names().map(<[u8]>::to_vec).collect() };
        match mark(&path).map_err(|_| ())? {
            Mark::None => {}
            Mark::Skipped => return Ok(()),
            Mark::Opaque(folder) => {
                let folder = self.resolve(names(&folder), true)?;
                self.at(&folder).prune(layer);
                return Ok(());
            }
            Mark::Whiteout(hidden) => {
                let mut parent = names(&hidden);
                let name = parent.pop().unwrap();
                let parent = self.resolve(parent, true)?;
                let entries = self.at(&parent).entries();
                match entries.get_mut(&name) {
                    Some(node) if node.layer == layer => node.prune(layer),
                    _ => drop(entries.remove(&name)),
                }
                return Ok(());
            }
        }
        let is_folder =
            entry.kind == EntryType::Directory || (entry.kind == EntryType::Regular && entry.path.ends_with('/'));
        let mut parent = names(&path);
        let Some(name) = parent.pop() else { return if is_folder { Ok(()) } else { Err(()) } };
        let kind = match entry.kind {
            _ if is_folder => Kind::Folder(BTreeMap::new()),
            EntryType::Symlink if entry.target.is_empty() => return Err(()),
            EntryType::Symlink => Kind::Link(entry.target.clone().into_bytes()),
            EntryType::Fifo => Kind::Fifo,
            EntryType::Link => return self.hard_link(parent, name, &entry.target),
            EntryType::Char => {
                let parent = self.resolve(parent, true)?;
                self.at(&parent).entries().remove(&name);
                self.devices.push([&parent[..], &[name]].concat());
                return Ok(());
            }
            _ => Kind::File(entry.content.clone()),
        };
        let parent = self.resolve(parent, true)?;
        let entries = self.at(&parent).entries();
        match entries.get_mut(&name) {
            Some(node) if is_folder && matches!(node.kind, Kind::Folder(_)) => node.layer = layer,
            _ => drop(entries.insert(name, Node { kind, layer })),
        }
        Ok(())
    }

    fn hard_link(&mut self, parent: Vec<Name>, name: Name, target: &str) -> Result<(), ()> {
        let target = Inside::new(target.as_bytes()).map_err(|_| ())?;
        let mut folder: Vec<Name> = target.names().map(<[u8]>::to_vec).collect();
        let target = folder.pop().ok_or(())?;
        let folder = self.resolve(folder, false)?;
        let parent = self.resolve(parent, true)?;
        let (place, of) = (
            [&parent[..], std::slice::from_ref(&name)].concat(),
            [&folder[..], std::slice::from_ref(&target)].concat(),
        );
        // The replaced file is removed before the target is looked up.
        if of.starts_with(&place) {
            return Err(());
        }
        let layer = self.layer;
        if self.devices.contains(&of) && !self.at(&folder).entries().contains_key(&target) {
            self.at(&parent).entries().remove(&name);
            self.devices.push(place);
            return Ok(());
        }
        let node = self.at(&folder).entries().get_mut(&target).ok_or(())?;
        if matches!(node.kind, Kind::Folder(_)) {
            return Err(());
        }
        node.layer = layer;
        let node = node.clone();
        self.at(&parent).entries().insert(name, node);
        Ok(())
    }

    fn resolve(&mut self, path: Vec<Name>, make: bool) -> Result<Vec<Name>, ()> {
        let layer = self.layer;
        let mut todo: Vec<Name> = path.into_iter().rev().collect();
        let (mut at, mut links): (Vec<Name>, _) = (Vec::new(), 0);
        while let Some(name) = todo.pop() {
            match &*name {
                b"" | b"." => continue,
                _ if name.starts_with(b".wh.") => return Err(()),
                b".." => {
                    at.pop();
                    continue;
                }
                _ => {}
            }
            let entries = self.at(&at).entries();
            if make && !entries.contains_key(&name) {
                entries.insert(name.clone(), Node { kind: Kind::Folder(BTreeMap::new()), layer });
            }
            let node = entries.get_mut(&name).ok_or(())?;
            match &node.kind {
                Kind::Folder(_) => {
                    node.layer = layer;
                    at.push(name);
                }
                Kind::Link(target) => {
                    links += 1;
                    if links > 40 {
                        return Err(());
                    }
                    if target.starts_with(b"/") {
                        at.clear();
                    }
                    todo.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
                }
                Kind::File(_) | Kind::Fifo => return Err(()),
            }
        }
        Ok(at)
    }

    /// All files, in words.
    pub(super) fn files(&self) -> Vec<String> {
        fn walk(path: &str, node: &Node, all: &mut Vec<String>) {
            match &node.kind {
                Kind::Folder(entries) => {
                    all.push(format!("{path}/"));
                    for (name, node) in entries {
                        walk(&format!("{path}/{}", String::from_utf8_lossy(name)), node, all);
                    }
                }
                Kind::File(content) => all.push(format!("{path} {content:?}")),
                Kind::Link(target) => all.push(format!("{path} -> {}", String::from_utf8_lossy(target))),
                Kind::Fifo => all.push(format!("{path} |")),
            }
        }
        let mut all = Vec::new();
        walk("", &self.root, &mut all);
        all
    }
}

/// The files that overlayfs shows of layers, topmost first, in the same words.
pub(super) fn merged(layers: &[&Path]) -> Vec<String> {
    let opaque = |folder: &Path| {
        let mut value = [0; 8];
        rustix::fs::lgetxattr(folder, "trusted.overlay.opaque", &mut value[..])
            .is_ok_and(|length| value[..length] == *b"y")
    };
    fn walk(shown: &str, folders: &[std::path::PathBuf], opaque: &dyn Fn(&Path) -> bool, all: &mut Vec<String>) {
        all.push(format!("{shown}/"));
        let mut names = BTreeMap::<Name, ()>::new();
        for folder in folders {
            names.extend(fs::read_dir(folder).unwrap().map(|entry| (entry.unwrap().file_name().into_vec(), ())));
        }
        for name in names.into_keys() {
            let shown = format!("{shown}/{}", String::from_utf8_lossy(&name));
            let mut inner = Vec::new();
            for folder in folders {
                let path = folder.join(std::ffi::OsStr::from_bytes(&name));
                let Ok(found) = fs::symlink_metadata(&path) else { continue };
                let kind = found.file_type();
                if kind.is_dir() {
                    inner.push(path.clone());
                    if opaque(&path) {
                        break;
                    }
                    continue;
                }
                if inner.is_empty() && kind.is_file() {
                    all.push(format!("{shown} {:?}", fs::read(&path).unwrap()));
                } else if inner.is_empty() && kind.is_symlink() {
                    all.push(format!("{shown} -> {}", fs::read_link(&path).unwrap().display()));
                } else if inner.is_empty() && kind.is_fifo() {
                    all.push(format!("{shown} |"));
                } else {
                    assert!(!inner.is_empty() || found.rdev() == 0, "{shown}");
                }
                break;
            }
            if !inner.is_empty() {
                walk(&shown, &inner, opaque, all);
            }
        }
    }
    let lowest = layers.iter().position(|root| opaque(root)).map_or(layers.len(), |at| at + 1);
    let mut all = Vec::new();
    walk("", &layers[..lowest].iter().map(|root| root.to_path_buf()).collect::<Vec<_>>(), &opaque, &mut all);
    all
}
