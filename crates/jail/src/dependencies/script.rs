//! Scripts, and programs that start others: `env`, shells, and the shims of version managers.

use super::{Dependencies, name_of, shell};
use crate::error::bad;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Programs that read commands.
const SHELLS: [&str; 7] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh"];
/// Programs that start the program of another version of a language.
const MANAGERS: [&str; 5] = ["mise", "rtx", "asdf", "volta-shim", "pyenv"];
/// Longest first line of a script, as for the kernel.
const MAX_LINE: usize = 256;

fn is_shell(program: &Path) -> bool {
    SHELLS.contains(&name_of(program))
}

/// Refuses a program that chooses another one when it runs: the jail would not show that one.
pub(super) fn refuse_shims(names: &[&Path], begin: &[u8]) -> io::Result<()> {
    let is_shim = |path: &&&Path| path.parent().is_some_and(|folder| name_of(folder) == "shims");
    let manager = names.iter().find(|path| MANAGERS.contains(&name_of(path)));
    let Some(shim) = names.iter().find(is_shim).filter(|_| manager.is_some() || begin.starts_with(b"#!")) else {
        return Ok(());
    };
    let name = name_of(shim);
    let root = shim.ancestors().nth(2).unwrap_or(Path::new("/"));
    // The last of its versions, as an example.
    let versions = fs::read_dir(root.join("versions")).into_iter().flatten().flatten();
    let programs = versions.map(|version| version.path().join("bin").join(name)).filter(|program| program.exists());
    let program = programs.collect::<BTreeSet<PathBuf>>().pop_last();
    let example = program.map_or_else(|| format!("…/bin/{name}"), |program| program.display().to_string());
    Err(bad(format!(
        "{} is a shim, which looks for a version of `{name}` when it runs: name the version's own program, such as {example}",
        shim.display()
    )))
}

/// The program that `env` starts, by the words after it.
fn env_program<'w>(words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        match word {
            "-u" | "--unset" | "-C" | "--chdir" => drop(words.next()),
            "-S" | "--split-string" => {}
            _ if word.starts_with("-S") => return Some(&word[2..]).filter(|rest| !rest.is_empty()),
            _ if word.starts_with("--split-string=") => return word.split_once('=').map(|(_, rest)| rest),
            _ if word.starts_with('-') => {}
            _ if word.contains('=') => {}
            _ => return Some(word),
        }
    }
    None
}

impl Dependencies<'_> {
    /// Follows a script, whose first line goes on with `line`.
    pub(super) fn script(&mut self, path: &Path, line: &[u8], whole: &[u8]) -> io::Result<()> {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(&line[..line.len().min(MAX_LINE)]);
        let (name, argument) = line.trim().split_once([' ', '\t']).unwrap_or((line.trim(), ""));
        if name.is_empty() {
            return Ok(());
        }
        let explain = |error: io::Error| {
            let text = format!("{} begins with `#!{}`: {error}", path.display(), line.trim());
            io::Error::new(error.kind(), text)
        };
        let interpreter: PathBuf = self.directory.join(name).components().collect();
        self.program(&interpreter).map_err(explain)?;
        if name_of(&interpreter) == "env" {
            let argument = argument.trim();
            // The kernel hands over the rest of the line as one argument, and `-S` divides it.
            let splits = argument.starts_with("-S") || argument.starts_with("--split-string");
            let program = if splits { env_program(argument.split_whitespace()) } else { Some(argument) };
            let program = program.filter(|program| !program.is_empty() && !program.starts_with('-'));
            if let Some(program) = program {
                let hint = |error: io::Error| match program.contains(' ') {
                    true => io::Error::new(error.kind(), format!("{error}; several words need `env -S`")),
                    false => error,
                };
                self.located(program).and_then(|path| self.program(&path)).map_err(hint).map_err(explain)?;
            }
        } else if is_shell(&interpreter) {
            let text = String::from_utf8_lossy(whole);
            // Installers write such scripts where the path of the interpreter is too long for the
            // first line: `'''exec' PATH "$0" "$@"`.
            let second = text.lines().nth(1).and_then(|line| line.strip_prefix("'''exec' "));
            match second.map(|rest| rest.trim_start_matches('"').split(['"', ' ']).next().unwrap_or_default()) {
                Some(python) => self.program(Path::new(python)).map_err(explain)?,
                None => self.commands(&text),
            }
        }
        Ok(())
    }

    /// Follows the program that another one gets as an argument.
    pub(super) fn arguments(&mut self, program: &Path, arguments: &[String]) -> io::Result<()> {
        let mut words = arguments.iter().map(String::as_str);
        if name_of(program) == "env" {
            let Some(name) = env_program(words) else { return Ok(()) };
            let name = name.split_whitespace().next().unwrap_or_default();
            let path = self.located(name)?;
            self.program(&path)?;
            let rest = arguments.iter().position(|word| word == name).map_or(&[][..], |at| &arguments[at + 1..]);
            return self.arguments(&path, rest);
        }
        if !is_shell(program) {
            return Ok(());
        }
        let mut reads_argument = false;
        let first = loop {
            match words.next() {
                Some("-o" | "+o" | "-O" | "+O") => drop(words.next()),
                Some(option) if option.starts_with(['-', '+']) => {
                    reads_argument |= !option.starts_with("--") && option.contains('c');
                }
                Some(first) => break first,
                None => return Ok(()),
            }
        };
        if reads_argument {
            self.commands(first);
        } else if let Some(text) = self.read_text(&self.directory.join(first)) {
            self.commands(&text);
        }
        Ok(())
    }

    /// Follows the commands of a shell's script, as far as they can be told without running it. The
    /// shell may find other programs, so what is missing is only noted.
    fn commands(&mut self, text: &str) {
        let before = (self.directory.clone(), self.search.clone());
        for command in shell::commands(text) {
            match command {
                shell::Command::Enter(folder) => self.directory = self.directory.join(folder),
                shell::Command::Search(folder) => self.search.insert(0, self.directory.join(folder)),
                shell::Command::Read(file) => {
                    let path = self.directory.join(file);
                    if let Err(error) = self.readable(&path) {
                        self.notes.insert(format!("the shell cannot read {}: {error}", path.display()));
                    }
                }
                shell::Command::Run(words) => {
                    let Some((name, arguments)) = words.split_first() else { continue };
                    let found = self.located(name).and_then(|path| {
                        self.program(&path)?;
                        self.arguments(&path, arguments)
                    });
                    if let Err(error) = found {
                        self.notes.insert(format!("the shell cannot run `{name}`: {error}"));
                    }
                }
            }
        }
        (self.directory, self.search) = before;
    }

    /// Fails if the jail does not show a file.
    fn readable(&self, path: &Path) -> io::Result<()> {
        if !self.is_visible(path) {
            let folder = path.parent().unwrap_or(path).display();
            return Err(bad(format!(
                "the jail does not show it: add `readOnlyPaths: [{folder}]`, if the machine has it"
            )));
        }
        fs::metadata(self.on_machine(path)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_starts_its_first_other_word() {
        for (line, program) in [
            ("python3 app.py", Some("python3")),
            ("-S python3 -u", Some("python3")),
            ("-Spython3 -u", Some("python3")),
            ("-i -u HOME A=b --split-string=node --x", Some("node")),
            ("A=b", None),
        ] {
            assert_eq!(env_program(line.split(' ')), program, "{line}");
        }
    }
}
