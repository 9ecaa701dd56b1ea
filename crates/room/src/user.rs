//! Who runs in a container: the user that its image or its function names, looked up in the image's `/etc/passwd` and `/etc/group`.
//!
//! The image is not trusted. Its files are opened below its own root whatever their links say, and must be plain files that are not too long.

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Longest `/etc/passwd` or `/etc/group`, in bytes.
const LONGEST: u64 = 1 << 20;
/// Most groups of a user besides the first one, as the kernel has it for some file systems and other machines.
const MOST_GROUPS: usize = 1024;

/// A user of a container, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    pub user: u32,
    pub group: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// The home folder.
    pub home: Option<String>,
}

impl User {
    /// Looks a user up in the image with this root. `spec` is `user`, `user:group`, each a name or a number, or empty: root.
    ///
    /// # Errors
    /// Says what is not there, and where it was looked for.
    pub(crate) fn find(root: BorrowedFd<'_>, spec: &str) -> io::Result<Self> {
        let (passwd, group) = (read(root, "etc/passwd")?, read(root, "etc/group")?);
        look_up(spec, &passwd, &group).map_err(|missing| io::Error::new(io::ErrorKind::NotFound, missing))
    }
}

/// A file of the image; empty if there is none.
fn read(root: BorrowedFd<'_>, path: &str) -> io::Result<String> {
    let explain = |error: io::Error| io::Error::new(error.kind(), format!("/{path} of the image: {error}"));
    let file = match open_in(root, Path::new(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        opened => opened.map_err(explain)?,
    };
    let mut bytes = Vec::new();
    File::from(file).take(LONGEST + 1).read_to_end(&mut bytes).map_err(explain)?;
    if bytes.len() as u64 > LONGEST {
        return Err(explain(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {LONGEST} bytes"))));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Opens a plain file below a root, for which links lead nowhere but below that root.
fn open_in(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    // A FIFO would make this wait.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(root, path, flags, Mode::empty(), resolve)?;
    if FileType::from_raw_mode(fstat(file.as_fd())?.st_mode).is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a plain file"))
    }
}

fn look_up(spec: &str, passwd: &str, group_file: &str) -> Result<User, String> {
    let (name, group) = spec.split_once(':').unwrap_or((spec, ""));
    let name = if name.is_empty() { "0" } else { name };
    let number = number(name)?;
    let entry =
        entries::<7>(passwd).find(|[user, _, id, ..]| *user == name || (number.is_some() && id.parse().ok() == number));
    let mut found = match (entry, number) {
        (Some([user, _, id, first, _, home, _]), _) => {
            let whole = |text: &str| {
                text.parse().map_err(|_| format!("`{user}` in /etc/passwd of the image has no number `{text}`"))
            };
            let home = Some(home.to_owned()).filter(|home| !home.is_empty());
            User { user: whole(id)?, group: whole(first)?, groups: Vec::new(), home }
        }
        // As a number it needs no entry.
        (None, Some(user)) => User { user, ..User::default() },
        (None, None) => return Err(format!("there is no user `{name}` in /etc/passwd of the image; give a number")),
    };
    if group.is_empty() {
        let member = entry.map(|[user, ..]| user);
        let is_member = |members: &str| member.is_some_and(|member| members.split(',').any(|other| other == member));
        let of = entries::<4>(group_file).filter(|[.., members]| is_member(members));
        found.groups = of.filter_map(|[_, _, id, _]| id.parse().ok()).filter(|id| *id != found.group).collect();
    } else {
        let by_name =
            || entries::<4>(group_file).find(|[name, ..]| *name == group).and_then(|[_, _, id, _]| id.parse().ok());
        let id = self::number(group)?.or_else(by_name);
        found.group =
            id.ok_or_else(|| format!("there is no group `{group}` in /etc/group of the image; give a number"))?;
    }
    for id in [found.user, found.group].iter().chain(&found.groups) {
        if *id >= crate::account::CONTAINER_IDS {
            return Err(format!(
                "`{spec}`: a container has users and groups up to {}, not {id}",
                crate::account::CONTAINER_IDS - 1
            ));
        }
    }
    if found.groups.len() > MOST_GROUPS {
        return Err(format!("`{spec}` is in more than {MOST_GROUPS} groups of the image"));
    }
    Ok(found)
}

/// The number that a text is; `None`: it is a name.
fn number(text: &str) -> Result<Option<u32>, String> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| format!("`{text}` is too large for a user or group"))
}

/// The lines of a file, each with so many fields. Others are passed over, as the C library does.
fn entries<const N: usize>(file: &str) -> impl Iterator<Item = [&str; N]> {
    file.lines().filter_map(|line| <[&str; N]>::try_from(line.split(':').collect::<Vec<_>>()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\n# a comment\n\nbad line\nweb:x:33:44:,,,:/var/www:/bin/false\nodd:x:x:1::/:\n";
    const GROUP: &str = "root:x:0:\nweb:x:44:\ndata:x:100:web,other\nlog:x:101:other,web\nwide:x:70000:far\n";

    fn found(spec: &str) -> Result<(u32, u32, Vec<u32>), String> {
        look_up(spec, PASSWD, GROUP).map(|User { user, group, groups, .. }| (user, group, groups))
    }

    #[test]
    fn users_are_looked_up_as_other_runtimes_do() {
        for spec in ["", "0", "root", ":"] {
            assert_eq!(found(spec), Ok((0, 0, vec![])), "{spec}");
        }
        assert_eq!(found("web"), Ok((33, 44, vec![100, 101])));
        assert_eq!(found("33"), found("web"), "a number has an entry too");
        assert_eq!(found("web:data"), Ok((33, 100, vec![])), "with a group, that is the only one");
        assert_eq!(found("web:7"), Ok((33, 7, vec![])));
        assert_eq!(found(":data"), Ok((0, 100, vec![])));
        assert_eq!(found("1234"), Ok((1234, 0, vec![])), "a number needs no entry");
        assert_eq!(look_up("1234:5", "", ""), Ok(User { user: 1234, group: 5, ..User::default() }));
        assert_eq!(look_up("web", PASSWD, GROUP).unwrap().home.as_deref(), Some("/var/www"));
    }

    #[test]
    fn what_is_missing_is_said() {
        for (spec, text) in [
            ("nobody", "no user `nobody` in /etc/passwd"),
            ("web:nobody", "no group `nobody` in /etc/group"),
            ("65536", "users and groups up to 65535, not 65536"),
            ("web:wide", "users and groups up to 65535, not 70000"),
            ("99999999999", "`99999999999` is too large"),
            ("odd", "has no number `x`"),
        ] {
            let error = found(spec).unwrap_err();
            assert!(error.contains(text), "{spec}: {error}");
        }
    }
}
