//! The files of the machine that a program depends on, besides those that its document names: the
//! targets of its links, the interpreter of a script, the loader of a binary, the installation of an
//! interpreter, and the Python of a virtual environment.
//!
//! A jail shows exactly these, by the rules of all shown paths ([`crate::shown`]). For documents of
//! tenants, they have to be in folders that the operator lists ([`FileAccess`]).

mod installation;
mod script;
mod shell;

use crate::error::bad;
use crate::shown::{self, resolved};
use crate::view;
use leno_files::FileAccess;
use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Links that one path may have, as for the kernel.
const MAX_LINKS: usize = 40;
/// Programs that are followed for one command.
const MAX_PROGRAMS: usize = 32;
/// Bytes that are read of a script or a configuration.
const MAX_READ: u64 = 64 << 10;

/// Searches for the dependencies of a command.
pub(crate) struct Dependencies<'a> {
    /// The folders of `PATH`.
    search: Vec<PathBuf>,
    /// The working directory.
    directory: PathBuf,
    /// The folders that may be shown without being named.
    access: &'a FileAccess,
    namespace: &'a str,
    /// Files and folders to show: their real paths on the machine, and their paths in the jail.
    pub shown: Vec<(PathBuf, PathBuf)>,
    /// Links to make in the jail: their paths, and their targets.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Dependencies that the jail lacks, and which the program may do without.
    pub notes: BTreeSet<String>,
    followed: BTreeSet<PathBuf>,
}

/// A path without its links.
#[derive(Debug, Default)]
struct Trail {
    /// The links on it, and their targets.
    links: Vec<(PathBuf, PathBuf)>,
    /// The file at its end.
    end: PathBuf,
}

impl<'a> Dependencies<'a> {
    /// Dependencies in a jail that shows these paths.
    pub(crate) fn new(
        directory: &Path,
        path: Option<&String>,
        shown: Vec<(PathBuf, PathBuf)>,
        access: &'a FileAccess,
        namespace: &'a str,
    ) -> Self {
        let search = std::env::split_paths(path.map_or("", String::as_str)).collect();
        let (links, notes, followed) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        Self { search, directory: directory.to_owned(), access, namespace, shown, links, notes, followed }
    }

    /// Finds the program of a command, and adds all that the jail has to show for it. Returns its
    /// path.
    ///
    /// # Errors
    /// The program cannot be started in the jail.
    pub(crate) fn command(&mut self, argv: &[String]) -> io::Result<PathBuf> {
        let (name, arguments) = argv.split_first().ok_or_else(|| bad("the command is empty".to_owned()))?;
        let program = self.located(name)?;
        // The document names this file, so it may be shown wherever it is, as paths in
        // `readOnlyPaths`. A file to which a link in a shown folder leads is not named.
        let end = self.trail(&program)?.end;
        if !self.is_visible(&program) && !self.is_visible(&end) {
            self.show(&end)?;
        }
        self.program(&program)?;
        self.arguments(&program, arguments)?;
        // Links in folders that are shown as a whole are there already.
        let links = std::mem::take(&mut self.links);
        self.links = links.into_iter().filter(|(link, _)| !self.is_visible(link)).collect();
        // The outer paths first: inner ones are in them.
        self.shown.sort_by(|(_, one), (_, other)| one.cmp(other));
        self.shown.dedup_by(|(_, inner), (_, outer)| inner.starts_with(outer));
        Ok(program)
    }

    /// Adds the dependencies of a program.
    fn program(&mut self, path: &Path) -> io::Result<()> {
        if self.followed.len() >= MAX_PROGRAMS || !self.followed.insert(path.to_owned()) {
            return Ok(());
        }
        let trail = self.trail(path)?;
        for (link, target) in &trail.links {
            self.link(link, target)?;
        }
        let links = trail.links.iter().map(|(link, _)| &**link);
        let names: Vec<&Path> = [path, &trail.end].into_iter().chain(links).collect();
        let begin = self.read(&trail.end);
        for name in &names {
            self.installation(name);
            match self.virtual_environment(name) {
                // A binary in an environment may do without its Python, as `uv` does.
                Err(error) if !begin.starts_with(b"#!") && !name_of(name).starts_with("py") => {
                    self.notes.insert(error.to_string());
                }
                found => found?,
            }
        }
        self.permitted(&trail.end)?;
        self.executable(&trail.end)?;
        script::refuse_shims(&names, &begin)?;
        match begin.strip_prefix(b"#!") {
            Some(line) => self.script(path, line, &begin),
            None => installation::loader(&begin).map_or(Ok(()), |loader| self.file(&loader)),
        }
    }

    /// Fails for a file that no account may execute.
    fn executable(&self, path: &Path) -> io::Result<()> {
        let Ok(metadata) = fs::metadata(self.on_machine(path)) else { return Ok(()) };
        if metadata.is_dir() {
            return Err(bad(format!("{} is a folder, not a program", path.display())));
        }
        if metadata.permissions().mode() & 0o111 == 0 {
            let text =
                format!("{0} is not executable: run `chmod +x {0}`, or name its interpreter first", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(())
    }

    /// Adds a file that is no program.
    fn file(&mut self, path: &Path) -> io::Result<()> {
        let trail = self.trail(path)?;
        for (link, target) in &trail.links {
            self.link(link, target)?;
        }
        self.permitted(&trail.end)
    }

    /// Finds a program as a shell would.
    fn located(&self, name: &str) -> io::Result<PathBuf> {
        if name.contains('/') {
            // Without the `.` of `./program`, which would break `starts_with`.
            let path: PathBuf = self.directory.join(name).components().collect();
            let has_dots = path.components().any(|part| part == Component::ParentDir);
            return if has_dots { view::real(&path) } else { Ok(path) };
        }
        let mut closed = None;
        for folder in &self.search {
            let path = folder.join(name);
            match fs::metadata(self.on_machine(&path)) {
                Ok(metadata) if metadata.is_file() => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => closed = closed.or(Some(folder)),
                _ => {}
            }
        }
        let closed = closed.map_or_else(String::new, |folder| {
            format!(" that a jail's own account may enter ({} is closed to it)", folder.display())
        });
        Err(io::Error::new(io::ErrorKind::NotFound, format!("`{name}` is in no folder of PATH{closed}")))
    }

    /// Resolves a path as the jail will. In it, mount points hide the machine's links.
    fn trail(&self, path: &Path) -> io::Result<Trail> {
        let mut trail = Trail { links: Vec::new(), end: PathBuf::from("/") };
        let mut rest: VecDeque<OsString> = parts(path).collect();
        while let Some(part) = rest.pop_front() {
            if part == ".." {
                trail.end.pop();
                continue;
            }
            trail.end.push(part);
            if self.shown.iter().any(|(_, in_jail)| in_jail.starts_with(&trail.end)) {
                continue;
            }
            let here = self.on_machine(&trail.end);
            let metadata = fs::symlink_metadata(&here).map_err(|error| explain(path, &here, &error))?;
            if !metadata.is_symlink() {
                continue;
            }
            let target = fs::read_link(&here)?;
            if trail.links.len() >= MAX_LINKS {
                return Err(bad(format!("{}: its links lead in a circle", path.display())));
            }
            trail.links.push((trail.end.clone(), target.clone()));
            if target.is_absolute() {
                trail.end = PathBuf::from("/");
            } else {
                trail.end.pop();
            }
            parts(&target).rev().for_each(|part| rest.push_front(part));
        }
        Ok(trail)
    }

    /// The path on the machine that the jail shows at this path.
    fn on_machine(&self, path: &Path) -> PathBuf {
        let mounts = self.shown.iter().filter(|(_, in_jail)| path.starts_with(in_jail));
        let innermost = mounts.max_by_key(|(_, in_jail)| in_jail.as_os_str().len());
        let moved = innermost.and_then(|(real, in_jail)| Some(real.join(path.strip_prefix(in_jail).ok()?)));
        // `join` of an empty path adds a slash.
        moved.map_or_else(|| path.to_owned(), |path| path.components().collect())
    }

    /// Whether the jail shows this path already.
    pub(crate) fn is_visible(&self, path: &Path) -> bool {
        view::shows(path) || view::is_setting(path) || self.shown.iter().any(|(_, in_jail)| path.starts_with(in_jail))
    }

    fn link(&mut self, link: &Path, target: &Path) -> io::Result<()> {
        if self.is_visible(link) || self.links.iter().any(|(known, _)| known == link) {
            return Ok(());
        }
        if let Some(reason) = shown::unshowable(link) {
            return Err(bad(format!("a jail cannot show {}: {reason}", link.display())));
        }
        self.links.push((link.to_owned(), target.to_owned()));
        Ok(())
    }

    /// Shows a path that no document names, if the operator allows it.
    fn permitted(&mut self, path: &Path) -> io::Result<()> {
        if self.is_visible(path) {
            return Ok(());
        }
        let real = resolved(&self.on_machine(path))?;
        if self.access.refusal(self.namespace, &real).is_some() {
            let folder = if real.is_dir() { path } else { path.parent().unwrap_or(path) };
            let text = format!(
                "a jail does not show {}: add `readOnlyPaths: [{}]`, or have an operator list that folder in `files` of \
                 the namespace's NamespaceQuota",
                path.display(),
                folder.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        self.show(path)
    }

    fn show(&mut self, path: &Path) -> io::Result<()> {
        if let Some(reason) = shown::unshowable(path) {
            return Err(bad(format!("a jail cannot show {}: {reason}", path.display())));
        }
        let real = resolved(&self.on_machine(path))?;
        shown::check_settings(path, &real, |path| self.access.refusal(self.namespace, path))?;
        shown::check(&real)?;
        self.shown.push((real, path.to_owned()));
        Ok(())
    }

    /// The beginning of a file; empty: it cannot be read.
    fn read(&self, path: &Path) -> Vec<u8> {
        let mut begin = Vec::new();
        let mut options = File::options();
        // A FIFO would block.
        options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        if let Ok(file) = options.open(self.on_machine(path))
            && file.metadata().is_ok_and(|metadata| metadata.is_file())
        {
            let _ = file.take(MAX_READ).read_to_end(&mut begin);
        }
        begin
    }

    fn read_text(&self, path: &Path) -> Option<String> {
        let begin = self.read(path);
        (!begin.is_empty()).then(|| String::from_utf8_lossy(&begin).into_owned())
    }
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// Adds the place where a path ends, and the fix.
fn explain(path: &Path, here: &Path, error: &io::Error) -> io::Error {
    let place = if path == here { String::new() } else { format!(" leads to {}", here.display()) };
    let fix = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; a jail's own account may not go there: have others enter each folder above (`chmod o+x`), or move it, \
             such as to /opt"
        }
        _ => "",
    };
    io::Error::new(error.kind(), format!("{}{place}: {error}{fix}", path.display()))
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| std::str::from_utf8(name.as_bytes()).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
