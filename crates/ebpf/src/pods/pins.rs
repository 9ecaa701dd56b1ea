//! Links of a pod's programs in the BPF file system. A pod has a folder, whose name has its UID and
//! the number of its network.

use crate::{Error, Network};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, Program};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The link of the program that chooses listeners. It also tells whether the network exists.
pub(crate) const CHOOSE: &str = "choose";

const PODS: &str = "pods";

pub(crate) fn folder(pins: &Path, pod: &str, network: Network) -> PathBuf {
    pins.join(PODS).join(format!("{pod}_{:x}", network.0))
}

/// Replaces the program of a pinned link. If there is none, or it leads nowhere any more, or links of
/// its kind cannot change, the program is attached and the link pinned.
pub(crate) fn attach(
    pin: &Path,
    program: &Program<'_>,
    attach: impl FnOnce() -> Result<Link, Error>,
) -> Result<(), Error> {
    let exists = pin.exists();
    if exists && Link::open(pin).and_then(|mut link| link.update_prog(program)).is_ok() {
        return Ok(());
    }
    let mut link = attach()?;
    if exists {
        fs::remove_file(pin)?;
    }
    Ok(link.pin(pin)?)
}

/// The pods, their networks, and whether these exist.
pub(crate) fn list(pins: &Path) -> io::Result<Vec<(String, Network, bool)>> {
    let folder = pins.join(PODS);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut pods = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| name.rsplit_once('_'));
        let Some((pod, number)) = parts else { continue };
        let Ok(number) = u64::from_str_radix(number, 16) else { continue };
        pods.push((pod.to_owned(), Network(number), exists(&entry.path().join(CHOOSE))));
    }
    Ok(pods)
}

fn exists(pin: &Path) -> bool {
    let info = Link::open(pin).and_then(|link| link.info());
    info.is_ok_and(|info| matches!(info.info, LinkTypeInfo::NetNs(network) if network.ino != 0))
}

/// Removes a folder of links. A link without a pin is detached.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(folder)
}
