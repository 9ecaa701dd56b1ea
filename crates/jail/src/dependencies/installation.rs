//! Installations of interpreters, which consist of a program and the files beside it.

use super::{Dependencies, name_of};
use crate::view;
use object::read::elf::{FileHeader, ProgramHeader};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Files by which an installation is known, below its folder; `*` stands for the rest of a name.
/// Where the folder belongs to others too, such as a home, the jail shows only `lib`.
const LANDMARKS: [&str; 16] = [
    "lib/python3*/os.py",
    "lib/python2*/os.py",
    "lib/pypy3*/os.py",
    "conda-meta",
    "include/node/node.h",
    "lib/ruby",
    "lib/perl5",
    "lib/php",
    "lib/erlang",
    "lib/elixir",
    "lib/R",
    "lib/jvm.cfg",
    "lib/modules",
    "jre/lib/rt.jar",
    "share/julia",
    "shared/Microsoft.NETCore.App",
];
/// Folders of an installation in which its programs are.
const PROGRAM_FOLDERS: [&str; 6] = ["bin", "sbin", "lib", "libexec", "condabin", "jre"];
/// Files by which a home is known.
const HOMES: [&str; 5] = [".ssh", ".profile", ".bashrc", ".config", ".cache"];
/// Folders that programs of all kinds share.
const SHARED: [&str; 6] = ["/", "/home", "/opt", "/srv", "/var", "/mnt"];

impl Dependencies<'_> {
    /// Shows the installation that a program belongs to. If that is not possible, only notes it: the
    /// program may do without.
    pub(super) fn installation(&mut self, program: &Path) {
        if view::shows(program) {
            return;
        }
        let Some(folder) = self.installation_of(program).filter(|folder| !self.is_visible(folder)) else { return };
        if let Err(error) = self.permitted(&folder) {
            self.notes.insert(format!("the program may lack files of its installation: {error}"));
        }
    }

    fn installation_of(&self, program: &Path) -> Option<PathBuf> {
        let has = |folder: &Path, landmark: &str| exists(&self.on_machine(folder), landmark);
        let folder = program.ancestors().skip(1).find(|folder| {
            let inside = program.strip_prefix(folder).ok().and_then(|inside| inside.components().next());
            let first = inside.map(|part| part.as_os_str()).and_then(OsStr::to_str).unwrap_or_default();
            let is_beside = program.parent() == Some(*folder);
            (is_beside || PROGRAM_FOLDERS.contains(&first)) && LANDMARKS.iter().any(|landmark| has(folder, landmark))
        });
        // Modules that `npm install --global` put elsewhere.
        let modules = || program.ancestors().find(|folder| folder.ends_with("lib/node_modules")).map(Path::to_owned);
        let Some(folder) = folder else { return modules() };
        let is_shared = SHARED.iter().any(|shared| folder == Path::new(shared))
            || folder.ends_with(".local")
            || HOMES.iter().any(|home| has(folder, home));
        Some(if is_shared { folder.join("lib") } else { folder.to_owned() })
    }

    /// Adds the environment to which a Python program belongs, and the Python from which it was
    /// made.
    pub(super) fn virtual_environment(&mut self, program: &Path) -> io::Result<()> {
        let Some(environment) = program.parent().and_then(Path::parent) else { return Ok(()) };
        let Some(text) = self.read_text(&environment.join("pyvenv.cfg")) else { return Ok(()) };
        self.permitted(environment)?;
        let value = |key: &str| {
            let entries = text.lines().filter_map(|line| line.split_once('='));
            entries.map(|(name, value)| (name.trim(), value.trim())).find(|(name, _)| *name == key)
        };
        let Some((_, home)) = value("home") else { return Ok(()) };
        let home = Path::new(home);
        let named =
            ["executable", "base-executable"].into_iter().filter_map(value).map(|(_, path)| PathBuf::from(path));
        let own = Some(name_of(program)).filter(|name| name.starts_with("py"));
        let in_home = own.into_iter().chain(["python3", "python"]).map(|name| home.join(name));
        let mut candidates = in_home.chain(named).filter(|path| path.is_absolute());
        let python = candidates.find(|path| self.on_machine(path).is_file()).unwrap_or_else(|| home.join("python3"));
        let explain = |error: io::Error| {
            let text =
                format!("the virtual environment {} was made from {}: {error}", environment.display(), home.display());
            io::Error::new(error.kind(), text)
        };
        self.program(&python).map_err(explain)
    }
}

fn exists(folder: &Path, landmark: &str) -> bool {
    let Some((before, after)) = landmark.split_once('*') else { return folder.join(landmark).exists() };
    let (parent, prefix) = before.rsplit_once('/').unwrap_or(("", before));
    let Ok(entries) = fs::read_dir(folder.join(parent)) else { return false };
    let fits = |name: &OsStr| name.as_bytes().starts_with(prefix.as_bytes());
    let mut entries = entries.flatten().filter(|entry| fits(&entry.file_name()));
    entries.any(|entry| entry.path().join(after.trim_start_matches('/')).exists())
}

/// The program that loads a dynamically linked one, by the beginning of its file.
pub(super) fn loader(begin: &[u8]) -> Option<PathBuf> {
    let header = object::elf::FileHeader64::<object::Endianness>::parse(begin).ok()?;
    let endian = header.endian().ok()?;
    let mut headers = header.program_headers(endian, begin).ok()?.iter();
    let path = headers.find_map(|header| header.interpreter(endian, begin).ok().flatten())?;
    Some(PathBuf::from(OsStr::from_bytes(path))).filter(|path| path.is_absolute())
}
