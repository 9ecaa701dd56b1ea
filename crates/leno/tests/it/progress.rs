//! Progress of work that takes a while: in a terminal, without one, and beside answers for programs.

use crate::terminal::Terminal;
use leno_testkit::cluster::{Node, control};
use leno_testkit::mesh::echo_function;
use leno_testkit::{eventually, leno_program};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// A function that starts when this file is there, and another one.
fn documents(gate: &str) -> String {
    let slow = echo_function("slow", "  scale: {min: 1}\n  timeouts: {startup: 5m}");
    let (before, program) = slow.split_once("  command: [").unwrap();
    let (program, rest) = program.split_once(']').unwrap();
    let wait = format!("while [ ! -e {gate} ]; do sleep 0.05; done; exec \\\"$0\\\"");
    format!("{before}  command: [/bin/sh, -c, \"{wait}\", {program}]{rest}") + &echo_function("quick", "")
}

#[test]
fn a_terminal_has_a_bar_that_disappears_and_other_output_has_lines() {
    let control = control();
    let _node = Node::join(&control, "one", &[]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("first.yaml"), documents(&path("first"))).unwrap();
    let (url, token, ca) = (control.url(), control.path("data/admin.token"), control.path("data/api.pem"));
    let (token, ca) = (token.display().to_string(), ca.display().to_string());
    let variables = [("LENO_SERVER", &*url), ("LENO_TOKEN_FILE", &*token), ("LENO_CA", &*ca)];
    let mut terminal = Terminal::start(&format!("apply -f {} --wait", path("first.yaml")), &variables);
    let waiting = terminal.shows("waits for test/slow starting");
    let bar = waiting.lines().find(|line| line.contains("waits for")).unwrap();
    assert!(bar.contains("[====") && bar.contains("50 %"), "one of two: {waiting}");
    assert!(waiting.contains("test/quick idle"), "output stands above the bar: {waiting}");
    fs::write(path("first"), "").unwrap();
    terminal.shows("test/slow ready");
    let status = eventually("the end", || terminal.child.try_wait().unwrap());
    assert!(status.success(), "{status}");
    let left = eventually("the bar to be gone", || Some(terminal.text()).filter(|text| !text.contains("waits for")));
    assert!(left.contains("test/slow ready") && !left.contains("[="), "{left}");

    // The same without a terminal.
    fs::write(path("second.yaml"), documents(&path("second"))).unwrap();
    let mut apply = control.begin(&["apply", "-f", &path("second.yaml"), "--wait"]);
    let mut errors = BufReader::new(apply.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("waits for test/slow starting") {
        line.clear();
        assert!(errors.read_line(&mut line).unwrap() > 0, "it ended");
    }
    assert!(line.starts_with("leno: ") && line.contains(", 50 % (") && !line.contains('\x1b'), "{line:?}");
    fs::write(path("second"), "").unwrap();
    assert!(apply.wait().unwrap().success());
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains('\x1b') && !rest.contains('\r'), "{rest:?}");
}

/// `leno get functions` of a node at this address.
fn get(address: &str, more: &[&str]) -> Child {
    let mut command = Command::new(leno_program());
    command.args(["get", "functions", "--admin", address]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Takes a request, and leaves it unanswered.
fn request(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }
    stream
}

#[test]
fn an_answer_for_programs_has_no_progress_beside_it() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut streams = Vec::new();
    let mut begin = |more: &[&str]| {
        let child = get(&address, more);
        streams.push(request(&listener));
        child
    };
    let silent = [begin(&["-o", "json"]), begin(&["-o", "name"]), begin(&["--json"])];
    let mut table = begin(&[]);
    // The others have waited for longer.
    let mut errors = BufReader::new(table.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.starts_with("leno: waits for the listing ("), "{line:?}");
    for mut stream in streams {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]").unwrap();
    }
    for child in silent {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    assert!(table.wait().unwrap().success());
}

#[test]
fn a_terminal_shows_pulls_of_leno_up_below_its_log() {
    // A registry that never answers.
    let registry = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let host = registry.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let digest = leno_oci::Digest::of(b"an image");
    let documents = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {{name: test}}\nspec:\n  gateway: {{http: \"127.0.0.1:0\"}}\n  \
         listeners: {{admin: \"unix:admin.sock\", inbound: \"127.0.0.1:0\", outbound: \"127.0.0.1:0\"}}\n  instances: {{isolation: \
         auto, accounts: node}}\n  images: {{folder: .images, registries: [{{host: \"{host}\", insecure: true}}]}}\n---\napiVersion: \
         leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: web, namespace: test}}\nspec: {{image: \"{host}/web@{digest}\", scale: \
         {{min: 1}}}}\n"
    );
    fs::write(folder.path().join("app.yaml"), documents).unwrap();
    let mut terminal = Terminal::start(&format!("up {}", folder.path().display()), &[]);
    let screen = terminal.shows("pulls the image of test/web: asking the registry");
    let last = screen.lines().rfind(|line| !line.is_empty()).unwrap();
    assert!(last.contains("pulls the image"), "{screen}");
    terminal.press("\x03");
    eventually("the end", || terminal.child.try_wait().unwrap());
}
