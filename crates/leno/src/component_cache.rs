//! Where compiled components are kept for the next process.

use leno_proxy::modules::{CompiledComponents, Modules};
use rustix::process::geteuid;
use std::env;
use std::path::PathBuf;

/// The environment variable with the folder. Empty: compiled components are not kept.
const FOLDER: &str = "LENO_CACHE";

/// No modules yet. Components that an earlier process compiled are not compiled again.
pub(crate) fn modules() -> Modules {
    let folder = match env::var_os(FOLDER) {
        Some(folder) if folder.is_empty() => None,
        Some(folder) => Some(PathBuf::from(folder)),
        None if geteuid().is_root() => Some(PathBuf::from("/var/cache/leno")),
        None => {
            let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
            let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
            cache.or_else(home).map(|cache| cache.join("leno"))
        }
    };
    let opened = folder.map(|folder| CompiledComponents::open(folder.join("components")));
    Modules::new(opened.and_then(|opened| {
        let told = |error: &std::io::Error| tracing::warn!("components are compiled at each start: {error} ({FOLDER})");
        opened.inspect_err(told).ok()
    }))
}
