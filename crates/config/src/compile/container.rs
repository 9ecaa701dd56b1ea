//! `spec.image` of functions and jobs, and the fields that go with it.

use super::{Context, fields, process};
use crate::document::{Volume, VolumeAccess};
use crate::problem::{Origin, Problem, Scope};
use leno_model::size::Size;
use leno_model::{HostVolume, Isolation, PersistentVolume, Pull};
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// Fields that apply to containers only.
pub(super) const FIELDS: [&str; 5] = ["args", "user", "readOnlyRoot", "writable", "pull"];

/// A page of memory, the smallest limit.
const LEAST: Size = Size(4 << 10);
/// The smallest file system for a volume on disk.
const LEAST_ON_DISK: Size = Size::from_mib(16);
/// Longest name of a node.
const LONGEST_NODE: usize = 253;
const MOST_VOLUMES: usize = 64;
const LONGEST_IMAGE: usize = 1024;
/// Folders that the jail provides in every container.
const JAIL_FOLDERS: [&str; 4] = ["/proc", "/dev", "/sys", "/run/secrets"];
/// Folders that it provides for programs of the machine.
const PROGRAM_FOLDERS: [&str; 12] =
    ["/proc", "/dev", "/sys", "/run/secrets", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// The container fields of a document.
pub(super) struct ContainerFields<'a> {
    pub command: Option<&'a [String]>,
    pub args: Option<&'a [String]>,
    pub user: Option<&'a str>,
    pub volumes: &'a [Volume],
    pub read_only_root: bool,
    pub writable: Option<Size>,
    pub pull: Pull,
    pub working_directory: Option<&'a Path>,
}

/// Reports fields of containers where there is none.
pub(super) fn none(scope: &Scope<'_>) {
    for field in FIELDS {
        if scope.has(field) {
            scope.field(field).problem(format!("`{field}` is for containers"), "add `image`, or remove it");
        }
    }
}

/// The container of a function or job with an image.
pub(super) fn container(scope: &Scope<'_>, text: &str, written: &ContainerFields<'_>) -> leno_model::Container {
    if let Some(command) = written.command {
        process::argv(&scope.field("command"), command);
    }
    if written.args.is_some_and(|args| args.iter().any(|argument| argument.contains('\0'))) {
        scope.field("args").problem("an argument contains a NUL character", "remove it");
    }
    if let Some(user) = written.user
        && (user.is_empty() || !user.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        let fix = "expected `user`, `user:group`, `1000` or `1000:1000`";
        scope.field("user").problem(format!("`{}` is no user", user.escape_debug()), fix);
    }
    if let Some(directory) = written.working_directory.filter(|directory| !is_inside(directory)) {
        let message = format!("`{}` is no path in an image", directory.display());
        scope.field("workingDirectory").problem(message, "expected an absolute path without `..`");
    }
    let writable = scope.field("writable");
    least(&writable, written.writable, LEAST);
    if written.read_only_root && written.writable.is_some() {
        writable.problem("nothing is written to a root that is read-only", "remove it, or `readOnlyRoot`");
    }
    leno_model::Container {
        image: image(&scope.field("image"), text),
        digest: None,
        command: written.command.map(<[String]>::to_vec),
        args: written.args.map(<[String]>::to_vec),
        directory: written.working_directory.map(Path::to_owned),
        user: written.user.map(str::to_owned),
        volumes: volumes(&scope.field("volumes"), written.volumes, &JAIL_FOLDERS),
        read_only: written.read_only_root,
        writable: written.writable.map(|size| size.0),
        pull: written.pull,
    }
}

/// A container always runs in a jail.
pub(super) fn isolation(context: &Context<'_>, scope: &Scope<'_>, written: Option<Isolation>) -> Isolation {
    match written.unwrap_or(context.isolation) {
        Isolation::Auto | Isolation::Strict => Isolation::Strict,
        Isolation::Process => {
            let (place, fix) = match written {
                Some(_) => ("isolation", "remove it, or write `isolation: strict`"),
                None => ("image", "write `isolation: strict`: the Mesh document's `instances` say `process`"),
            };
            scope.field(place).problem("a container runs in a jail, and `isolation: process` is without one", fix);
            Isolation::Strict
        }
    }
}

/// Whether the name can be parsed. Which part names a registry depends on the mesh, and is decided
/// by the client of registries.
fn image(scope: &Scope<'_>, text: &str) -> String {
    const FIX: &str = "expected `registry/repository:tag`, `registry/repository@sha256:…`, `oci:FOLDER:tag` or `oci-archive:FILE:tag`";
    if text.is_empty() || text.len() > LONGEST_IMAGE || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        scope.problem(format!("`{}` is no image", text.chars().take(80).collect::<String>().escape_debug()), FIX);
        return text.to_owned();
    }
    for kind in ["oci:", "oci-archive:"] {
        let Some(rest) = text.strip_prefix(kind) else { continue };
        let (path, what) = rest.split_at(rest.find([':', '@']).unwrap_or(rest.len()));
        if path.is_empty() {
            scope.problem("the path is missing", FIX);
        }
        if scope.origin() == Origin::Request && !what.contains('@') {
            let fix = format!("add the digest of the image: `{kind}{path}@sha256:…`");
            scope.problem(Problem::READS_NO_FILES, fix);
        }
        let path = fields::relative(scope, Path::new(path));
        if path.to_str().is_none_or(|path| path.contains([':', '@']) || path.contains(char::is_whitespace)) {
            let message = format!("{} has a `:`, a `@` or a space in its path", path.display());
            scope.problem(message, "move it where paths have none");
        }
        return format!("{kind}{}{what}", path.display());
    }
    text.to_owned()
}

/// The volumes of a program of the machine. Only a jail has any.
pub(super) fn of_program(
    scope: &Scope<'_>,
    written: &[Volume],
    isolation: Isolation,
) -> (Vec<leno_model::Volume>, Isolation) {
    let list = scope.field("volumes");
    let isolation = match isolation {
        Isolation::Auto if !written.is_empty() => Isolation::Strict,
        Isolation::Process if !written.is_empty() => {
            let fix =
                "give it `isolation: strict`, or remove `volumes`: without a jail it writes where its account may";
            list.problem("volumes are in a jail, and `isolation: process` is without one", fix);
            isolation
        }
        _ => isolation,
    };
    (volumes(&list, written, &PROGRAM_FOLDERS), isolation)
}

fn volumes(list: &Scope<'_>, written: &[Volume], reserved: &[&str]) -> Vec<leno_model::Volume> {
    if written.len() > MOST_VOLUMES {
        list.problem(format!("there are {} volumes", written.len()), format!("expected {MOST_VOLUMES} at most"));
    }
    let (mut volumes, mut paths) = (Vec::new(), BTreeSet::new());
    nodes(list, written);
    for (index, Volume { path, size, name, node, host_path, read_only, .. }) in written.iter().enumerate() {
        let element = list.element(index);
        let place = element.field("path");
        let normal: PathBuf = path.components().collect();
        if !is_inside(path) || normal == Path::new("/") || reserved.iter().any(|own| normal.starts_with(own)) {
            let fix = format!(
                "expected an absolute path without `..`, below `/`, and not in one of {}",
                reserved.iter().map(|own| format!("`{own}`")).collect::<Vec<_>>().join(", ")
            );
            place.problem(format!("`{}` cannot be a volume", path.display()), fix);
        }
        if !paths.insert(normal.clone()) {
            place.problem(format!("`{}` is there twice", path.display()), "remove one of the two");
        }
        if let Some(folder) = host_path {
            for field in ["size", "name", "access"].into_iter().filter(|field| element.has(field)) {
                let fix = "remove it: all instances on a node have the same folder, and its disk bounds it";
                element.field(field).problem(format!("`{field}` is for other volumes than those with `hostPath`"), fix);
            }
            let writable = *read_only == Some(false);
            let path = fields::relative(&element.field("hostPath"), folder);
            let host = HostVolume { path, writable, node: node.clone() };
            volumes.push(leno_model::Volume { path: normal, size: None, host: Some(host) });
            continue;
        }
        if read_only.is_some() {
            let fix = "add `hostPath`, or remove it: programs write to their other volumes";
            element.field("readOnly").problem("`readOnly` is for volumes with `hostPath`", fix);
        }
        if name.is_none() {
            least(&element.field("size"), *size, LEAST);
            for field in ["access", "node"].into_iter().filter(|field| element.has(field)) {
                let fix = "add `name`, so that the volume is on a node's disk, or remove it";
                element
                    .field(field)
                    .problem(format!("`{field}` is for volumes on disk, and this one is in memory"), fix);
            }
            volumes.push(leno_model::Volume { path: normal, size: size.map(|size| size.0), host: None });
        }
    }
    volumes
}

/// Reports names that no node has, and volumes of several nodes: a function with both can be nowhere.
fn nodes(list: &Scope<'_>, written: &[Volume]) {
    let is_bound = |volume: &&Volume| match volume.host_path {
        Some(_) => volume.node.is_some(),
        None => volume.name.is_some(),
    };
    let first = written.iter().find(is_bound);
    for (index, volume) in written.iter().enumerate().filter(|(_, volume)| is_bound(volume)) {
        let element = list.element(index);
        if volume.node.as_ref().is_some_and(|node| node.is_empty() || node.len() > LONGEST_NODE) {
            element.field("node").problem("that is no node's name", "expected one of `leno get nodes`");
        }
        if let Some(first) = first.filter(|first| first.node != volume.node) {
            let first = first.path.display();
            let message = format!("`{first}` is on another node, and a function with both can be nowhere");
            element.field("node").problem(message, "name one node for all volumes of the function");
        }
    }
}

/// The volumes of a function that a node keeps on its disk.
pub(super) fn persistent(scope: &Scope<'_>, written: &[Volume]) -> Vec<PersistentVolume> {
    let list = scope.field("volumes");
    let mut volumes: Vec<PersistentVolume> = Vec::new();
    for (index, Volume { path, size, name, access, node, host_path, .. }) in written.iter().enumerate() {
        // A name beside a folder of the node is reported elsewhere.
        let Some(name) = name.clone().filter(|_| host_path.is_none()) else { continue };
        let element = list.element(index);
        fields::label(&element.field("name"), &name);
        if volumes.iter().any(|other| other.name == name) {
            element.field("name").problem(format!("the volume `{name}` is there twice"), "remove one of the two");
        }
        match size {
            Some(_) => least(&element.field("size"), *size, LEAST_ON_DISK),
            None => element.problem("a volume on disk has a size", "add `size`, such as `size: 1Gi`"),
        }
        if node.is_none() && element.origin() == Origin::Request {
            let fix = "add `node: NAME`, one of `leno get nodes`: the function runs there and nowhere else";
            element.problem("a volume on disk is on one node, and a control plane may have many", fix);
        }
        volumes.push(PersistentVolume {
            name,
            path: path.components().collect(),
            size: size.map_or(0, |size| size.0),
            shared: access.unwrap_or_default() == VolumeAccess::Shared,
            node: node.clone(),
        });
    }
    volumes
}

/// Reports folders of nodes that the namespace may not have.
pub(super) fn host_folders(context: &Context<'_>, scope: &Scope<'_>, namespace: &str, written: &[Volume]) {
    let mut bounds = context.namespaces.of(namespace).bounds.clone();
    if scope.origin() == Origin::Request {
        bounds.host_paths.get_or_insert_default();
    }
    let (access, list) = (bounds.host_access(), scope.field("volumes"));
    for (index, volume) in written.iter().enumerate() {
        let Some(path) = &volume.host_path else { continue };
        let path = match scope.origin() {
            Origin::File => std::path::absolute(scope.folder().join(path)).unwrap_or_else(|_| path.clone()),
            Origin::Request => path.clone(),
        };
        if let Some(reason) = access.refusal(namespace, &path) {
            let (message, fix) = reason.split_once("; ").unwrap_or((&reason, ""));
            list.element(index).field("hostPath").problem(format!("{}: {message}", path.display()), fix);
        }
    }
}

/// Reports volumes on disk of a job.
pub(super) fn only_in_memory(scope: &Scope<'_>, written: &[Volume]) {
    let list = scope.field("volumes");
    for (index, _) in written.iter().enumerate().filter(|(_, volume)| volume.name.is_some()) {
        let fix = "remove `name`: then the volume is in memory";
        list.element(index).field("name").problem("volumes on disk are for functions", fix);
    }
}

fn least(scope: &Scope<'_>, size: Option<Size>, least: Size) {
    if let Some(size) = size.filter(|size| *size < least) {
        scope.problem(format!("{size} is too little"), format!("expected at least {least}"));
    }
}

fn is_inside(path: &Path) -> bool {
    path.is_absolute()
        && !path.components().any(|component| component == Component::ParentDir)
        && path.to_str().is_some_and(|path| !path.contains('\0'))
}
