//! Large pages of shared memory: whether the kernel grants them on request.

use std::fs;
use std::path::{Path, PathBuf};

const SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage";
/// The setting for pages of this size alone, since Linux 6.11. `inherit` stands for the setting of
/// all sizes.
const OF_THIS_SIZE: &str = "hugepages-2048kB/shmem_enabled";
const OF_ALL_SIZES: &str = "shmem_enabled";

/// Why the kernel grants no large pages.
#[derive(Debug, thiserror::Error)]
pub enum NoLargePages {
    /// A setting of the machine forbids them.
    #[error("none: {} is `{chosen}`; `advise` gives them to who asks", path.display())]
    Setting {
        /// The file of the setting.
        path: PathBuf,
        /// Its value.
        chosen: String,
    },
    /// The kernel has none for shared memory.
    #[error("none: this kernel has no large pages for shared memory")]
    Kernel,
}

/// Whether the kernel grants large pages to memory that asks for them. A chain works the same
/// without.
///
/// # Errors
/// Why the kernel grants none.
pub fn check() -> Result<(), NoLargePages> {
    let settings = [OF_THIS_SIZE, OF_ALL_SIZES].map(|name| {
        let path = Path::new(SETTINGS).join(name);
        (fs::read_to_string(&path).ok(), path)
    });
    let set = settings.iter().filter_map(|(text, path)| Some((chosen(text.as_deref()?)?, path)));
    match set.into_iter().find(|(chosen, _)| *chosen != "inherit") {
        Some(("always" | "within_size" | "advise" | "force", _)) => Ok(()),
        Some((chosen, path)) => Err(NoLargePages::Setting { path: path.clone(), chosen: chosen.to_owned() }),
        None => Err(NoLargePages::Kernel),
    }
}

/// The choice in brackets.
fn chosen(setting: &str) -> Option<&str> {
    setting.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_chosen_stands_in_brackets() {
        assert_eq!(chosen("always within_size advise [never] deny force\n"), Some("never"));
        assert_eq!(chosen("[inherit] never"), Some("inherit"));
        assert_eq!([chosen("never"), chosen(""), chosen("[")], [None; 3]);
    }
}
