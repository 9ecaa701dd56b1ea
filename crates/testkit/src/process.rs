//! Child processes with their output, and the processes below them.

use crate::{TIMEOUT, eventually};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, Command, ExitStatus};
use std::time::{Duration, Instant};

/// How long a process may take to terminate when it is dropped: a node drains its requests and its
/// instances first.
const GRACE: Duration = Duration::from_secs(30);

/// The environment variable with the folder of what a node compiles.
const CACHE: &str = "LENO_CACHE";

/// A child process and the output that it has written. Dropping it terminates it and its instances.
pub struct Process {
    name: String,
    child: Child,
    /// Standard output and standard error.
    output: File,
}

impl Process {
    /// Starts a command. The process inherits the CPU affinity of this thread.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let output = tempfile::tempfile()?;
        if !command.get_envs().any(|(name, _)| name == CACHE) {
            // Not that of the machine, and not compiled again by each test.
            command.env(CACHE, concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tmp/cache"));
        }
        let child = command.stdout(output.try_clone()?).stderr(output.try_clone()?).spawn()?;
        let name = [command.get_program()].into_iter().chain(command.get_args().take(1));
        let name = name.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        Ok(Self { name, child, output })
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The standard input, if the command has a pipe for it.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The output so far.
    pub fn output(&self) -> String {
        let length = self.output.metadata().map_or(0, |metadata| metadata.len());
        let mut bytes = vec![0; length as usize];
        // The processes share the position in the file, so this must not move it.
        let read = self.output.read_exact_at(&mut bytes, 0);
        read.map_or_else(|error| error.to_string(), |()| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The lines of the output so far.
    pub fn lines(&self) -> Vec<String> {
        self.output().lines().map(str::to_owned).collect()
    }

    /// The exit status, if the process has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Polls until a condition holds. Panics with the output if the process ends before.
    pub fn wait_until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        eventually(&format!("{}: {what}", self.name), || holds(self) || self.ensure_running());
    }

    /// Panics with the output if the process has ended. Returns `false` for use in a condition.
    pub fn ensure_running(&mut self) -> bool {
        if let Some(status) = self.exit_status() {
            panic!("{} ended with {status}:\n{}", self.name, self.output());
        }
        false
    }

    /// Stops the process (SIGSTOP). It keeps its connections, and does not answer.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues a paused process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGTERM, without waiting.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the end. Returns the exit status.
    pub fn wait(&mut self) -> ExitStatus {
        eventually(&format!("the end of {}", self.name), || self.exit_status())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        terminate(&mut self.child);
        if std::thread::panicking() {
            eprintln!("--- {} wrote:\n{}", self.name, self.output());
        }
    }
}

/// Sends SIGTERM, and SIGKILL if that does not help. Kills the instances that the process then
/// leaves behind. Does nothing if the process has ended.
pub fn terminate(child: &mut Child) {
    if child.try_wait().ok().flatten().is_some() {
        return;
    }
    let root = child.id();
    let mut instances = children(root);
    // It fails if the process has just ended.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    let begin = Instant::now();
    while begin.elapsed() < GRACE && child.try_wait().ok().flatten().is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    instances.extend(children(root));
    let _ = child.kill();
    let _ = child.wait();
    for instance in instances.into_iter().filter(|instance| is_running(*instance)) {
        // Each of them leads a process group.
        if let Some(group) = Pid::from_raw(instance as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Terminates a process that is no child of this one, and waits for its end.
pub fn terminate_pid(pid: u32) {
    let Some(process) = Pid::from_raw(pid as i32) else { return };
    let _ = kill_process(process, Signal::TERM);
    let begin = Instant::now();
    while is_running(pid) && begin.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = kill_process(process, Signal::KILL);
}

/// The running children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let texts = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    texts
        .flat_map(|text| text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The children of a process, their children, and so on.
pub fn descendants(pid: u32) -> Vec<u32> {
    children(pid).into_iter().flat_map(tree).collect()
}

/// A process and its descendants. A jail's program is below the jail's first process, which is
/// below the jailer.
pub fn tree(pid: u32) -> Vec<u32> {
    [vec![pid], descendants(pid)].concat()
}

/// Whether the process exists and has not ended.
pub fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;

    #[test]
    fn a_terminated_process_leaves_no_instance_behind() {
        // It ends at SIGTERM. Its child, which leads a group, does not.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done' & wait"]);
        let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let instance: u32 = line.trim().parse().unwrap();
        assert!(is_running(instance) && children(child.id()).contains(&instance));
        terminate(&mut child);
        eventually("the end of the instance", || !is_running(instance));
    }

    #[test]
    fn the_output_has_both_streams_in_their_order() {
        let mut process =
            Process::spawn(Command::new("sh").args(["-c", "echo one; echo two >&2; echo three"])).unwrap();
        assert!(process.wait().success());
        assert_eq!(process.lines(), ["one", "two", "three"]);
    }
}
