//! The files that documents of a namespace may name.

use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// The files that documents of a namespace may name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileAccess {
    /// Any file: the author of the documents is the operator.
    Any,
    /// Files in these folders. Links may not lead out of them, nor take their place.
    Beneath(Vec<PathBuf>),
}

impl Default for FileAccess {
    /// No file.
    fn default() -> Self {
        Self::Beneath(Vec::new())
    }
}

impl FileAccess {
    /// The folders that hold a path by its name, each with the rest of the path.
    pub(crate) fn holders<'a>(folders: &'a [PathBuf], path: &'a Path) -> impl Iterator<Item = (&'a Path, &'a Path)> {
        let plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
        folders.iter().filter(move |_| plain).filter_map(move |folder| {
            let rest = path.strip_prefix(folder).ok()?;
            Some((folder.as_path(), if rest == Path::new("") { Path::new(".") } else { rest }))
        })
    }

    /// Why documents of `namespace` may not name a path, and how to permit it; `None`: the path's
    /// name is admitted.
    pub fn refusal(&self, namespace: &str, path: &Path) -> Option<String> {
        let Self::Beneath(folders) = self else { return None };
        if Self::holders(folders, path).next().is_some() {
            return None;
        }
        let folder = path.parent().unwrap_or(Path::new("/")).display();
        let fix = format!("`kind: NamespaceQuota`, `metadata: {{name: {namespace}}}`, `spec: {{files: [{folder}]}}`");
        Some(if folders.is_empty() {
            format!("documents of namespace `{namespace}` may name no files; an operator permits a folder with {fix}")
        } else {
            let list: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
            format!(
                "documents of namespace `{namespace}` may name files in {} only; an operator permits a further folder with {fix}",
                list.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_holds_what_is_in_it() {
        let access = FileAccess::Beneath(vec!["/etc/leno/a".into()]);
        for (path, admitted) in [
            ("/etc/leno/a/token", true),
            ("/etc/leno/a", true),
            ("/etc/leno/ab", false),
            ("/etc/leno/a/../b/token", false),
            ("/etc/shadow", false),
            ("token", false),
        ] {
            assert_eq!(access.refusal("a", Path::new(path)).is_none(), admitted, "{path}");
        }
        let none = FileAccess::default().refusal("a", Path::new("/etc/leno/a/token")).unwrap();
        assert!(none.contains("NamespaceQuota") && none.contains("files: [/etc/leno/a]"), "{none}");
        assert_eq!(FileAccess::Any.refusal("a", Path::new("/etc/shadow")), None);
    }
}
