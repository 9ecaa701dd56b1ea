//! The echo example of each language as a function, and that of Rust as the callee of the others. A
//! language whose tools are missing on the machine is left out, with a message.

use leno_sdk::{Chain, Method, RequestHead, ResponseHead, StatusCode};
use leno_shm::{Domain, Incoming, Link, Settings};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, socketpair};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

struct Function(Child);

impl Drop for Function {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The place where this build has put the library.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().find(|folder| folder.join("libleno.so").exists()).expect("the library was built").to_owned()
}

fn is_there(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success();
    if !found {
        eprintln!("== left out: there is no `{program}` on this machine");
    }
    found
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn to(name: &str, path: &str) -> RequestHead {
    RequestHead::new(Method::POST, name.parse().unwrap(), path.parse().unwrap())
}

async fn open(socket: OwnedFd, domain: &Domain, name: &str) -> (Link, Incoming) {
    let settings = Settings { within: PATIENCE, ..Settings::default() };
    Link::open(socket, domain, name, &settings).await.unwrap()
}

async fn echoes(mut command: Command) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let _function = Function(command.env("PORT", port.to_string()).spawn().unwrap());
    let connects = async {
        loop {
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            let name = SocketAddrUnix::new_abstract_name(format!("leno-chain-{port}").as_bytes()).unwrap();
            match connect(&socket, &name) {
                Ok(()) => break socket,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let socket = tokio::time::timeout(PATIENCE, connects).await.expect("it listens");
    let domain = Domain::new("bindings");
    let (link, mut calls) = open(socket, &domain, "function").await;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    // Answers with the body in capital letters.
    thread::spawn(move || {
        let chain = Chain::over(theirs).unwrap();
        while let Some(call) = chain.next() {
            let capitals = chain.copy(&call.body().to_ascii_uppercase()).unwrap();
            call.answer(StatusCode::ACCEPTED, capitals).unwrap();
        }
    });
    let (other, mut none) = open(ours, &domain, "other").await;
    tokio::spawn(async move { while none.next().await.is_some() {} });
    let other_link = other.clone();
    tokio::spawn(async move {
        while let Some(mut call) = calls.next().await {
            assert_eq!(call.head.authority, "other");
            assert!(call.parent.is_some(), "it says for which call it makes this one");
            let asked = other_link.call(&call.head, call.body.as_ref(), None).unwrap();
            tokio::spawn(async move {
                let (head, body) = match asked.await {
                    Ok(answer) => (answer.head, answer.body),
                    Err(_) => (ResponseHead::new(StatusCode::BAD_GATEWAY), None),
                };
                call.reply.answer(&head, body.as_ref()).unwrap();
            });
        }
    });
    for (path, status, expected) in [("/", 200, "a body"), ("/to/other", 202, "A BODY"), ("/to/other", 202, "A BODY")] {
        let mut writer = link.writer(6).unwrap();
        writer.write(b"a body").unwrap();
        let asked = link.call(&to("function", path), writer.commit().as_ref(), None).unwrap();
        let answer = tokio::time::timeout(PATIENCE, asked).await.expect("it answers").unwrap();
        let body = answer.body.unwrap().chunk(0, 100).unwrap();
        assert_eq!((answer.head.status.as_u16(), &body[..]), (status, expected.as_bytes()));
    }
    let empty = link.call(&to("function", "/"), None, None).unwrap().await.unwrap();
    assert!(empty.body.is_none());
    // Only the bodies from the test were copied.
    assert_eq!(domain.statistics().bytes_copied_in(), 18);
    assert_eq!(domain.statistics().violations().total(), 0);
}

#[tokio::test]
async fn c() {
    if is_there("cc") {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("echo");
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Wextra", "-Werror", "-std=c11", "-o"]).arg(&program).arg(sdk().join("c/examples/echo.c"));
        cc.arg("-I").arg(sdk().join("c/include")).arg("-L").arg(library()).arg("-lleno");
        run(&mut cc);
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", library());
        echoes(command).await;
    }
}

#[tokio::test]
async fn python() {
    if is_there("python3") {
        let mut command = Command::new("python3");
        command.arg("-B").arg(sdk().join("python/examples/echo.py"));
        command.env("PYTHONPATH", sdk().join("python")).env("LENO_LIBRARY", library().join("libleno.so"));
        echoes(command).await;
    }
}

#[tokio::test]
async fn go() {
    if is_there("go") && is_there("cc") {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("echo");
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&program).arg("./example/echo").current_dir(sdk().join("go"));
        go.env("CGO_CFLAGS", format!("-I{}", sdk().join("c/include").display()));
        go.env("CGO_LDFLAGS", format!("-L{}", library().display()));
        run(&mut go);
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", library());
        echoes(command).await;
    }
}

#[tokio::test]
async fn node() {
    let headers = "node -p \"require('path').join(process.execPath, '../../include/node')\"";
    let headers = Command::new("sh").args(["-c", headers]).output().unwrap();
    let headers = PathBuf::from(String::from_utf8(headers.stdout).unwrap().trim());
    if is_there("node") && is_there("cc") {
        if !headers.join("node_api.h").exists() {
            return eprintln!("== left out: there are no headers of Node.js in {}", headers.display());
        }
        let folder = tempfile::tempdir().unwrap();
        let addon = folder.path().join("leno.node");
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Werror", "-fPIC", "-shared", "-o"]).arg(&addon).arg(sdk().join("node/addon.c"));
        cc.arg("-I").arg(sdk().join("c/include")).arg("-I").arg(headers).arg("-L").arg(library()).arg("-lleno");
        run(&mut cc);
        let mut command = Command::new("node");
        command.arg(sdk().join("node/examples/echo.js"));
        command.env("LENO_ADDON", addon).env("LD_LIBRARY_PATH", library());
        echoes(command).await;
    }
}
