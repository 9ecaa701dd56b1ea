//! The program of a container, as its jail's first process starts it.
//!
//! A container has several users, so its program may have another one than the first process, and
//! the image's root user keeps some rights. The program's process is there before the first process
//! gives its rights up, and waits until it has: when the image's program begins, nothing in the
//! jail has other rights than the container's, or an unfiltered system call.

use crate::filter::Listener;
use crate::rights::{self, give_up_rights_but, keep};
use crate::root;
use crate::step::{During, Unmade};
use crate::user::{self, User};
use crate::wire::ContainerTask;
use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::unistd::{ForkResult, execve, fork};
use rustix::fs::{FileType, Mode, OFlags, fchown, fstat};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, setrlimit, waitpid};
use rustix::thread::{CapabilitySet, Gid, Uid};
use seccompiler::BpfProgram;
use std::collections::BTreeMap;
use std::ffi::{CString, NulError};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The capabilities of a container's root user for the files, processes and users of that
/// container. They suffice to start common images, which change the owner of their folders and then
/// switch to another user. None of them concerns networks, mounts or the kernel. Other users have
/// none of them.
const ROOTS_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// The steps of the program's process, and their names in errors.
const STEPS: [&str; 5] = ["its standard streams", "its limits", "its user", "its working directory", "the program"];

/// Starts the program. `mounts`: the root, and the visible paths. Returns the program, and the
/// listener for its system calls.
pub(crate) fn start(
    task: &ContainerTask,
    mounts: Vec<OwnedFd>,
    output: OwnedFd,
    errors: OwnedFd,
    filter: &BpfProgram,
) -> Result<(Pid, Listener), Unmade> {
    // The container's folders and its program begin with it, whatever the node's is.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    new_keyring().during("its keys")?;
    root::enter(task, mounts).during("the container's files")?;
    let root = root::here().during("the container's root")?;
    let user = user::find(root.as_fd(), &task.user).during("the container's user")?;
    for pipe in [&output, &errors] {
        give(pipe, &user).during("its standard streams")?;
    }
    let input = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).during("/dev/null")?;
    let process = Process {
        directory: root::open(root.as_fd(), &task.directory, OFlags::PATH | OFlags::DIRECTORY)
            .during("its working directory")?,
        streams: [input, output, errors],
        paths: paths(root.as_fd(), task).during("the program")?,
        arguments: strings(task.argv.iter().cloned()).during("its arguments")?,
        environment: strings(environment(task, &user)).during("its environment")?,
        limits: limits(task),
        capabilities: if user.user == 0 { ROOTS_CAPABILITIES } else { CapabilitySet::empty() },
        user,
    };
    drop(root);
    // From here on the program's process can have no other rights than these.
    give_up_rights_but(process.capabilities, ROOTS_CAPABILITIES).during("capabilities")?;
    let calls = Listener::install(filter).during("the filter of system calls")?;
    let pid = process.start()?;
    Ok((pid, calls))
}

/// Leaves the keyring of the node's session.
fn new_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: the kernel reads no memory, as the name is missing.
    #[expect(unsafe_code, reason = "no library has this call")]
    let result = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
    match io::Error::last_os_error() {
        // This kernel has no keys.
        error if result < 0 && error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        error if result < 0 => Err(error),
        _ => Ok(()),
    }
}

/// Gives a pipe to the program's user, so that its program can open `/dev/stdout` and
/// `/dev/stderr`, to which servers write their logs.
fn give(pipe: &OwnedFd, user: &User) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(pipe)?.st_mode) == FileType::Fifo {
        fchown(pipe, Some(Uid::from_raw(user.user)), Some(Gid::from_raw(user.group)))?;
    }
    Ok(())
}

fn environment(task: &ContainerTask, user: &User) -> impl Iterator<Item = String> {
    let mut all = BTreeMap::from([("HOME".to_owned(), user.home.clone().unwrap_or_else(|| "/".to_owned()))]);
    all.extend(task.environment.clone());
    all.into_iter().map(|(name, value)| format!("{name}={value}"))
}

/// The files that may be the program, the likeliest first.
fn paths(root: BorrowedFd<'_>, task: &ContainerTask) -> io::Result<Vec<CString>> {
    let name = task.argv.first().map(String::as_str).unwrap_or_default();
    let paths: Vec<PathBuf> = if name.contains('/') {
        vec![name.into()]
    } else {
        let folders = task.environment.get("PATH").map(String::as_str).unwrap_or_default();
        folders.split(':').filter(|folder| !folder.is_empty()).map(|folder| Path::new(folder).join(name)).collect()
    };
    let mut found = Vec::new();
    for path in paths {
        match root::open(root, &task.directory.join(&path), OFlags::PATH) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {}
            // Such as a link to a file that this process has open.
            Err(error) => return Err(error),
            Ok(file) if FileType::from_raw_mode(fstat(&file)?.st_mode).is_dir() => {}
            Ok(_) => found.push(CString::new(path.into_os_string().into_encoded_bytes())?),
        }
    }
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "not found in the image"));
    }
    Ok(found)
}

fn strings(texts: impl Iterator<Item = String>) -> Result<Vec<CString>, NulError> {
    texts.map(CString::new).collect()
}

fn limits(task: &ContainerTask) -> Vec<(Resource, Rlimit)> {
    let mut limits = vec![(Resource::Nproc, rights::processes(task.processes))];
    limits.extend(rights::LIMITS.map(|(resource, most)| (resource, rights::at_most(resource, most))));
    limits.extend(task.descriptors.map(|descriptors| (Resource::Nofile, rights::limit(descriptors, true))));
    limits
}

/// The process of a container's program.
struct Process {
    paths: Vec<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    streams: [OwnedFd; 3],
    directory: OwnedFd,
    limits: Vec<(Resource, Rlimit)>,
    user: User,
    capabilities: CapabilitySet,
}

impl Process {
    /// Starts it. When this returns, its program runs.
    fn start(self) -> Result<Pid, Unmade> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).during("pipe");
        let ((gate, opener), (report, reporter)) = (pipe()?, pipe()?);
        // SAFETY: this process has one thread, so the copy may allocate memory.
        #[expect(unsafe_code, reason = "the program's process has to wait until this one has no rights any more")]
        let forked = unsafe { fork() }.during("the program's process")?;
        let child = match forked {
            ForkResult::Child => {
                drop((opener, report));
                self.become_program(File::from(gate), File::from(reporter))
            }
            ForkResult::Parent { child } => child,
        };
        drop((gate, reporter, self));
        let pid = Pid::from_raw(child.as_raw()).ok_or(io::ErrorKind::NotFound).map_err(io::Error::from);
        let pid = pid.during("the program's process")?;
        // This process ends programs of other users.
        keep(CapabilitySet::KILL).during("capabilities")?;
        File::from(opener).write_all(&[1]).during("pipe")?;
        // The program's beginning closes the pipe.
        let mut failed = Vec::new();
        File::from(report).read_to_end(&mut failed).during("pipe")?;
        let [step, number @ ..] = &failed[..] else { return Ok(pid) };
        let _ = waitpid(Some(pid), WaitOptions::empty());
        let number = number.first_chunk().map_or(0, |number| i32::from_ne_bytes(*number));
        let step = STEPS.get(usize::from(*step)).copied().unwrap_or("the program's process");
        Err(io::Error::from_raw_os_error(number)).during(step)
    }

    /// Becomes the program when the gate opens. Otherwise reports why, and ends.
    fn become_program(self, mut gate: File, mut reporter: File) -> ! {
        if gate.read_exact(&mut [0]).is_ok() {
            let (step, error) = self.execute();
            let mut failed = vec![step];
            failed.extend((error as i32).to_ne_bytes());
            let _ = reporter.write_all(&failed);
        }
        // SAFETY: this only ends the process.
        #[expect(unsafe_code, reason = "a copy of a process must not do it a second time")]
        unsafe {
            libc::_exit(127)
        }
    }

    /// Makes no system call that the filter refuses: the process that would answer waits for this
    /// one.
    fn execute(&self) -> (u8, Errno) {
        let steps = [Self::take_streams, Self::take_limits, Self::take_user, Self::take_directory];
        for (number, step) in (0..).zip(steps) {
            if let Err(error) = step(self) {
                return (number, Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)));
            }
        }
        let mut reason = Errno::ENOENT;
        for path in &self.paths {
            match execve(path, &self.arguments, &self.environment) {
                Ok(never) => match never {},
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(Errno::EACCES) => reason = Errno::EACCES,
                Err(error) => {
                    reason = error;
                    break;
                }
            }
        }
        (4, reason)
    }

    fn take_streams(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        let [input, output, errors] = &self.streams;
        rustix::stdio::dup2_stdin(input)?;
        rustix::stdio::dup2_stdout(output)?;
        rustix::stdio::dup2_stderr(errors)?;
        close_fds::set_fds_cloexec(3, &[]);
        // SAFETY: this sets no handler.
        #[expect(unsafe_code, reason = "this process ignores the signal, which is not for the program")]
        unsafe {
            signal(Signal::SIGPIPE, SigHandler::SigDfl)?;
        }
        Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?)
    }

    fn take_limits(&self) -> io::Result<()> {
        self.limits.iter().try_for_each(|(resource, limit)| Ok(setrlimit(*resource, *limit)?))
    }

    fn take_user(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.user.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let (user, group) = (Uid::from_raw(self.user.user), Gid::from_raw(self.user.group));
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        keep(self.capabilities)
    }

    fn take_directory(&self) -> io::Result<()> {
        Ok(rustix::process::fchdir(&self.directory)?)
    }
}
