//! The program of the child process in a hot restart, and the check which accounts can write to it.

use anyhow::{Result, anyhow, bail};
use rustix::fs::getxattr;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The attribute of a file that has an access control list.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// How this process was started.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: PathBuf,
    /// The name as given on the command line.
    pub name: OsString,
    pub arguments: Vec<OsString>,
}

impl Program {
    /// Call it before the working directory or the file can have changed.
    pub(crate) fn of_this_process() -> std::io::Result<Self> {
        let mut arguments = std::env::args_os();
        let name = arguments.next().unwrap_or_default();
        // The given path may be a link that leads to another file by now. The path of the
        // executable stays that of the old file.
        let given = Path::new(&name);
        let path = if given.components().count() > 1 { std::path::absolute(given)? } else { std::env::current_exe()? };
        let arguments = arguments.filter(|argument| argument != super::TAKE_OVER).collect();
        Ok(Self { path, name, arguments })
    }

    /// The file to start: `wanted`, or the file that is now at the path from which this process was
    /// started. The error says why the node refuses to start it.
    pub(crate) fn of_child(&self, wanted: Option<&Path>) -> Result<PathBuf> {
        let path = wanted.unwrap_or(&self.path);
        let account = rustix::process::geteuid().as_raw();
        let file = path.canonicalize().map_err(|error| anyhow!("{}: {error}", path.display()))?;
        for part in file.ancestors() {
            let found = part.metadata().map_err(|error| anyhow!("{}: {error}", part.display()))?;
            if part == file && (!found.is_file() || found.mode() & 0o111 == 0) {
                bail!("{} is no program", part.display());
            }
            if let Some(who) = writer(part, &found, account) {
                let file = file.display();
                bail!("{who} may write to {}, so {file} is not started", part.display());
            }
        }
        Ok(file)
    }
}

/// The accounts, besides root and this one, that can write to the file, in words.
fn writer(path: &Path, found: &Metadata, account: u32) -> Option<String> {
    let group = rustix::process::getegid().as_raw();
    // In a sticky folder such as /tmp, an account cannot replace files of other accounts.
    let is_shared = found.is_dir() && found.mode() & 0o1000 != 0;
    if ![0, account].contains(&found.uid()) {
        return Some(format!("the account {}", found.uid()));
    }
    if found.mode() & 0o002 != 0 && !is_shared {
        return Some("everybody".to_owned());
    }
    let by_group = found.mode() & 0o020 != 0 && !is_shared;
    // The bits of the group limit all entries of an access control list.
    if by_group && getxattr(path, ACCESS_LIST, &mut [0_u8; 0]).is_ok() {
        return Some("whoever is in its access control list".to_owned());
    }
    (by_group && ![0, group].contains(&found.gid())).then(|| format!("the group {}", found.gid()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_others_can_write_is_not_started() {
        let folder = tempfile::tempdir().unwrap();
        let (bin, link) = (folder.path().join("bin"), folder.path().join("link"));
        fs::create_dir(&bin).unwrap();
        let file = bin.join("leno");
        fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let program = Program { path: link.clone(), name: "leno".into(), arguments: Vec::new() };
        set(&file, 0o755);
        set(&bin, 0o755);
        assert_eq!(program.of_child(None).unwrap(), file.canonicalize().unwrap());
        set(&file, 0o644);
        assert!(program.of_child(None).unwrap_err().to_string().contains("is no program"));
        set(&file, 0o757);
        assert!(program.of_child(None).unwrap_err().to_string().contains("everybody may write to"));
        set(&file, 0o755);
        set(&bin, 0o777);
        assert!(program.of_child(Some(&file)).unwrap_err().to_string().contains("everybody may write to"));
        set(&bin, 0o1777);
        assert!(program.of_child(Some(&file)).is_ok());
        assert!(program.of_child(Some(&bin)).unwrap_err().to_string().contains("is no program"));
        assert!(program.of_child(Some(&bin.join("other"))).unwrap_err().to_string().contains("other: "));
    }
}
