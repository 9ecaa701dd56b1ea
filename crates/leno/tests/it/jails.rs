//! Jails: which calls work in them, and which attempts to bypass the mesh fail. Each attempt is
//! also made without a jail, where it succeeds: so a test fails when its countermeasure is removed.

mod bypass;
mod host_paths;
mod ports;
mod programs;
mod servers;
mod volumes;

use leno_testkit::eventually;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, intruder, policy, public_folder};
use leno_testkit::process::{children, is_running};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The isolation setting of the Mesh document. With and without jails, instances run under the
/// account of the node.
fn instances(isolation: &str) -> String {
    format!("  instances: {{isolation: {isolation}, accounts: node}}\n")
}

const EXPOSE: &str = "  expose: [{hosts: [\"*\"], path: /}]";

fn intruder_function(callees: &str) -> String {
    let function = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: intruder, namespace: test}}\nspec:\n  command: [\"{}\"]\n  \
         callees: [{callees}]\n  workingDirectory: public\n{EXPOSE}\n",
        intruder().display()
    );
    function + &policy("lets-in", "intruder", ALLOW_ALL)
}

/// An intruder, and a victim that admits no callers.
fn neighbours() -> String {
    let victim = echo_function(
        "victim",
        "  callees: []\n  scale: {min: 1}\n  env: {TOKEN: swordfish}\n  workingDirectory: public",
    );
    let friend = echo_function("friend", "  callees: []\n  workingDirectory: public");
    intruder_function("friend")
        + &victim
        + &friend
        + &policy(
            "friendly",
            "friend",
            "  sidecar: {deadline: 100ms}\n  authorization: {rules: [{name: intruder, action: allow, from: [{identities: [test/intruder]}]}]}",
        )
}

fn start(isolation: &str, documents: &str) -> Mesh {
    let leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    Mesh::start_with_command(leno, &instances(isolation), documents, public_folder)
}

/// Makes the intruder try something. Returns the outcome.
fn attempt(mesh: &Mesh, way: &str, arguments: &[&str]) -> String {
    let escaped: Vec<String> = arguments.iter().map(|argument| argument.replace('/', "~")).collect();
    let answer = mesh.get(&format!("/{way}/{}", escaped.join("/")));
    assert_eq!(answer.status, 200, "{way}: {answer:?}");
    answer.body.trim_end().to_owned()
}

#[test]
fn every_namespace_is_the_jails_own_and_so_is_the_account() {
    let mesh = start("strict", &neighbours());
    for kind in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
        let ours = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        let theirs = attempt(&mesh, "link", &[&format!("/proc/self/ns/{kind}")]);
        assert!(theirs.starts_with(&format!("done: {kind}:[")), "{theirs}");
        assert_ne!(theirs, format!("done: {}", ours.display()));
    }
    assert_eq!(groups_inside(&mesh), "/");
    let identity = attempt(&mesh, "whoami", &[]);
    assert!(identity.starts_with("done: 1000 test-intruder"), "{identity}");
    assert!(attempt(&mesh, "write", &["/usr/bin/leno-test"]).starts_with("refused: Read-only"));
    let processes = attempt(&mesh, "list", &["/proc"]);
    let numbers: Vec<&str> = processes.split(' ').filter(|name| name.parse::<u32>().is_ok()).collect();
    assert!((1..=5).contains(&numbers.len()), "its own processes only: {numbers:?}");
    if rustix::process::geteuid().is_root() {
        let instances = [mesh.instances("test/intruder"), mesh.instances("test/victim")].concat();
        let accounts: Vec<String> = instances.iter().map(|row| account(row["pid"].as_u64().unwrap())).collect();
        assert!(accounts.len() == 2 && accounts[0] != accounts[1], "{accounts:?}");
        assert!(!accounts.contains(&"0".to_owned()), "{accounts:?}");
    }
}

/// The control groups of the intruder, as it sees them, without duplicates.
fn groups_inside(mesh: &Mesh) -> String {
    let read = attempt(mesh, "read", &["/proc/self/cgroup"]);
    let groups: BTreeSet<&str> = read.lines().filter_map(|line| line.rsplit(':').next()).collect();
    groups.into_iter().collect::<Vec<_>>().join(" ")
}

/// The account of a process, as the machine sees it.
fn account(pid: u64) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:\t")).unwrap();
    line.split('\t').nth(1).unwrap().to_owned()
}

#[test]
fn a_refused_system_call_is_told_by_name() {
    let mut mesh = start("strict", &neighbours());
    assert_eq!(attempt(&mesh, "trace", &["1"]), "killed");
    mesh.wait_for("the log", |mesh| {
        let told = |line: &String| line.contains("`intruder` made the system call ptrace") && line.contains("killed");
        mesh.output().iter().any(told)
    });
}

#[test]
fn refused_attempts_are_told_at_the_request_during_which_they_happened() {
    let mesh = start("strict", &neighbours());
    for (path, attempt, kind) in [
        ("/resolve/victim", "look-up of victim after ", "name"),
        ("/call/victim", "look-up of victim after ", "name"),
        ("/connect/192.0.2.1:80", "connection to 192.0.2.1:80 after ", "connection"),
    ] {
        let answer = mesh.get(path);
        assert!(answer.status == 200 && answer.body.starts_with("refused"), "{answer:?}");
        let id = answer.header("x-request-id").unwrap();
        // The kernel's refusals are reported a moment later.
        let told = eventually(attempt, || Some(mesh.explain(id)).filter(|told| told.contains(attempt)));
        let fix = "fix: if test/intruder may call ";
        assert!(told.contains("[test/intruder/callees]") && told.contains(fix), "{told}");
        assert!(told.contains("allowed by") && !told.contains("it may belong to another"), "{told}");
        let hops = mesh.leno(&["explain", id, "-o", "json"]).stdout;
        let hops: Vec<Value> = serde_json::from_slice(&hops).unwrap();
        let refusals: Vec<&Value> = hops.iter().filter_map(|hop| hop["refusals"].as_array()).flatten().collect();
        let [refusal] = refusals[..] else { panic!("{hops:?}") };
        assert_eq!((&refusal["kind"], &refusal["among"]), (&kind.into(), &1.into()), "{refusal}");
        let observed = mesh.leno(&["observe", "--last", "100", "--kind", kind]).stdout;
        assert!(String::from_utf8(observed).unwrap().contains(&format!("id={id}")), "{id}");
    }
    let answer = mesh.get("/call/friend");
    assert_eq!(answer.status, 200);
    assert!(!mesh.explain(answer.header("x-request-id").unwrap()).contains("refused"));
}

#[test]
fn a_jail_gets_no_more_than_its_share() {
    let greedy = "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: greedy, namespace: test}\nspec:\n  \
                  command: [dd, if=/dev/zero, of=/dev/null, bs=256M, count=1]\n  callees: []\n  resources: {memory: 64Mi}\n  \
                  workingDirectory: public\n  expose: [{hosts: [greedy.example], path: /}]\n";
    let documents = limited_intruder() + greedy + &policy("greedy-in", "greedy", ALLOW_ALL);
    let mut mesh = start("strict", &documents);
    assert!(attempt(&mesh, "whoami", &[]).starts_with("done"));
    let functions = mesh.admin("/functions").json();
    let intruder = functions.as_array().unwrap().iter().find(|row| row["function"] == "test/intruder").unwrap();
    if let Some(reason) = intruder["unenforced_limits"].as_str() {
        eprintln!("SKIPPED: this machine enforces no limits: {reason}");
        mesh.line("its limits are not enforced");
        return;
    }
    assert!(attempt(&mesh, "allocate", &["16"]).starts_with("done"));
    assert!(attempt(&mesh, "multiply", &["4"]).starts_with("done"));
    assert!(attempt(&mesh, "multiply", &["100"]).starts_with("refused"));
    assert_eq!(groups_inside(&mesh), "/", "however many groups it is in");
    let pid = mesh.instances("test/intruder")[0]["pid"].as_u64().unwrap();
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    // A controller has a separate hierarchy (cgroup v1), or shares the unified one (v2).
    let group = |controller: &str| {
        let has_it =
            |line: &&str| line.split(':').nth(1).is_some_and(|list| list.split(',').any(|it| it == controller));
        let line = groups.lines().find(has_it).or_else(|| groups.lines().last()).unwrap();
        line.splitn(3, ':').nth(2).unwrap()
    };
    assert!(group("cpu").contains("/leno-node-"), "{groups}");
    let is_legacy = groups.contains(":memory:");
    let (file, swap) = match is_legacy {
        true => (format!("/sys/fs/cgroup/memory{}/memory.memsw.limit_in_bytes", group("memory")), "67108864"),
        false => (format!("/sys/fs/cgroup{}/memory.swap.max", group("memory")), "0"),
    };
    match fs::read_to_string(&file) {
        Ok(limit) => assert_eq!(limit.trim(), swap, "no memory but that of the limit"),
        Err(error) => eprintln!("SKIPPED: the limit on swap: {file}: {error}"),
    }

    let out_of_memory = "signal: 9 (SIGKILL): out of memory, the limit is 64Mi";
    assert_eq!(mesh.curl("/", &["--header", "host: greedy.example"]).status, 503);
    let told = |mesh: &mut Mesh, function: &str, what: &str| {
        let holds = |line: &String| line.contains(function) && line.contains(what);
        mesh.wait_for(what, |mesh| mesh.output().iter().any(holds));
    };
    told(&mut mesh, "test/greedy", out_of_memory);
    // With cgroup v1, the kernel kills the process that exceeds the limit. With v2, it kills the
    // whole instance, and the node starts another.
    if is_legacy {
        assert_eq!(attempt(&mesh, "allocate", &["256"]), "killed");
    } else {
        let answer = mesh.get("/allocate/256");
        assert!(matches!(answer.status, 502 | 503), "{answer:?}");
        told(&mut mesh, "test/intruder", &format!("the instance ended by itself: {out_of_memory}"));
        mesh.wait_for("another one", |mesh| mesh.get("/whoami").status == 200);
    }
}

fn limited_intruder() -> String {
    intruder_function("").replace("  callees: []", "  callees: []\n  resources: {memory: 64Mi, cpu: 0.5, pids: 24}")
}

/// The folder of this process's control group (v2).
fn control_group() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount).join(group))
}

#[test]
fn a_graceful_end_leaves_no_control_group() {
    let parent = control_group().map(|group| group.join(format!("leno-test-{}", std::process::id())));
    let Some(parent) = parent.filter(|parent| fs::create_dir(parent).is_ok()) else {
        eprintln!("SKIPPED: no control group (v2) can be made here");
        return;
    };
    let groups = || {
        let entries = fs::read_dir(&parent).unwrap().flatten().filter(|entry| entry.path().is_dir());
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo 0 > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&parent).arg(env!("CARGO_BIN_EXE_leno"));
    // The limit makes the node enable the controllers of its group, if that has any.
    let controllers = fs::read_to_string(parent.join("cgroup.controllers")).unwrap();
    let documents = if controllers.contains("memory") { limited_intruder() } else { intruder_function("") };
    let mut mesh = Mesh::start_with_command(shell, &instances("strict"), &documents, public_folder);
    assert!(attempt(&mesh, "whoami", &[]).starts_with("done"));
    assert!(matches!(&groups()[..], [node] if node.starts_with("leno-node-")), "{:?}", groups());
    mesh.terminate();
    assert!(mesh.wait().success());
    assert_eq!(groups(), [""; 0]);
    fs::remove_dir(parent).unwrap();
}

#[test]
fn what_a_jail_refuses_is_observed_and_filtered() {
    let mut mesh = start("strict", &neighbours());
    assert_eq!(attempt(&mesh, "trace", &["1"]), "killed");
    assert!(attempt(&mesh, "resolve", &["c2VjcmV0.tunnel.example"]).starts_with("refused"));
    assert!(attempt(&mesh, "http", &["friend:80", "victim:80"]).starts_with("done: HTTP/1.1 403"));
    let observe = |mesh: &mut Mesh, filter: &[&str], count: usize| {
        let mut rows: Vec<serde_json::Value> = Vec::new();
        mesh.wait_for("flows", |mesh| {
            let output = mesh.leno(&[&["observe", "--json", "--last", "1000"], filter].concat());
            assert!(output.status.success(), "{output:?}");
            let text = String::from_utf8(output.stdout).unwrap();
            rows = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            rows.len() >= count
        });
        rows
    };
    let calls = observe(&mut mesh, &["--kind", "system-call"], 1);
    assert_eq!((&calls[0]["what"], &calls[0]["verdict"]), (&"ptrace".into(), &"deny".into()), "{calls:?}");
    let names = observe(&mut mesh, &["--kind", "name", "--function", "test/intruder"], 1);
    assert_eq!(names[0]["host"], "c2VjcmV0.tunnel.example");
    let denied =
        observe(&mut mesh, &["--kind", "outbound", "--verdict", "deny", "--port", "80", "--function", "intruder"], 1);
    assert_eq!(
        (denied.len(), &denied[0]["source"]),
        (1, &"spiffe://test.example/ns/test/sa/intruder".into()),
        "{denied:?}"
    );
    assert!(denied[0]["reason"].as_str().unwrap().contains("may be called"), "{denied:?}");
    assert!(attempt(&mesh, "http", &["192.0.2.1:80", "friend"]).starts_with("refused"));
    let connections = observe(&mut mesh, &["--kind", "connection"], 1);
    assert_eq!(connections[0]["host"], "192.0.2.1:80", "{connections:?}");
    let allowed = observe(&mut mesh, &["--verdict", "allow", "--rule", "everything", "--path", "/trace/*"], 1);
    assert_eq!(allowed[0]["target"], "test/intruder");
    assert!(observe(&mut mesh, &["--function", "nobody"], 0).is_empty());
    let last = mesh.leno(&["observe", "--last", "1"]);
    assert_eq!(String::from_utf8(last.stdout).unwrap().lines().count(), 1);
}

#[test]
fn nothing_of_a_jail_outlives_its_node() {
    let mut mesh = start("strict", &neighbours());
    mesh.wait_for("the victim", |mesh| !mesh.instances("test/victim").is_empty());
    assert!(attempt(&mesh, "whoami", &[]).starts_with("done"));
    let rows = [mesh.instances("test/intruder"), mesh.instances("test/victim")].concat();
    let first: Vec<u32> = rows.iter().map(|row| row["pid"].as_u64().unwrap() as u32).collect();
    let mut all = first.clone();
    all.extend(first.iter().flat_map(|pid| children(*pid)));
    assert!(all.len() >= 4, "a first process and a program in each: {all:?}");
    mesh.kill();
    let begin = std::time::Instant::now();
    while all.iter().any(|pid| is_running(*pid)) {
        assert!(begin.elapsed().as_secs() < 30, "left: {all:?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_program_in_a_jail_serves_calls_and_ends_as_elsewhere() {
    let caller = echo_function(
        "caller",
        &format!(
            "  callees: [callee]\n{EXPOSE}\n  workingDirectory: public\n  secrets: [{{name: key, from: secret, as: file}}]"
        ),
    );
    let callee = echo_function("callee", "  callees: []\n  workingDirectory: public\n  readiness: {http: /healthz}");
    let only_caller = "  sidecar: {deadline: 100ms}\n  authorization: {rules: [{name: caller, action: allow, from: [{identities: [test/caller]}], to: [{paths: [/ok]}]}]}";
    let documents =
        caller + &callee + &policy("in", "caller", ALLOW_ALL) + &policy("caller-only", "callee", only_caller);
    let mut mesh = start("strict", &documents);
    assert_eq!(mesh.get("/call/callee/ok").status, 200);
    assert_eq!(mesh.get("/call/callee/forbidden").status, 403, "the callee's policy");
    assert_eq!(mesh.get("/call/stranger/ok").status, 502, "the name does not exist for the caller");
    let environment = mesh.get("/environment").json()["environment"].clone();
    assert!(environment.get("HTTP_PROXY").is_none(), "no credential to steal: {environment}");
    assert_eq!(environment["LENO_SECRETS"], "/run/secrets");

    let before = mesh.instances("test/callee");
    assert_eq!(before.len(), 1);
    let line = mesh.log_lines("target", "test/callee", 1).pop().unwrap();
    assert_eq!(line["source"].as_str(), Some("spiffe://test.example/ns/test/sa/caller"), "{line}");
    mesh.terminate();
    assert!(mesh.wait().success());
    assert!(!is_running(before[0]["pid"].as_u64().unwrap() as u32));
    assert!(!mesh.output().iter().any(|line| line.contains("panicked")), "{:?}", mesh.output());
}

#[test]
fn jails_may_have_the_same_port_and_get_their_own_requests() {
    let function = |name: &str| {
        echo_function(
            name,
            &format!(
                "  callees: []\n  port: 18080\n  workingDirectory: public\n  expose: [{{hosts: [{name}.example], path: /}}]"
            ),
        ) + &policy(&format!("{name}-in"), name, ALLOW_ALL)
    };
    let mesh = start("strict", &(function("one") + &function("other")));
    // On connections that the node keeps and reuses for the next client.
    for _ in 0..20 {
        for name in ["one", "other"] {
            let answer = mesh.curl("/", &["--header", &format!("host: {name}.example")]).json();
            assert_eq!(answer["environment"]["LENO_FUNCTION"], format!("test/{name}"));
        }
    }
    let addresses = ["one", "other"].map(|name| mesh.instances(&format!("test/{name}"))[0]["address"].clone());
    assert_ne!(addresses[0], addresses[1]);
}

#[test]
fn what_cannot_be_run_or_shown_is_said() {
    let function = |name: &str, spec: &str| {
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test}}\nspec:\n{spec}  callees: []\n  \
             expose: [{{hosts: [{name}.example], path: /}}]\n"
        ) + &policy(&format!("{name}-in"), name, ALLOW_ALL)
    };
    let documents = function("absent", "  command: [no-such-program]\n")
        + &function("hidden", "  command: [/bin/true]\n  readOnlyPaths: [/etc/shadow]\n")
        + &function("gone", "  command: [/bin/true]\n  readOnlyPaths: [no-such-file]\n")
        + &function("exits", "  command: [/bin/sh, -c, \"exit 7\"]\n  workingDirectory: public\n");
    let mut mesh = start("strict", &documents);
    let expected = [
        ("absent", "`no-such-program` is in no folder of PATH"),
        ("hidden", "a jail cannot show /etc/shadow: a jail has a folder of its own there"),
        ("gone", "no-such-file: No such file or directory"),
        ("exits", "exit status: 7"),
    ];
    for (name, reason) in expected {
        let answer = mesh.curl("/", &["--header", &format!("host: {name}.example")]);
        assert_eq!(answer.status, 503, "{name}: {answer:?}");
        mesh.wait_for(reason, |mesh| mesh.output().iter().any(|line| line.contains(reason)));
    }
}

#[test]
fn links_and_closed_folders_lead_to_nothing_of_the_machine() {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = |name: &str| place.path().join(name);
    std::os::unix::fs::symlink("/", path("all")).unwrap();
    std::os::unix::fs::symlink("/proc", path("processes")).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", path("users")).unwrap();
    fs::create_dir_all(path("home/open")).unwrap();
    fs::write(path("home/open/note"), "private").unwrap();
    fs::set_permissions(path("home"), fs::Permissions::from_mode(0o700)).unwrap();
    let own = "folder of its own there";
    let shown = |name: &str| format!("  readOnlyPaths: [\"{}\"]\n", path(name).display());
    let mut cases = vec![
        ("all", shown("all"), "that is all of the machine"),
        ("processes", shown("processes"), own),
        ("through", shown("all/proc"), own),
        ("users", shown("users"), own),
        ("sockets", "  readOnlyPaths: [/var/run]\n".to_owned(), own),
        ("starts", format!("  workingDirectory: \"{}\"\n", path("all").display()), "that is all of the machine"),
    ];
    // Without root, jails use the account of the node, which owns that folder.
    if rustix::process::geteuid().is_root() {
        cases.push(("home", shown("home"), "a jail shows what its own account may read"));
        cases.push(("inner", shown("home/open"), "a jail shows what its own account may read"));
        cases.push(("note", shown("home/open/note"), "a jail shows what its own account may read"));
    }
    let function = |name: &str, spec: &str| {
        let expose = format!("{spec}  callees: []\n  expose: [{{hosts: [{name}.example], path: /}}]");
        echo_function(name, &expose) + &policy(&format!("{name}-in"), name, ALLOW_ALL)
    };
    let documents: String = cases.iter().map(|(name, spec, _)| function(name, spec)).collect();
    let mut mesh = start("strict", &documents);
    for (name, _, reason) in &cases {
        let answer = mesh.curl("/", &["--header", &format!("host: {name}.example")]);
        assert_eq!(answer.status, 503, "{name}: {answer:?}");
        let said = |line: &String| line.contains(&format!("test/{name}")) && line.contains(reason);
        mesh.wait_for(name, |mesh| mesh.output().iter().any(said));
    }
}

#[test]
fn where_there_are_no_jails_it_is_said_and_strict_is_refused() {
    let strict = intruder_function("").replace("  callees: []", "  callees: []\n  isolation: strict");
    let any =
        echo_function("any", "  callees: []\n  expose: [{hosts: [any.example], path: /}]\n  workingDirectory: public");
    let documents = strict + &any + &policy("any-in", "any", ALLOW_ALL);
    // A user namespace in which no others can be made.
    let mut unshare = Command::new("unshare");
    let none = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
    unshare.args(["--user", "--map-root-user", "sh", "-c", none, env!("CARGO_BIN_EXE_leno")]);
    let mut mesh = Mesh::start_with_command(unshare, &instances("auto"), &documents, public_folder);
    mesh.line("instances are not in jails: namespaces:");
    assert_eq!(mesh.curl("/", &["--header", "host: any.example"]).status, 200);
    assert_eq!(mesh.instances("test/any")[0]["isolation"], "process");
    assert_eq!(mesh.get("/whoami").status, 503);
    let reason = "`isolation: strict` cannot be had on this node: namespaces:";
    mesh.wait_for(reason, |mesh| mesh.output().iter().any(|line| line.contains(reason)));
}

#[test]
fn jails_need_no_root() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: all other tests show it where they do not run as root");
        return;
    }
    let programs = tempfile::tempdir().unwrap();
    fs::set_permissions(programs.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = |from: &Path| {
        let to = programs.path().join(from.file_name().unwrap());
        fs::copy(from, &to).unwrap();
        to
    };
    let (leno, program) = (copy(Path::new(env!("CARGO_BIN_EXE_leno"))), copy(&intruder()));
    let documents = intruder_function("").replace(&intruder().display().to_string(), &program.display().to_string());
    // A node of another account left this group. It is empty, and this node cannot remove it.
    let left = control_group().map(|group| group.join(format!("leno-node-of-root-{}", std::process::id())));
    let is_left = left.as_ref().is_some_and(|left| fs::create_dir_all(left.join("main")).is_ok());
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(leno);
    let mesh = Mesh::start_with_command(nobody, &instances("strict"), &documents, |folder| {
        public_folder(folder);
        let status = Command::new("chown").args(["-R", "65534:65534"]).arg(folder).status().unwrap();
        assert!(status.success());
    });
    assert!(!mesh.output().iter().any(|line| line.contains("left processes behind")), "{:?}", mesh.output());
    if let Some(left) = left.filter(|_| is_left) {
        // The node of another test may have removed it.
        let _ = fs::remove_dir(left.join("main")).and_then(|()| fs::remove_dir(left));
    }
    assert!(attempt(&mesh, "whoami", &[]).starts_with("done: 1000 "));
    assert!(attempt(&mesh, "read", &["readme"]).starts_with("done"));
    assert!(attempt(&mesh, "read", &[&mesh.folder.path().join("secret").display().to_string()]).starts_with("refused"));
    assert!(attempt(&mesh, "connect", &[&format!("127.0.0.1:{}", mesh.ports.gateway)]).starts_with("refused"));
    let instances = mesh.admin("/instances").json();
    assert_eq!(account(instances[0]["pid"].as_u64().unwrap()), "65534");
}
