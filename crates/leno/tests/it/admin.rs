//! Access to the admin API of a node: its own account, root, and bearers of the token have it;
//! instances and other accounts do not.

use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo, echo_function, policy};
use leno_testkit::{curl, free_port, try_curl};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const OTHER: u32 = 65_534;

fn one_function() -> String {
    echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]") + &policy("open", "echo", ALLOW_ALL)
}

/// The output of curl under another account.
fn as_another(socket: &Path) -> Output {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--max-time", "20", "--write-out", "%{http_code}", "--unix-socket"]).arg(socket);
    curl.arg("http://admin/metrics").uid(OTHER).gid(OTHER).output().unwrap()
}

#[test]
fn another_account_is_told_nothing() {
    let mesh = Mesh::start(&one_function());
    let socket = mesh.socket();
    let found = socket.metadata().unwrap();
    assert_eq!((found.mode() & 0o777, found.uid()), (0o600, fs::metadata("/proc/self").unwrap().uid()));
    assert_eq!(mesh.admin("/metrics").status, 200);
    if found.uid() != 0 {
        eprintln!("\n*** NOT tested with another account: only root can become one ***\n");
        return;
    }
    fs::set_permissions(mesh.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let refused = as_another(&socket);
    assert!(!refused.status.success(), "the kernel lets nobody else connect: {refused:?}");
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    let told = String::from_utf8(as_another(&socket).stdout).unwrap();
    assert!(told.ends_with("403") && !told.contains("leno_"), "{told}");
}

/// A script that queries the admin socket (`$1`) in this way, writes the response to `told`, and
/// continues as the function.
fn asking(folder: &Path, how: &str) -> (PathBuf, PathBuf) {
    let (script, told) = (folder.join("ask"), folder.join("told"));
    let text = format!("#!/bin/sh\n{how} > {0}.new\nmv {0}.new {0}\nexec {1}\n", told.display(), echo().display());
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    (script, told)
}

/// A descriptor that one process opens, and that another process uses after the first has ended.
const LEFT_BEHIND: &str = r#"python3 -c '
import os, socket, sys, array
one, other = socket.socketpair()
child = os.fork()
if child == 0:
    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
    one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))])
    os._exit(0)
_, rights, _, _ = other.recvmsg(1, 64)
os.waitpid(child, 0)
s = socket.socket(fileno=array.array("i", rights[0][2])[0])
s.sendall(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
print(s.makefile("rb").read().decode())' "$1""#;

#[test]
fn what_the_node_has_started_is_told_nothing_even_under_its_account() {
    let curl = "curl --silent --include --max-time 20 --unix-socket \"$1\" http://admin/metrics";
    let detached = format!("setsid --wait {curl}");
    let mut ways = vec![curl, &detached];
    if Command::new("python3").arg("--version").output().is_ok() {
        ways.push(LEFT_BEHIND);
    } else {
        eprintln!("\n*** NOT tested with a process that has ended: there is no python3 ***\n");
    }
    for how in ways {
        let folder = tempfile::tempdir().unwrap();
        let (script, told) = asking(folder.path(), how);
        let mut mesh = Mesh::start(&one_function());
        let command = format!("[\"{}\", \"{}\"]", script.display(), mesh.socket().display());
        let job = format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {{name: asking, namespace: test}}\nspec: {{command: {command}, activeDeadline: 10s}}\n"
        );
        let function =
            one_function().replace(&format!("[\"{}\"]", echo().display()), &format!("{command}\n  scale: {{min: 1}}"));
        for (what, documents) in [("an instance", function), ("a job", one_function() + &job)] {
            mesh.write(&documents);
            mesh.wait_for(what, |_| told.exists());
            let answer = fs::read_to_string(&told).unwrap();
            assert!(answer.contains(" 403 ") && !answer.contains("leno_"), "{what} by {how}: {answer}");
            fs::remove_file(&told).unwrap();
        }
        assert_eq!(mesh.admin("/metrics").status, 200);
    }
}

#[test]
fn who_pretends_to_be_a_node_is_not_believed() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("\n*** NOT tested with another account: only root can become one ***\n");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let socket = folder.path().join("admin.sock");
    let script =
        "import socket,sys\ns=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); s.accept()[0].recv(999)";
    let mut other = Command::new("python3");
    let Ok(other) = other.args(["-c", script]).arg(&socket).uid(OTHER).gid(OTHER).spawn() else {
        eprintln!("\n*** NOT tested: there is no python3 ***\n");
        return;
    };
    let _other = Node(other);
    let begin = std::time::Instant::now();
    let said = loop {
        let mut leno = Command::new(env!("CARGO_BIN_EXE_leno"));
        let said = leno.args(["get", "functions", "--admin", &format!("unix:{}", socket.display())]).output().unwrap();
        let said = String::from_utf8(said.stderr).unwrap();
        if !said.contains("no node at") {
            break said;
        }
        assert!(begin.elapsed() < std::time::Duration::from_secs(60), "{said}");
    };
    assert!(said.contains("a process of account 65534"), "{said}");
}

/// A node with separate documents. Dropping it kills the node.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_address_takes_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let token = folder.path().join("token");
    fs::write(&token, "correct-horse-battery\n").unwrap();
    let mesh = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {{name: test}}\nspec:\n  gateway: {{}}\n  listeners: {{outbound: \
         \"127.0.0.1:0\", inbound: \"127.0.0.1:0\", control: \"127.0.0.1:0\", admin: \"127.0.0.1:{port}\", adminToken: token}}\n"
    );
    fs::write(folder.path().join("mesh.yaml"), mesh).unwrap();
    let up = || {
        let mut leno = Command::new(env!("CARGO_BIN_EXE_leno"));
        leno.arg("up").arg(folder.path()).stdin(Stdio::null());
        leno
    };
    fs::set_permissions(&token, Permissions::from_mode(0o644)).unwrap();
    let refused = up().output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("chmod 600"), "{refused:?}");

    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let _node = Node(up().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let begin = std::time::Instant::now();
    while try_curl(&url("/readyz"), &[]).is_none_or(|answer| answer.status != 200) {
        assert!(begin.elapsed() < std::time::Duration::from_secs(60), "the node does not become ready");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for path in ["/metrics", "/functions", "/recent", "/nothing"] {
        let refused = curl(&url(path), &[]);
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")), "{path}");
    }
    let bearing = ["--header", "authorization: Bearer correct-horse-battery"];
    assert_eq!(curl(&url("/metrics"), &bearing).status, 200);
    let get = |arguments: &[&str]| {
        let mut leno = Command::new(env!("CARGO_BIN_EXE_leno"));
        leno.args(["get", "functions", "--admin", &format!("127.0.0.1:{port}")]).args(arguments).output().unwrap()
    };
    assert!(get(&["--admin-token", token.to_str().unwrap()]).status.success());
    // The token permits reading, and not replacing the node's program.
    let upgrade = |more: &[&str]| {
        let asked = ["--request", "POST", "--data", "{\"binary\": \"/bin/true\", \"timeout\": 1}"];
        curl(&url("/upgrade"), &[&asked, more].concat())
    };
    let told = upgrade(&bearing);
    assert!(told.status == 403 && told.body.contains("Unix socket"), "{told:?}");
    assert_eq!(upgrade(&[]).status, 403);
    let refused = get(&[]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("takes a token"), "{refused:?}");
}
