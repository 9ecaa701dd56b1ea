//! The process that owns a node's group. The group's name identifies it, because instances of the
//! same account can change all other properties of the group, also a lock on it.

use rustix::process::{Pid, getpid, test_kill_process};
use std::fs;
use std::io;

/// A process, identified uniquely until the machine restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// Number of the PID namespace in which the process has its ID.
    namespace: u64,
    process: i32,
    /// When it started, in clock ticks since the machine did.
    start: u64,
}

impl Owner {
    /// This process.
    pub(super) fn this() -> io::Result<Self> {
        Self::of_process(getpid().as_raw_nonzero().get())
    }

    pub(super) fn of_process(process: i32) -> io::Result<Self> {
        let start = started(process)?.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { namespace: namespace()?, process, start })
    }

    /// The part of the group's name that identifies the process.
    pub(super) fn name(&self) -> String {
        let Self { namespace, process, start } = self;
        format!("{namespace:x}-{process:x}-{start:x}")
    }

    /// Reads a name of [`Owner::name`], and ignores the text after it; `None`: a group of an
    /// earlier release, whose name identifies no process.
    pub(super) fn of(name: &str) -> Option<Self> {
        let mut numbers = name.split('-').map(|number| u64::from_str_radix(number, 16).ok());
        let (namespace, process, start) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(Self { namespace, process: process.try_into().ok()?, start })
    }

    /// Whether the process has ended; `None`: it is of another PID namespace, which is not visible
    /// here.
    pub(super) fn has_ended(&self) -> Option<bool> {
        if namespace().ok()? != self.namespace {
            return None;
        }
        match started(self.process) {
            Ok(start) => Some(start != Some(self.start)),
            // Some machines show an account only its own processes.
            Err(_) => Pid::from_raw(self.process).map(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH)),
        }
    }
}

/// When a process started; `None`: it has ended, and its parent has not noticed.
fn started(process: i32) -> io::Result<Option<u64>> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The second field is the program's name in parentheses, which may have any content.
    let after_name = stat.rsplit_once(')').ok_or(io::ErrorKind::InvalidData)?.1;
    let mut fields = after_name.split_whitespace();
    let has_ended = matches!(fields.next(), Some("Z" | "X"));
    /// The 22nd field. The first two precede this text.
    const START: usize = 22 - 3 - 1;
    let start = fields.nth(START).and_then(|start| start.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok((!has_ended).then_some(start))
}

/// This process's PID namespace: `pid:[4026531836]`.
fn namespace() -> io::Result<u64> {
    let link = fs::read_link("/proc/self/ns/pid")?;
    let number = link.to_str().and_then(|link| link.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_name_says_which_process_it_is_for() {
        let this = Owner::this().unwrap();
        assert_eq!(Owner::of(&this.name()), Some(this.clone()));
        assert_eq!(Owner::of(&format!("{}-0123456789abcdef", this.name())), Some(this.clone()));
        assert_eq!(this.has_ended(), Some(false));
        assert_eq!(Owner::of("0123456789abcdef"), None);
        assert_eq!(Owner { start: this.start + 1, ..this.clone() }.has_ended(), Some(true), "the ID was used again");
        assert_eq!(Owner { namespace: 1, ..this }.has_ended(), None);
    }

    #[test]
    fn a_process_has_ended_before_its_parent_notices() {
        let mut child = Command::new("/bin/sh").args(["-c", "read line"]).stdin(Stdio::piped()).spawn().unwrap();
        let process = i32::try_from(child.id()).unwrap();
        let owner = Owner::of_process(process).unwrap();
        assert_eq!(owner.has_ended(), Some(false));
        drop(child.stdin.take());
        while owner.has_ended() == Some(false) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(owner.has_ended(), Some(true));
    }
}
