//! Kernel resources that jails share, and the limits of each jail on them.

use super::*;

#[tokio::test]
async fn a_lock_on_a_file_of_the_machine_is_the_jails_own() {
    let jails = open(2).await;
    let files =
        "files = [os.open(name, os.O_RDONLY) for name in ('/usr', '/usr/bin', '/usr/bin/env', '/etc/ld.so.cache')]";
    let locks = format!(
        "import fcntl, os\n{files}\nfor file in files: fcntl.flock(file, fcntl.LOCK_EX)\nfor file in files[2:]: fcntl.lockf(file, fcntl.LOCK_SH)"
    );
    let _holder = holding(&jails, &locks).await;
    let script = format!(
        "import fcntl\n{files}\nfor file in files: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\nprint('locked')"
    );
    let (_jail, text) = python(&jails, &script).await;
    assert_eq!(text, "locked\n");
    // Nor does the machine feel it.
    for file in ["/usr", "/usr/bin/env"] {
        File::open(file).unwrap().try_lock().unwrap();
    }
    File::options().read(true).open("/etc/ld.so.cache").unwrap().try_lock().unwrap();
}

#[tokio::test]
async fn a_jail_does_not_see_which_files_of_the_machine_others_open() {
    let jails = open(2).await;
    let watch = "import ctypes, os, socket
libc = ctypes.CDLL(None)
watcher = libc.inotify_init1(os.O_NONBLOCK)
for name in (b'/usr/bin/env', b'/usr/bin', b'/etc/ld.so.cache'): assert libc.inotify_add_watch(watcher, name, 0x3f) > 0
open('/usr/bin/true', 'rb').close()
print(len(os.read(watcher, 1 << 16)) > 0)
server = socket.create_server(('127.0.0.1', 4001))
print('ready', flush=True)
server.accept()
try: print('saw', os.read(watcher, 1 << 16))
except BlockingIOError: print('saw nothing')";
    let mut jail = jails.take().await.unwrap();
    let argv = ["/usr/bin/python3", "-c", watch].map(str::to_owned).to_vec();
    let mut output = run(&mut jail, Program { argv, ..program("") }).await.unwrap();
    let mut begin = [0; 11];
    output.read_exact(&mut begin).unwrap();
    assert_eq!(begin, *b"True\nready\n", "it sees what it opens itself");
    // Another jail, and the machine.
    let (_other, text) = shell(&jails, "/usr/bin/env true && ls /usr/bin >/dev/null && echo done").await;
    assert_eq!(all(text).await, "done\n");
    fs::read("/usr/bin/env").unwrap();
    fs::read_dir("/usr/bin").unwrap().for_each(drop);
    jail.dialer().connect(4001).await.unwrap();
    assert_eq!(all(output).await, "saw nothing\n");
}

#[tokio::test]
async fn what_the_kernel_counts_for_a_user_it_counts_for_each_jail() {
    let jails = open(2).await;
    if !jails.have_accounts() {
        return eprintln!("SKIPPED: only where the node is root has each jail a user of its own");
    }
    let all_instances = "import ctypes
libc = ctypes.CDLL(None)
made = 0
while libc.inotify_init1(0) >= 0: made += 1
assert 0 < made <= 128, made";
    let _greedy = holding(&jails, all_instances).await;
    let _another = holding(&jails, all_instances).await;
    let script =
        "print(libc.inotify_init1(0) >= 0, open('/proc/sys/user/max_inotify_watches').read().strip(), call(294, 0))";
    let (_jail, text) = python(&jails, script).await;
    assert_eq!(text, "True 16384 ok\n");
    // Root's own.
    let outside =
        Command::new("python3").args(["-c", "import ctypes; print(ctypes.CDLL(None).inotify_init1(0) >= 0)"]).output();
    assert_eq!(outside.unwrap().stdout, b"True\n");
}

#[tokio::test]
async fn record_locks_are_bounded_and_those_of_open_files_are_refused() {
    let jails = open(2).await;
    let locks = "
import fcntl
files = [os.open(f'/tmp/{number}', os.O_RDWR | os.O_CREAT) for number in range(40)]
made, refused = 0, None
for file in files:
    for place in range(600):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * place)
            made += 1
        except OSError as error: refused = error.errno
print(made, errno.errorcode.get(refused), flush=True)
try: fcntl.fcntl(files[0], 37, bytes(32))
except OSError as error: print(errno.errorcode[error.errno])
fcntl.flock(files[0], fcntl.LOCK_EX)
for file in files: os.close(file)
time.sleep(0.2)
fcntl.lockf(os.open('/tmp/0', os.O_RDWR), fcntl.LOCK_EX)
print('again')";
    let (_jail, text) = python(&jails, locks).await;
    let (made, rest) = text.split_once(' ').unwrap();
    assert_eq!(rest, "ENOLCK\nEINVAL\nagain\n", "{text}");
    assert!((15_000..=16_384).contains(&made.parse::<usize>().unwrap()), "{text}");
    let few = "
import fcntl
file = os.open('/tmp/x', os.O_RDWR | os.O_CREAT)
for _ in range(20_000): fcntl.lockf(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_UN)
print('done')";
    let (_jail, text) = python(&jails, few).await;
    assert_eq!(text, "done\n", "calls are not bounded, only locks");
}

#[tokio::test]
async fn programs_take_none_of_the_memory_that_the_kernel_has_for_filters() {
    let jails = open(1).await;
    let script = "
import struct
program = struct.pack('HBBI', 6, 0, 0, 0x7fff0000)
buffer = ctypes.create_string_buffer(program)
filter = struct.pack('HxxxxxxQ', 1, ctypes.addressof(buffer))
kept = ctypes.create_string_buffer(filter)
print(call(317, 1, 0, kept), call(317, 2, 0, ctypes.byref(ctypes.c_uint32(0x7fff0000))), call(157, 22, 2, kept))
for kind in (socket.socketpair()[0], socket.socket(), socket.socket(type=socket.SOCK_DGRAM)):
    for option in (26, 50, 51, 52):
        try: kind.setsockopt(socket.SOL_SOCKET, option, filter); print('attached')
        except OSError as error: assert error.errno == errno.ENOPROTOOPT, error
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
print('refused')";
    let (_jail, text) = python(&jails, script).await;
    assert_eq!(text, "EINVAL ok EINVAL\nrefused\n");
}

#[tokio::test]
async fn what_the_kernel_has_for_all_a_jail_has_in_part() {
    let jails = open(1).await;
    let script = "
def until(make, most):
    for number in range(most):
        try:
            if make(number) is False: return number
        except OSError as error: return number
    return most
limits = [line.split()[-3:-1] for line in open('/proc/self/limits') if line.startswith(('Max locked', 'Max msgqueue'))]
print(limits)
for folder in ('/tmp', '/dev/shm'):
    files = until(lambda number: os.close(os.open(f'{folder}/{number}', os.O_CREAT | os.O_RDWR)), 20_000)
    links = until(lambda number: os.link(f'{folder}/0', f'{folder}/l{number}'), 20_000)
    print(folder, files < 16_384, links < 10)
print(until(lambda number: os.open('/run/x', os.O_CREAT | os.O_RDWR), 1), os.path.exists('/dev/ptmx'), os.path.exists('/dev/pts'))
calls = {'add_key': 248, 'request_key': 249, 'keyctl': 250, 'fanotify_init': 300, 'userfaultfd': 323, 'perf_event_open': 298, 'bpf': 321,
         'io_uring_setup': 425, 'io_setup': 206, 'unshare': 272, 'memfd_secret': 447}
print([name for name, number in calls.items() if call(number, 0, 0, 0, 0, 0) == 'ok'])";
    let (_jail, text) = python(&jails, script).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "[['8388608', '8388608'], ['819200', '819200']]", "{text}");
    assert_eq!(lines[1..], ["/tmp True True", "/dev/shm True True", "0 False False", "[]"], "{text}");
}

#[tokio::test]
async fn a_program_has_as_many_processes_as_it_may_and_no_default_is_all() {
    let jails = open(2).await;
    let script = "
made = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        made += 1
except RuntimeError: pass
print(made, resource.getrlimit(resource.RLIMIT_NPROC), flush=True)
os._exit(0)";
    let (_jail, text) = python(&jails, script).await;
    // The first process and the program itself are among them.
    assert_eq!(text, "1022 (1024, 1024)\n");
    let mut jail = jails.take().await.unwrap();
    let task = Program { processes: Some(3), ..program("sleep 9 & sleep 9 & sleep 9 & echo done") };
    let output = run(&mut jail, task).await.unwrap();
    assert!(all(output).await.contains("fork"), "the third one is refused");
}

#[tokio::test]
async fn a_program_does_not_limit_the_jails_first_process() {
    let jails = open(1).await;
    let script = "
struct = (ctypes.c_uint64 * 2)(0, 0)
attributes = (ctypes.c_uint32 * 12)(48, 3)
zero = ctypes.c_int(0)
print(*[call(302, 1, number, struct, 0) for number in range(0, 16)])
print('read', call(302, 1, 7, 0, struct), call(302, 1 | 1 << 32, 7, struct, 0))
print('policy', call(144, 1, 3, ctypes.byref(zero)), call(142, 1, ctypes.byref(zero)), call(314, 1, attributes, 0))
print('cores', call(203, 1, 8, (ctypes.c_ulong * 1)(1)))
print('nice', call(141, 0, 1, 19), call(141, 1, 1, 19), call(141, 2, 0, 19), call(141, 2, 1000, 19))
print('input', call(251, 1, 1, 3 << 13), call(251, 2, 1, 3 << 13), call(251, 3, 1000, 3 << 13), call(251, 3, 0, 3 << 13))
print('join', call(109, 0, 1), os.getpgid(1) != os.getpgid(0), os.getsid(1) != os.getsid(0))
for signal in (9, 19, 15, 11, 34):
    os.kill(1, signal)
print('core', call(157, 62, 1, 1, 2, 0))
def writes(file, text):
    try:
        with open(file, 'w') as file: file.write(text)
        return 'ok'
    except OSError as error:
        return errno.errorcode[error.errno]
print('proc', *[writes('/proc/1/' + name, text) for name, text in (('oom_score_adj', '1000'), ('coredump_filter', '0'), ('autogroup', '19'), ('timerslack_ns', '1'))])
# Its own it may, and its children's.
child = os.fork()
if not child: time.sleep(60)
print('own', call(302, 0, 7, (ctypes.c_uint64 * 2)(64, 64), 0), call(302, child, 7, (ctypes.c_uint64 * 2)(64, 64), 0), call(141, 0, child, 19), call(141, 1, 0, 19), call(251, 1, 0, 3 << 13), call(203, 0, 8, (ctypes.c_ulong * 1)(1)))
os.kill(child, 9)
";
    let (jail, text) = python(&jails, script).await;
    let lines: Vec<&str> = text.lines().collect();
    let mut limits = vec!["EPERM"; 16];
    // The limit on core dumps: it seems to be set.
    limits[4] = "ok";
    let expected = [
        &limits.join(" "),
        "read ok EPERM",
        "policy EPERM EPERM EPERM",
        "cores EPERM",
        "nice EPERM EPERM EPERM EPERM",
        "input EPERM EPERM EPERM EPERM",
        "join EPERM True True",
        "core EPERM",
        "proc EACCES EACCES EACCES EPERM",
        "own ok ok ok ok ok ok",
    ];
    assert_eq!(lines, expected);
    jail.end().await;
}
