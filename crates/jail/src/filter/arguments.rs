//! The arguments that the filter allows. It does not judge arguments in memory, which a filter
//! cannot see.

use super::ALLOWED;
use nix::errno::Errno;
use seccompiler::{BackendError, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
use std::collections::BTreeMap;
use syscalls::Sysno;

/// The ID that every process of the jail sees for the jail's first process. The program must not
/// change its limits or its scheduling.
const FIRST: u64 = 1;
/// Requests to a terminal that inject input, that paste, or that load one of the kernel's line
/// disciplines.
const TERMINAL: [u64; 3] = [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSETD];
/// Reserves both threads of a core for the caller.
const PR_SCHED_CORE: u64 = 62;
/// Requests for record locks, which the jail's first process admits.
const LOCKS: [libc::c_int; 2] = [libc::F_SETLK, libc::F_SETLKW];
/// Requests for record locks of open files. The kernel shows them in all jails, so they cannot be
/// counted.
const FILE_LOCKS: [libc::c_int; 2] = [libc::F_OFD_SETLK, libc::F_OFD_SETLKW];
/// Options that attach a program of the Berkeley Packet Filter to a socket.
const SOCKET_FILTERS: [libc::c_int; 4] =
    [libc::SO_ATTACH_FILTER, libc::SO_ATTACH_BPF, libc::SO_ATTACH_REUSEPORT_CBPF, libc::SO_ATTACH_REUSEPORT_EBPF];
/// The bits of a socket's type. The rest are flags.
const KIND: u64 = 0xf;
/// `IOPRIO_WHO_PROCESS` and `IOPRIO_WHO_PGRP`.
const IO_PRIORITIES: [u64; 2] = [1, 2];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Condition = Result<SeccompCondition, BackendError>;

/// The calls, with conditions on their arguments, that reach the kernel.
pub(super) fn rules() -> Result<Rules, BackendError> {
    let mut rules: Rules = ALLOWED.iter().map(|call| (i64::from(call.id()), Vec::new())).collect();
    processes(&mut rules)?;
    sockets(&mut rules)?;
    let mut allow = |call, conditions| allow(&mut rules, call, conditions);
    // Allows the usual value, and the query of the present one.
    allow(Sysno::personality, vec![equals(0, 0)])?;
    allow(Sysno::personality, vec![equals(0, 0xffff_ffff)])?;
    allow(Sysno::ioctl, TERMINAL.map(|request| differs(1, request)).into())?;
    allow(Sysno::fcntl, LOCKS.iter().chain(&FILE_LOCKS).map(|request| differs(1, number(*request))).collect())?;
    filters(&mut rules)?;
    Ok(rules)
}

/// The kernel compiles filters of system calls and of sockets. All users of the machine share the
/// memory for that (`net.core.bpf_jit_limit`), and jails need some of it to start.
fn filters(rules: &mut Rules) -> Result<(), BackendError> {
    let mut allow = |call, conditions| allow(rules, call, conditions);
    allow(Sysno::prctl, [PR_SCHED_CORE, number(libc::PR_SET_SECCOMP)].map(|option| differs(0, option)).into())?;
    for question in [libc::SECCOMP_GET_ACTION_AVAIL, libc::SECCOMP_GET_NOTIF_SIZES] {
        allow(Sysno::seccomp, vec![equals(0, question.into())])?;
    }
    allow(Sysno::setsockopt, vec![differs(1, number(libc::SOL_SOCKET))])?;
    allow(Sysno::setsockopt, SOCKET_FILTERS.map(|option| differs(2, number(option))).into())
}

fn number(constant: libc::c_int) -> u64 {
    constant.unsigned_abs().into()
}

/// Whether a call is one for a record lock.
pub(super) fn is_lock(call: Option<Sysno>, arguments: &[u64]) -> bool {
    let request = arguments.get(1).map(|request| request & 0xffff_ffff);
    call == Some(Sysno::fcntl) && LOCKS.iter().any(|lock| Some(number(*lock)) == request)
}

/// Calls about processes and threads.
fn processes(rules: &mut Rules) -> Result<(), BackendError> {
    let namespaces = [
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWUTS,
    ];
    let namespaces = namespaces.iter().fold(0, |all, flag| all | flag);
    let no_namespace = argument(0, SeccompCmpOp::MaskedEq(u64::from(namespaces.unsigned_abs())), 0);
    let mut allow = |call, conditions| allow(rules, call, conditions);
    allow(Sysno::clone, vec![no_namespace])?;
    allow(Sysno::prlimit64, vec![differs(0, FIRST)])?;
    // The call only reads the limit.
    let nothing_new = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0);
    allow(Sysno::prlimit64, vec![nothing_new])?;
    for call in [Sysno::sched_setaffinity, Sysno::sched_setattr, Sysno::sched_setparam, Sysno::sched_setscheduler] {
        allow(call, vec![differs(0, FIRST)])?;
    }
    // Allows the priority of a process or of a process group. The priority of a user would include
    // the first process.
    let (process, group) = (u64::from(libc::PRIO_PROCESS), u64::from(libc::PRIO_PGRP));
    let priorities = [process, group].map(|which| (Sysno::setpriority, which));
    for (call, which) in priorities.into_iter().chain(IO_PRIORITIES.map(|which| (Sysno::ioprio_set, which))) {
        allow(call, vec![equals(0, which), differs(1, FIRST)])?;
    }
    Ok(())
}

/// Sockets: Unix, TCP, UDP, and the netlink socket with which the C library lists the interfaces.
fn sockets(rules: &mut Rules) -> Result<(), BackendError> {
    let mut allow = |call, conditions| allow(rules, call, conditions);
    let family = |family: libc::c_int| equals(0, u64::from(family.unsigned_abs()));
    for call in [Sysno::socket, Sysno::socketpair] {
        allow(call, vec![family(libc::AF_UNIX), equals(2, 0)])?;
    }
    for internet in [libc::AF_INET, libc::AF_INET6] {
        for (kind, protocol) in [(libc::SOCK_STREAM, libc::IPPROTO_TCP), (libc::SOCK_DGRAM, libc::IPPROTO_UDP)] {
            for protocol in [0, protocol.unsigned_abs()] {
                let kind = argument(1, SeccompCmpOp::MaskedEq(KIND), u64::from(kind.unsigned_abs()));
                allow(Sysno::socket, vec![family(internet), kind, equals(2, u64::from(protocol))])?;
            }
        }
    }
    let route = u64::from(libc::NETLINK_ROUTE.unsigned_abs());
    allow(Sysno::socket, vec![family(libc::AF_NETLINK), equals(2, route)])
}

/// The error for a call that is refused because of its arguments, if it differs from the one in the
/// list. The kernel reads 32 bits of each argument.
pub(super) fn error(call: Option<Sysno>, arguments: &[u64]) -> Option<Errno> {
    let first = arguments.first().map(|first| first & 0xffff_ffff);
    // The answer of a kernel without these filters.
    if call == Some(Sysno::prctl) && first == Some(number(libc::PR_SET_SECCOMP)) {
        return Some(Errno::EINVAL);
    }
    let families: &[libc::c_int] = match call {
        Some(Sysno::socket) => &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6],
        Some(Sysno::socketpair) => &[libc::AF_UNIX],
        _ => &[],
    };
    if families.iter().all(|known| Some(number(*known)) != first) {
        return None;
    }
    // The kernel's answer to a process without rights.
    let raw = arguments.get(1).map(|kind| kind & KIND) == Some(u64::from(libc::SOCK_RAW.unsigned_abs()));
    Some(if raw { Errno::EPERM } else { Errno::EPROTONOSUPPORT })
}

/// Allows a call whose arguments meet all of these conditions.
fn allow(rules: &mut Rules, call: Sysno, conditions: Vec<Condition>) -> Result<(), BackendError> {
    let conditions = conditions.into_iter().collect::<Result<_, _>>()?;
    rules.entry(call.id().into()).or_default().push(SeccompRule::new(conditions)?);
    Ok(())
}

fn equals(index: u8, value: u64) -> Condition {
    argument(index, SeccompCmpOp::Eq, value)
}

fn differs(index: u8, value: u64) -> Condition {
    argument(index, SeccompCmpOp::Ne, value)
}

fn argument(index: u8, operator: SeccompCmpOp, value: u64) -> Condition {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)
}
