//! The system calls that a program in a jail may make.
//!
//! A call on [`ALLOWED`] reaches the kernel at once. The kernel passes every other call to the
//! jail's first process, which answers in its place. If programs are known to try the call and to
//! continue without it ([`ANSWERED`]), it returns an error. If only an attack makes the call
//! ([`KILLED`]), it kills the process. Otherwise it answers as a kernel that does not have the
//! call. The first process reports each kind of refusal to the node once, by name.
//!
//! Some calls are allowed with some of their arguments only ([`arguments`]). `listen` is allowed, and
//! passes the first process, so that the node learns when a program listens.

mod arguments;
mod locks;

use arguments::rules;
pub(crate) use locks::RecordLocks;
use nix::errno::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use syscalls::Sysno;

/// Calls that are allowed with any arguments.
#[rustfmt::skip]
const ALLOWED: &[Sysno] = &[
    // Files.
    Sysno::access, Sysno::chdir, Sysno::chmod, Sysno::chown, Sysno::close, Sysno::close_range, Sysno::copy_file_range,
    Sysno::creat, Sysno::dup, Sysno::dup2, Sysno::dup3, Sysno::faccessat, Sysno::faccessat2, Sysno::fadvise64,
    Sysno::fallocate, Sysno::fchdir, Sysno::fchmod, Sysno::fchmodat, Sysno::fchmodat2, Sysno::fchown, Sysno::fchownat,
    Sysno::fdatasync, Sysno::fgetxattr, Sysno::flistxattr, Sysno::flock, Sysno::fremovexattr, Sysno::fsetxattr,
    Sysno::fstat, Sysno::fstatfs, Sysno::fsync, Sysno::ftruncate, Sysno::futimesat, Sysno::getcwd, Sysno::getdents,
    Sysno::getdents64, Sysno::getxattr, Sysno::inotify_add_watch, Sysno::inotify_init, Sysno::inotify_init1,
    Sysno::inotify_rm_watch, Sysno::lchown, Sysno::lgetxattr, Sysno::link, Sysno::linkat,
    Sysno::listxattr, Sysno::llistxattr, Sysno::lremovexattr, Sysno::lseek, Sysno::lsetxattr, Sysno::lstat,
    Sysno::memfd_create, Sysno::mkdir, Sysno::mkdirat, Sysno::mknod, Sysno::mknodat, Sysno::newfstatat, Sysno::open,
    Sysno::openat, Sysno::openat2, Sysno::pipe, Sysno::pipe2, Sysno::pread64, Sysno::preadv, Sysno::preadv2,
    Sysno::pwrite64, Sysno::pwritev, Sysno::pwritev2, Sysno::read, Sysno::readahead, Sysno::readlink,
    Sysno::readlinkat, Sysno::readv, Sysno::removexattr, Sysno::rename, Sysno::renameat, Sysno::renameat2,
    Sysno::rmdir, Sysno::sendfile, Sysno::setxattr, Sysno::stat, Sysno::statfs, Sysno::statx,
    Sysno::symlink, Sysno::symlinkat, Sysno::sync, Sysno::sync_file_range, Sysno::syncfs, Sysno::tee, Sysno::truncate,
    Sysno::umask, Sysno::unlink, Sysno::unlinkat, Sysno::utime, Sysno::utimensat, Sysno::utimes, Sysno::vmsplice,
    Sysno::write, Sysno::writev,
    // Sockets; which kinds, see `rules`.
    Sysno::accept, Sysno::accept4, Sysno::bind, Sysno::connect, Sysno::getpeername, Sysno::getsockname,
    Sysno::getsockopt, Sysno::recvfrom, Sysno::recvmmsg, Sysno::recvmsg, Sysno::sendmmsg, Sysno::sendmsg,
    Sysno::sendto, Sysno::shutdown,
    // Waiting.
    Sysno::epoll_create, Sysno::epoll_create1, Sysno::epoll_ctl, Sysno::epoll_ctl_old, Sysno::epoll_pwait,
    Sysno::epoll_pwait2, Sysno::epoll_wait, Sysno::epoll_wait_old, Sysno::eventfd, Sysno::eventfd2, Sysno::futex,
    Sysno::futex_requeue, Sysno::futex_wait, Sysno::futex_waitv, Sysno::futex_wake,
    Sysno::poll,
    Sysno::ppoll, Sysno::pselect6, Sysno::select, Sysno::signalfd, Sysno::signalfd4,
    // Memory.
    Sysno::brk, Sysno::get_robust_list, Sysno::madvise, Sysno::map_shadow_stack, Sysno::membarrier,
    Sysno::mincore, Sysno::mlock, Sysno::mlock2, Sysno::mlockall, Sysno::mmap, Sysno::mprotect, Sysno::mremap,
    Sysno::mseal, Sysno::msync, Sysno::munlock, Sysno::munlockall, Sysno::munmap, Sysno::pkey_alloc, Sysno::pkey_free,
    Sysno::pkey_mprotect, Sysno::process_mrelease, Sysno::remap_file_pages, Sysno::set_robust_list,
    // Communication between the processes of a jail.
    Sysno::mq_getsetattr, Sysno::mq_notify, Sysno::mq_open, Sysno::mq_timedreceive, Sysno::mq_timedsend,
    Sysno::mq_unlink, Sysno::msgctl, Sysno::msgget, Sysno::msgrcv, Sysno::msgsnd, Sysno::semctl, Sysno::semget,
    Sysno::semop, Sysno::semtimedop, Sysno::shmat, Sysno::shmctl, Sysno::shmdt, Sysno::shmget,
    // Processes and threads.
    Sysno::alarm, Sysno::arch_prctl, Sysno::capget, Sysno::capset, Sysno::execve, Sysno::execveat, Sysno::exit,
    Sysno::exit_group, Sysno::fork, Sysno::getcpu, Sysno::getegid, Sysno::geteuid, Sysno::getgid, Sysno::getgroups,
    Sysno::getitimer, Sysno::getpgid, Sysno::getpgrp, Sysno::getpid, Sysno::getppid, Sysno::getpriority,
    Sysno::getrandom, Sysno::getresgid, Sysno::getresuid, Sysno::getrlimit, Sysno::getrusage, Sysno::getsid,
    Sysno::gettid, Sysno::getuid, Sysno::ioprio_get, Sysno::kill, Sysno::landlock_add_rule,
    Sysno::landlock_create_ruleset, Sysno::landlock_restrict_self, Sysno::pause, Sysno::pidfd_open,
    Sysno::pidfd_send_signal, Sysno::restart_syscall, Sysno::rseq,
    Sysno::rt_sigaction, Sysno::rt_sigpending, Sysno::rt_sigprocmask, Sysno::rt_sigqueueinfo, Sysno::rt_sigreturn,
    Sysno::rt_sigsuspend, Sysno::rt_sigtimedwait, Sysno::rt_tgsigqueueinfo, Sysno::sched_get_priority_max,
    Sysno::sched_get_priority_min, Sysno::sched_getaffinity, Sysno::sched_getattr, Sysno::sched_getparam,
    Sysno::sched_getscheduler, Sysno::sched_rr_get_interval,
    Sysno::sched_yield, Sysno::set_tid_address,
    Sysno::setfsgid, Sysno::setfsuid, Sysno::setgid, Sysno::setgroups, Sysno::setitimer, Sysno::setpgid,
    Sysno::setregid, Sysno::setresgid, Sysno::setresuid, Sysno::setreuid, Sysno::setrlimit,
    Sysno::setsid, Sysno::setuid, Sysno::sigaltstack, Sysno::tgkill, Sysno::tkill, Sysno::vfork, Sysno::wait4,
    Sysno::waitid,
    // Time and the machine.
    Sysno::clock_getres, Sysno::clock_gettime, Sysno::clock_nanosleep, Sysno::gettimeofday, Sysno::nanosleep,
    Sysno::sysinfo, Sysno::time, Sysno::timer_create, Sysno::timer_delete, Sysno::timer_getoverrun,
    Sysno::timer_gettime, Sysno::timer_settime, Sysno::timerfd_create, Sysno::timerfd_gettime,
    Sysno::timerfd_settime, Sysno::times, Sysno::uname,
];

/// Calls that common programs try and can do without. They fail with this error.
const ANSWERED: &[(Sysno, Errno)] = &[
    (Sysno::add_key, Errno::EPERM),
    (Sysno::adjtimex, Errno::EPERM),
    (Sysno::bpf, Errno::EPERM),
    // It reveals which files of the machine other processes have read.
    (Sysno::cachestat, Errno::ENOSYS),
    (Sysno::chroot, Errno::EPERM),
    (Sysno::clock_adjtime, Errno::EPERM),
    (Sysno::clone, Errno::EPERM),
    (Sysno::fanotify_init, Errno::EPERM),
    // As a kernel without locks of open files.
    (Sysno::fcntl, Errno::EINVAL),
    (Sysno::get_mempolicy, Errno::ENOSYS),
    // `fs.aio-max-nr` bounds the contexts of all jails together. Programs fall back to threads.
    (Sysno::io_setup, Errno::ENOSYS),
    (Sysno::io_uring_enter, Errno::ENOSYS),
    (Sysno::io_uring_register, Errno::ENOSYS),
    (Sysno::io_uring_setup, Errno::ENOSYS),
    (Sysno::ioctl, Errno::EPERM),
    (Sysno::ioprio_set, Errno::EPERM),
    (Sysno::kcmp, Errno::EPERM),
    (Sysno::keyctl, Errno::ENOSYS),
    (Sysno::mbind, Errno::ENOSYS),
    (Sysno::memfd_secret, Errno::ENOSYS),
    (Sysno::migrate_pages, Errno::ENOSYS),
    (Sysno::move_pages, Errno::ENOSYS),
    (Sysno::name_to_handle_at, Errno::EOPNOTSUPP),
    (Sysno::perf_event_open, Errno::EPERM),
    (Sysno::personality, Errno::EPERM),
    (Sysno::prctl, Errno::EPERM),
    (Sysno::prlimit64, Errno::EPERM),
    (Sysno::request_key, Errno::ENOSYS),
    (Sysno::sched_setaffinity, Errno::EPERM),
    (Sysno::sched_setattr, Errno::EPERM),
    (Sysno::sched_setparam, Errno::EPERM),
    (Sysno::sched_setscheduler, Errno::EPERM),
    // The answer of a kernel without filters.
    (Sysno::seccomp, Errno::EINVAL),
    (Sysno::set_mempolicy, Errno::ENOSYS),
    (Sysno::sethostname, Errno::EPERM),
    (Sysno::setpriority, Errno::EPERM),
    (Sysno::setsockopt, Errno::ENOPROTOOPT),
    (Sysno::socket, Errno::EAFNOSUPPORT),
    (Sysno::socketpair, Errno::EAFNOSUPPORT),
    (Sysno::syslog, Errno::EPERM),
    (Sysno::unshare, Errno::EPERM),
    (Sysno::userfaultfd, Errno::EPERM),
];

/// Calls that serve a program only to leave its jail or to enter another one.
#[rustfmt::skip]
const KILLED: &[Sysno] = &[
    Sysno::acct, Sysno::clock_settime, Sysno::delete_module, Sysno::finit_module, Sysno::fsconfig, Sysno::fsmount,
    Sysno::fsopen, Sysno::fspick, Sysno::init_module, Sysno::ioperm, Sysno::iopl, Sysno::kexec_file_load,
    Sysno::kexec_load, Sysno::mount, Sysno::mount_setattr, Sysno::move_mount, Sysno::open_by_handle_at,
    Sysno::open_tree, Sysno::pidfd_getfd, Sysno::pivot_root, Sysno::process_vm_readv, Sysno::process_vm_writev,
    Sysno::ptrace, Sysno::quotactl, Sysno::quotactl_fd, Sysno::reboot, Sysno::setdomainname, Sysno::setns,
    Sysno::settimeofday, Sysno::swapoff, Sysno::swapon, Sysno::umount2,
];

/// The instruction that ends a filter with a verdict.
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Compiles the filter. A few of the calls that it does not allow it answers by itself; for all
/// others it asks the jail's first process.
pub(crate) fn compile() -> Result<BpfProgram, seccompiler::BackendError> {
    let filters = [
        without_clone3()?,
        without_splice()?,
        without_multipath()?,
        without_core_limits()?,
        without_work_for_others()?,
        allow_list()?,
    ];
    Ok(chain(filters))
}

/// Chains several filters: a call that one of them would allow is decided by the next one.
fn chain<const N: usize>(filters: [BpfProgram; N]) -> BpfProgram {
    const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    let mut chained = BpfProgram::new();
    for (index, mut filter) in filters.into_iter().enumerate() {
        let length = filter.len();
        if index + 1 < N {
            for (at, instruction) in filter.iter_mut().enumerate() {
                if instruction.code == RETURN && instruction.k == libc::SECCOMP_RET_ALLOW {
                    // A jump is relative to the instruction after it. No filter has more instructions than fit.
                    let rest = u32::try_from(length - at - 1).unwrap_or(u32::MAX);
                    *instruction = sock_filter { code: JUMP, jt: 0, jf: 0, k: rest };
                }
            }
        }
        chained.extend(filter);
    }
    chained
}

/// The C library tries `clone3` first, whose arguments no filter can see, and falls back to `clone`
/// if `clone3` does not exist. The kernel gives this answer: the jail's first process uses these
/// calls to start the program, so it cannot answer them.
fn without_clone3() -> Result<BpfProgram, seccompiler::BackendError> {
    without(Sysno::clone3, Vec::new(), Errno::ENOSYS)
}

/// `splice` does not see data that the kernel has put into a socket's queue, so a program that
/// waits for them would wait for ever. Programs copy where `splice` fails.
fn without_splice() -> Result<BpfProgram, seccompiler::BackendError> {
    without(Sysno::splice, Vec::new(), Errno::EINVAL)
}

/// Multipath TCP reaches nothing from a jail, and older kernels do not expect it where connections
/// are spliced. Programs fall back to TCP.
fn without_multipath() -> Result<BpfProgram, seccompiler::BackendError> {
    let protocol = u64::from(libc::IPPROTO_MPTCP.unsigned_abs());
    let multipath = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, protocol)?;
    without(Sysno::socket, vec![SeccompRule::new(vec![multipath])?], Errno::EPROTONOSUPPORT)
}

/// The limit on the size of core dumps stays as it is, and setting it seems to succeed. Programs
/// set it to get fewer dumps, and there are none (see `rights::forbid_core_dumps`).
fn without_core_limits() -> Result<BpfProgram, seccompiler::BackendError> {
    let core = u64::from(libc::RLIMIT_CORE);
    let resource = |index| SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, core);
    let new = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    let rules = BTreeMap::from([
        (i64::from(Sysno::setrlimit.id()), vec![SeccompRule::new(vec![resource(0)?])?]),
        (i64::from(Sysno::prlimit64.id()), vec![SeccompRule::new(vec![resource(1)?, new])?]),
    ]);
    without_effect(rules)
}

/// A jail's files are in memory, so it needs no writes to disks; but the kernel would write the
/// data of other processes too. Nor does a jail decide which files of the machine stay in memory.
fn without_work_for_others() -> Result<BpfProgram, seccompiler::BackendError> {
    let forget = u64::from(libc::POSIX_FADV_DONTNEED.unsigned_abs());
    let forget = SeccompCondition::new(3, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, forget)?;
    without_effect(BTreeMap::from([
        (i64::from(Sysno::sync.id()), Vec::new()),
        (i64::from(Sysno::syncfs.id()), Vec::new()),
        (i64::from(Sysno::fadvise64.id()), vec![SeccompRule::new(vec![forget])?]),
    ]))
}

/// The kernel skips these calls and reports success.
fn without_effect(rules: BTreeMap<i64, Vec<SeccompRule>>) -> Result<BpfProgram, seccompiler::BackendError> {
    let done = SeccompAction::Errno(0);
    SeccompFilter::new(rules, SeccompAction::Allow, done, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// Fixes the limit on core dumps of the calling thread and of its future child processes.
pub(crate) fn keep_core_limit() -> io::Result<()> {
    let filter = without_core_limits().map_err(io::Error::other)?;
    seccompiler::apply_filter(&filter).map_err(io::Error::other)
}

/// The kernel answers a call with an error, if one of these rules holds or there are none.
fn without(call: Sysno, rules: Vec<SeccompRule>, error: Errno) -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = BTreeMap::from([(i64::from(call.id()), rules)]);
    let answer = SeccompAction::Errno(error as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, answer, std::env::consts::ARCH.try_into()?)?.try_into()
}

fn allow_list() -> Result<BpfProgram, seccompiler::BackendError> {
    // The library cannot express the action needed here: ask the jail's first process. Another
    // action that no filter uses stands in for it.
    const STAND_IN: SeccompAction = SeccompAction::Log;
    let filter = SeccompFilter::new(rules()?, STAND_IN, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?;
    let mut program: BpfProgram = filter.try_into()?;
    let stand_in = u32::from(STAND_IN);
    for instruction in program.iter_mut().filter(|it| it.code == RETURN && it.k == stand_in) {
        instruction.k = libc::SECCOMP_RET_USER_NOTIF;
    }
    Ok(program)
}

/// Whether the kernel can let a process answer the system calls of another one.
pub(crate) fn is_supported() -> bool {
    let action: u32 = libc::SECCOMP_RET_USER_NOTIF;
    // SAFETY: the kernel reads four bytes at the address.
    #[expect(unsafe_code, reason = "no library has this call")]
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    result == 0
}

/// The end of the filter at which the first process answers system calls for the kernel.
pub(crate) struct Listener {
    descriptor: OwnedFd,
}

/// A call that came to the first process.
pub(crate) enum Call {
    /// The kernel makes it, or the thread that made it has ended.
    Admitted,
    /// The kernel makes it: a program listens.
    Listen,
    Refused(RefusedCall),
}

/// A call that was refused.
pub(crate) struct RefusedCall {
    /// Its name.
    pub call: String,
    /// Name of the program that made it.
    pub program: String,
    /// The thread that made it, as this process sees it.
    pub thread: u32,
    /// The thread's process has to be killed. Otherwise the call has failed.
    pub kill: bool,
}

impl Listener {
    /// Puts the filter on this process and all that it starts from here on. The process must have set `no_new_privs`.
    pub(crate) fn install(program: &[sock_filter]) -> io::Result<Self> {
        let length = program.len().try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
        // SAFETY: the kernel copies the program, whose length is an argument. Both types are
        // `struct sock_filter`. On success it returns a new descriptor.
        #[expect(unsafe_code, reason = "the library that compiles the filter does not return the descriptor")]
        let descriptor = unsafe {
            let result = libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                &raw const program,
            );
            let number = i32::try_from(result).ok().filter(|number| *number >= 0);
            OwnedFd::from_raw_fd(number.ok_or_else(io::Error::last_os_error)?)
        };
        rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)?;
        Ok(Self { descriptor })
    }

    /// Answers one call.
    pub(crate) fn answer(&self, locks: &mut RecordLocks) -> io::Result<Call> {
        let mut asked = MaybeUninit::<libc::seccomp_notif>::zeroed();
        if !self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, asked.as_mut_ptr())? {
            return Ok(Call::Admitted);
        }
        // SAFETY: all its bytes are set, and any are valid.
        #[expect(unsafe_code, reason = "see above")]
        let asked = unsafe { asked.assume_init() };
        let call = usize::try_from(asked.data.nr).ok().and_then(Sysno::new);
        let is_lock = arguments::is_lock(call, &asked.data.args);
        let listens = call == Some(Sysno::listen);
        if listens || is_lock && locks.admit() {
            // The kernel makes the call. If the thread has changed its arguments since, it is still a call of this kind.
            let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
            let mut answer = libc::seccomp_notif_resp { id: asked.id, val: 0, error: 0, flags };
            self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer)?;
            return Ok(if listens { Call::Listen } else { Call::Admitted });
        }
        let answered = ANSWERED.iter().find(|(answered, _)| Some(*answered) == call).map(|(_, error)| *error);
        let answered = arguments::error(call, &asked.data.args).or(answered);
        let answered = if is_lock { Some(Errno::ENOLCK) } else { answered };
        let kills = call.is_some_and(|call| KILLED.contains(&call));
        let error = if kills { None } else { Some(answered.unwrap_or(Errno::ENOSYS)) };
        // Before the answer: with it, the program may end.
        let program = fs::read_to_string(format!("/proc/{}/comm", asked.pid)).unwrap_or_default();
        let program = program.trim_end().to_owned();
        if let Some(error) = error {
            let mut answer = libc::seccomp_notif_resp { id: asked.id, val: 0, error: -(error as i32), flags: 0 };
            self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer)?;
        }
        // Calls without a name count as one kind, because there are billions of numbers.
        let name = call.map_or("of an unknown number", |call| call.name()).to_owned();
        Ok(Call::Refused(RefusedCall { call: name, program, thread: asked.pid, kill: error.is_none() }))
    }

    /// Returns false if the process that asked is gone.
    fn ioctl<T>(&self, request: libc::Ioctl, argument: *mut T) -> io::Result<bool> {
        // SAFETY: callers pass the structure that the request is for.
        #[expect(unsafe_code, reason = "no library has these requests")]
        let result = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), request, argument) };
        match (result, io::Error::last_os_error()) {
            (0, _) => Ok(true),
            (_, error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(false),
            (_, error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
