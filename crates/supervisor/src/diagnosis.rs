//! What a user needs to mend an instance that failed, besides the failure itself: its last words, and
//! their likely cause.
//!
//! None of it goes into the errors of requests, which callers in other namespaces see.

use crate::downloads::missing_packages;
use crate::output::OutputBuffer;
use leno_model::{OutputLine, OutputStream};
use std::path::{Path, PathBuf};

/// Lines that are searched for a cause.
const SEARCHED: usize = 30;
/// Lines that are quoted, and characters of each.
const QUOTED: usize = 3;
const MAX_QUOTE: usize = 200;

/// The files that an instance sees.
#[derive(Clone, Copy)]
pub(crate) enum View<'a> {
    /// All of the machine.
    Machine,
    /// Those of an image.
    Image,
    /// `/usr` and its kin, and these.
    Jail { directory: &'a Path, shown: &'a [PathBuf] },
}

impl<'a> View<'a> {
    /// The files of a process with this working directory and these `readOnlyPaths`.
    pub(crate) fn of(in_jail: bool, is_container: bool, directory: &'a Path, shown: &'a [PathBuf]) -> Self {
        match (in_jail, is_container) {
            (false, _) => Self::Machine,
            (true, true) => Self::Image,
            (true, false) => Self::Jail { directory, shown },
        }
    }
}

/// How an instance failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It ended with success.
    Success,
    /// It ended otherwise, or is still running.
    Other,
}

/// The sentence to add to a failure; empty: nothing is known. `lacks`: dependencies that its jail
/// does not show. `argv`: the program and its arguments, if it was never ready.
pub(crate) fn diagnose(
    output: Option<&OutputBuffer>,
    end: End,
    lacks: &[String],
    (view, argv): (View<'_>, &[String]),
) -> String {
    let lines: Vec<&OutputLine> = output.into_iter().flat_map(OutputBuffer::lines).collect();
    let said = |stream: OutputStream| -> Vec<&str> {
        let lines = lines.iter().rev().filter(|line| line.stream == stream);
        lines.map(|line| &*line.text).take(SEARCHED).collect()
    };
    let errors = Some(said(OutputStream::Stderr)).filter(|lines| lines.iter().any(|text| is_telling(text)));
    let lines = errors.unwrap_or_else(|| said(OutputStream::Stdout));
    let has_network = matches!(view, View::Machine);
    let missing = if has_network || end == End::Success { None } else { missing_packages(argv, &lines) };
    let found = lines.iter().find_map(|line| Some((*line, cause(line, view)?))).filter(|_| missing.is_none());
    let quoted: Vec<&str> = match found {
        Some((line, _)) if is_telling(line) => vec![line],
        _ => lines.into_iter().filter(|text| is_telling(text)).take(QUOTED).collect(),
    };
    let mut text = lacks.iter().fold(String::new(), |text, lack| format!("{text}; {lack}"));
    if !quoted.is_empty() {
        let quotes: Vec<String> = quoted.iter().rev().map(|line| quote(line)).collect();
        text += &format!("; it wrote: {}", quotes.join(" / "));
    }
    let is_known = |line: &str| path_in(line).is_some_and(|path| lacks.iter().any(|lack| lack.contains(path)));
    match (missing, found) {
        (Some(cause), _) => text += &format!("; {cause}"),
        (None, Some((line, cause))) if !is_known(line) => text += &format!("; {cause}"),
        (None, None) if end == End::Success && lacks.is_empty() => {
            text += "; a function serves until the node ends it: have the program stay in the foreground (`nginx -g \
                     'daemon off;'`), or make it a Job";
        }
        _ => {}
    }
    text
}

/// Whether a line may name a cause: not the frames of a stack.
fn is_telling(text: &str) -> bool {
    let is_frame = text.starts_with([' ', '\t', '}', ']', '^']) || text.starts_with("Node.js v");
    let is_frame = is_frame || text.starts_with("Traceback (most recent");
    !is_frame && text.chars().any(char::is_alphanumeric)
}

/// A line without colours and other control characters, cut.
fn quote(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let first = parts.next().unwrap_or_default();
    let after = |part: &str| part.find(|letter: char| letter.is_ascii_alphabetic()).map_or(0, |end| end + 1);
    let text: String = std::iter::once(first).chain(parts.map(|part| &part[after(part)..])).collect();
    let mut letters = text.trim().chars().filter(|letter| !letter.is_control());
    let mut text: String = letters.by_ref().take(MAX_QUOTE).collect();
    if letters.next().is_some() {
        text.push('…');
    }
    text
}

/// The likely cause of what a program wrote, and the fix.
fn cause(line: &str, view: View<'_>) -> Option<String> {
    let lower = line.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let path = path_in(line).map(Path::new);
    if matches!(view, View::Machine) {
        return None;
    }
    if says(&["chroot"]) {
        return Some("no program in a jail may call `chroot`: leave it out of the configuration".to_owned());
    }
    if says(&["name resolution", "name or service not known", "getaddrinfo", "could not resolve", "no such host"]) {
        return Some(
            "a jail resolves the names of `callees` only: add the function, or an External document".to_owned(),
        );
    }
    let View::Jail { directory, shown } = view else { return None };
    if says(&[
        "setuid",
        "setgid",
        "setresuid",
        "setresgid",
        "setgroups",
        "initgroups",
        "seteuid",
        "reuid",
        "change user",
        "find user",
        "no such user",
        "unknown user",
        "getpwnam",
        "changing ownership",
    ]) {
        return Some("a jail has one user, who is not root: leave out changes of the user".to_owned());
    }
    if says(&["read-only file system", "erofs", "read only file system"]) {
        return Some(match path.and_then(Path::parent).filter(|folder| !folder.starts_with(directory)) {
            Some(folder) => in_memory(folder),
            None => {
                "the files of the machine are read-only in a jail: have it write to /tmp, or to a folder of `volumes`"
                    .to_owned()
            }
        });
    }
    let path = path?;
    let is_missing = says(&[
        "no such file",
        "enoent",
        "not found",
        "cannot find",
        "does not exist",
        "doesn't exist",
        "unable to access",
        "can't open",
        "cannot open",
        "not a directory",
    ]);
    let is_shown = |path: &Path| {
        let own = ["/usr", "/bin", "/lib", "/lib64", "/sbin", "/proc", "/sys", "/dev", "/tmp"].map(Path::new);
        own.iter().any(|folder| path.starts_with(folder))
            || path.starts_with(directory)
            || shown.iter().any(|folder| path.starts_with(folder))
    };
    if is_missing && !is_shown(path) {
        let made = ["/run", "/var/run", "/var/log", "/var/lib", "/var/cache", "/var/spool"];
        return Some(match made.iter().any(|folder| path.starts_with(folder)) {
            true => in_memory(path.parent().unwrap_or(path)),
            false => format!(
                "a jail does not show {}: if the machine has it, add `readOnlyPaths: [{}]`",
                path.display(),
                to_show(path).display()
            ),
        });
    }
    (says(&["permission denied", "eacces"]) && is_shown(path) && !path.starts_with("/dev")).then(|| {
        format!("a jail reads {} as its own account: others than its owner need access (`chmod o+rX`)", path.display())
    })
}

fn in_memory(folder: &Path) -> String {
    // A link to it, on most machines.
    let folder =
        folder.strip_prefix("/var/run").map_or_else(|_| folder.to_owned(), |rest| Path::new("/run").join(rest));
    let folder = folder.components().collect::<PathBuf>();
    format!("a jail has no such folder to write to: add `volumes: [{{path: {}}}]`", folder.display())
}

/// The folder to show for a file: of `/etc` the one of its program, else the one with the file.
fn to_show(path: &Path) -> &Path {
    let depth = if path.starts_with("/etc") { 3 } else { usize::MAX };
    let folder = path.ancestors().find(|folder| folder.components().count() == depth).or(path.parent());
    folder.filter(|folder| folder.components().count() > 2).unwrap_or(path)
}

/// The first absolute path in a line.
fn path_in(line: &str) -> Option<&str> {
    let mut words = line
        .split([' ', '\t', '"', '\'', '`', '(', ')', ',', ';', ':', '=', '[', ']', '<', '>', '\u{2018}', '\u{2019}']);
    words
        .find(|word| word.starts_with('/') && word.len() > 1 && !word.starts_with("//"))
        .map(|word| word.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    fn output(stream: OutputStream, lines: &[&str]) -> OutputBuffer {
        let mut output = OutputBuffer::new(SystemTime::UNIX_EPOCH);
        for text in lines {
            let text = (*text).to_owned();
            output.push(OutputLine { instance: 1, at: SystemTime::UNIX_EPOCH, stream, text }, 1 << 20);
        }
        output
    }

    #[test]
    fn the_cause_of_what_real_programs_write_is_named() {
        let shown = [PathBuf::from("/srv/data")];
        let view = View::Jail { directory: Path::new("/srv/app"), shown: &shown };
        for (line, told) in [
            (
                r#"nginx: [emerg] open() "/etc/nginx/nginx.conf" failed (2: No such file or directory)"#,
                "readOnlyPaths: [/etc/nginx]",
            ),
            ("Error: Unable to access jarfile /opt/shop/shop.jar", "readOnlyPaths: [/opt/shop]"),
            ("Error: Cannot find module '/data/app/server.js'", "readOnlyPaths: [/data/app]"),
            ("can't open file '/app.py': [Errno 2] No such file or directory", "readOnlyPaths: [/app.py]"),
            (
                "Fatal error, can't open config file '/etc/redis.conf': No such file or directory",
                "readOnlyPaths: [/etc/redis.conf]",
            ),
            (
                "mktemp: failed to create directory via template '/var/run/apache2/socks.XXX': No such file or directory",
                "volumes: [{path: /run/apache2}]",
            ),
            (
                "(2)No such file or directory: AH00091: apache2: could not open error log file /var/log/apache2/error.log.",
                "volumes: [{path: /var/log/apache2}]",
            ),
            ("OSError: [Errno 30] Read-only file system: 'app.log'", "write to /tmp"),
            ("Error: EROFS: read-only file system, open '/srv/app/app.log'", "write to /tmp"),
            ("[ALERT] (3) : [haproxy.main()] Cannot chroot(/var/lib/haproxy).", "may call `chroot`"),
            ("setpriv: setresuid failed: Invalid argument", "one user"),
            (
                "[ALERT] (2) : config : parsing [/srv/app/haproxy.cfg:7] : cannot find user id for 'haproxy' (0:Success)",
                "one user",
            ),
            ("PermissionError: [Errno 13] Permission denied: '/srv/data/key'", "chmod o+rX"),
            ("getaddrinfo ENOTFOUND packages.example", "`callees` only"),
        ] {
            let told_now = diagnose(Some(&output(OutputStream::Stderr, &[line])), End::Other, &[], (view, &[]));
            assert!(told_now.contains(told) && told_now.contains("it wrote: "), "{line}{told_now}");
        }
        for line in [
            "ModuleNotFoundError: No module named 'flask'",
            "open /srv/app/x: no such file or directory",
            "listening on /",
        ] {
            let told = diagnose(Some(&output(OutputStream::Stderr, &[line])), End::Other, &[], (view, &[]));
            assert_eq!(told, format!("; it wrote: {line}"));
        }
    }

    #[test]
    fn frames_of_a_stack_are_left_out_and_long_lines_cut() {
        let stack = ["Traceback (most recent call last):", "  File \"/x.py\", line 1", "KeyError: 'a'"];
        let told = diagnose(Some(&output(OutputStream::Stderr, &stack)), End::Other, &[], (View::Machine, &[]));
        assert_eq!(told, "; it wrote: KeyError: 'a'");
        let told = diagnose(
            Some(&output(OutputStream::Stderr, &["\u{1b}[31mred\u{1b}[0m"])),
            End::Other,
            &[],
            (View::Machine, &[]),
        );
        assert_eq!(told, "; it wrote: red");
        let told = diagnose(
            Some(&output(OutputStream::Stdout, &[&"x\u{1b}".repeat(500)])),
            End::Other,
            &[],
            (View::Machine, &[]),
        );
        assert!(told.ends_with('…') && told.len() < 250 && !told.contains('\u{1b}'), "{told}");
        let lacks = ["the jail does not show /opt/a.jar".to_owned()];
        let view = View::Jail { directory: Path::new("/srv"), shown: &[] };
        let said = output(OutputStream::Stderr, &["Unable to access jarfile /opt/a.jar"]);
        let told = diagnose(Some(&said), End::Other, &lacks, (view, &[]));
        assert_eq!(told, "; the jail does not show /opt/a.jar; it wrote: Unable to access jarfile /opt/a.jar");
        assert_eq!(diagnose(None, End::Other, &[], (View::Image, &[])), "");
        assert!(diagnose(None, End::Success, &[], (View::Image, &[])).contains("foreground"));
    }
}
