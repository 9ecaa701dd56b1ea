//! The installer, with the folders of a node and programs that write them at the same time.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::PROGRAM;

const LIST: &str = "{\n  \"cniVersion\": \"1.0.0\",\n  \"name\": \"pods\",\n  \"plugins\": [\n    {\"type\": \"bridge\", \"mtu\": 1.5e3},\n    {\"type\": \"portmap\"}\n  ]\n}\n";

/// The folders of a node, with the file of a network.
struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    fn new(files: &[(&str, &str)]) -> Self {
        let node = Self { folder: tempfile::tempdir().unwrap() };
        for folder in ["net.d", "bin"] {
            std::fs::create_dir(node.path(folder)).unwrap();
        }
        std::fs::write(node.path("bin/bridge"), "another plug-in").unwrap();
        for (name, text) in files {
            std::fs::write(node.path("net.d").join(name), text).unwrap();
        }
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.path("net.d").join(file)).unwrap_or_default()
    }

    /// The names of the files in a folder, in their order.
    fn files(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The types of the plug-ins of a file, if it is whole.
    fn kinds(&self, file: &str) -> Vec<String> {
        let value: Value = serde_json::from_str(&self.text(file)).unwrap_or_default();
        let plugins = value["plugins"].as_array().cloned().unwrap_or_default();
        plugins.iter().map(|plugin| plugin["type"].as_str().unwrap().to_owned()).collect()
    }

    fn command(&self, command: &str) -> Command {
        let mut made = Command::new(PROGRAM);
        made.arg(command).arg("--configuration-folder").arg(self.path("net.d"));
        made.arg("--binary-folder").arg(self.path("bin")).stderr(Stdio::piped());
        made
    }

    /// Runs a command to its end; an error is its text.
    fn run(&self, command: &str) -> Result<(), String> {
        let output = self.command(command).output().unwrap();
        if output.status.success() { Ok(()) } else { Err(String::from_utf8(output.stderr).unwrap()) }
    }

    fn install(&self, arguments: &[&str]) -> Installer {
        Installer(self.command("install").args(arguments).spawn().unwrap())
    }

    fn await_kinds(&self, file: &str, kinds: &[&str]) {
        eventually(|| if self.kinds(file) == kinds { Ok(()) } else { Err(format!("{file}: {}", self.text(file))) });
    }
}

/// An installer that runs.
struct Installer(Child);

impl Installer {
    /// Ends it as Kubernetes does, and gives its output.
    fn terminate(mut self) -> String {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut self.0.stderr.take().unwrap(), &mut text).unwrap();
        assert!(self.0.wait().unwrap().success(), "{text}");
        text
    }
}

impl Drop for Installer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Repeats a check until it succeeds.
fn eventually(mut check: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(text) = check() {
        assert!(Instant::now() < deadline, "not within 60 s: {text}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn the_plug_in_comes_and_goes_without_a_trace() {
    let node = Node::new(&[("10-pods.conflist", LIST), ("20-other.conflist", LIST), ("readme.txt", "{")]);
    let file = node.path("net.d/10-pods.conflist");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    assert!(node.run("check").unwrap_err().contains("leno-cni"));

    let installer = node.install(&["--remove", "--exempt", "monitoring", "--timeout", "5000"]);
    node.await_kinds("10-pods.conflist", &["bridge", "portmap", "leno-cni"]);
    node.run("check").unwrap();
    let value: Value = serde_json::from_str(&node.text("10-pods.conflist")).unwrap();
    let expected = serde_json::json!({"type": "leno-cni", "leno": {
        "socket": "/run/leno/cni.sock", "enforced": "/var/lib/leno/enforced", "exempt": ["monitoring"], "timeoutMilliseconds": 5000
    }});
    assert_eq!(value["plugins"][2], expected);
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o640);
    let program = node.path("bin/leno-cni");
    assert_eq!(program.metadata().unwrap().mode() & 0o7777, 0o755);
    assert!(std::fs::read(&program).unwrap() == std::fs::read(PROGRAM).unwrap());
    assert_eq!(node.text("20-other.conflist"), LIST);

    let text = installer.terminate();
    assert!(text.ends_with("leno-cni: removed\n"), "{text}");
    assert_eq!(node.text("10-pods.conflist"), LIST);
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o640);
    assert_eq!(node.files("net.d"), ["10-pods.conflist", "20-other.conflist", "readme.txt"]);
    assert_eq!(node.files("bin"), ["bridge"]);
}

#[test]
fn an_upgrade_of_the_installer_leaves_the_plug_in_in_place() {
    let node = Node::new(&[("10-pods.conflist", LIST)]);
    let installer = node.install(&[]);
    node.await_kinds("10-pods.conflist", &["bridge", "portmap", "leno-cni"]);
    let text = installer.terminate();
    assert!(text.contains("leaves the plug-in in place"), "{text}");
    node.run("check").unwrap();
    // The next one has other options, and an older program is there.
    std::fs::write(node.path("bin/leno-cni"), "older").unwrap();
    let _next = node.install(&["--timeout", "7000"]);
    eventually(|| {
        if node.text("10-pods.conflist").contains("7000") { Ok(()) } else { Err(node.text("10-pods.conflist")) }
    });
    assert!(std::fs::read(node.path("bin/leno-cni")).unwrap() == std::fs::read(PROGRAM).unwrap());
    assert_eq!(node.kinds("10-pods.conflist"), ["bridge", "portmap", "leno-cni"]);
    node.run("remove").unwrap();
}

#[test]
fn a_file_of_one_plug_in_becomes_a_list_until_the_plug_in_goes() {
    let single = "{\"cniVersion\": \"0.3.1\", \"name\": \"old\", \"type\": \"ptp\"}\n";
    for name in ["10-old.conf", "10-old.json"] {
        let node = Node::new(&[(name, single), ("20-other.conflist", LIST)]);
        let list = format!("{name}.conflist");
        let installer = node.install(&["--remove"]);
        node.await_kinds(&list, &["ptp", "leno-cni"]);
        eventually(|| {
            if node.files("net.d") == [list.as_str(), "20-other.conflist"] {
                Ok(())
            } else {
                Err(format!("{:?}", node.files("net.d")))
            }
        });
        // Its owner writes it anew.
        let newer = single.replace("ptp", "ipvlan");
        std::fs::write(node.path("net.d").join(name), &newer).unwrap();
        node.await_kinds(&list, &["ipvlan", "leno-cni"]);
        eventually(|| if node.files("net.d").len() == 2 { Ok(()) } else { Err(format!("{:?}", node.files("net.d"))) });
        installer.terminate();
        assert_eq!(node.files("net.d"), [name, "20-other.conflist"]);
        assert_eq!(node.text(name), newer);
        assert_eq!(node.text("20-other.conflist"), LIST);
    }
}

#[test]
fn a_network_that_comes_later_gets_the_plug_in() {
    let node = Node::new(&[]);
    std::fs::remove_dir(node.path("net.d")).unwrap();
    let mut installer = node.install(&[]);
    let mut output = std::io::BufReader::new(installer.0.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert!(line.starts_with("leno-cni: not installed: ") && line.contains("net.d"), "{line}");
    std::fs::create_dir(node.path("net.d")).unwrap();
    line.clear();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert!(line.contains("has no configuration of a network"), "{line}");
    // A file is not yet whole.
    let half = &LIST[..LIST.len() / 2];
    std::fs::write(node.path("net.d/10-pods.conflist"), half).unwrap();
    line.clear();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert!(line.contains("10-pods.conflist: it cannot be decoded"), "{line}");
    assert_eq!(node.text("10-pods.conflist"), half);
    std::fs::write(node.path("net.d/10-pods.conflist"), LIST).unwrap();
    node.await_kinds("10-pods.conflist", &["bridge", "portmap", "leno-cni"]);
}

#[test]
fn the_installer_puts_back_what_other_programs_remove() {
    let node = Node::new(&[("10-pods.conflist", LIST)]);
    let file = node.path("net.d/10-pods.conflist");
    let _installer = node.install(&[]);
    let installed = || {
        node.await_kinds("10-pods.conflist", &["bridge", "portmap", "leno-cni"]);
        eventually(|| node.run("check"));
    };
    installed();
    // In place, as `cp` writes.
    std::fs::write(&file, LIST).unwrap();
    installed();
    // By another file, as most programs write.
    std::fs::write(node.path("new"), LIST).unwrap();
    std::fs::rename(node.path("new"), &file).unwrap();
    installed();
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, LIST).unwrap();
    installed();
    std::fs::remove_file(node.path("bin/leno-cni")).unwrap();
    installed();
    std::fs::set_permissions(node.path("bin/leno-cni"), PermissionsExt::from_mode(0o600)).unwrap();
    eventually(|| match node.path("bin/leno-cni").metadata() {
        Ok(metadata) if metadata.mode() & 0o777 == 0o755 => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // The folder is another one.
    std::fs::rename(node.path("net.d"), node.path("old")).unwrap();
    std::fs::create_dir(node.path("net.d")).unwrap();
    std::fs::write(&file, LIST).unwrap();
    installed();
    // Another network comes first in the order of names.
    std::fs::write(node.path("net.d/05-first.conflist"), LIST).unwrap();
    node.await_kinds("05-first.conflist", &["bridge", "portmap", "leno-cni"]);
    node.await_kinds("10-pods.conflist", &["bridge", "portmap"]);
    assert_eq!(node.text("10-pods.conflist"), LIST);
    std::fs::remove_file(node.path("net.d/05-first.conflist")).unwrap();
    installed();
    assert_eq!(node.files("bin"), ["bridge", "leno-cni"]);
}

#[test]
fn a_file_that_cannot_have_the_plug_in_is_named_and_stays() {
    let old = LIST.replace("1.0.0", "0.2.0");
    let node = Node::new(&[("10-pods.conflist", &old)]);
    let mut installer = node.install(&[]);
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(installer.0.stderr.take().unwrap()), &mut line).unwrap();
    assert!(line.contains("10-pods.conflist: `cniVersion` is `0.2.0`"), "{line}");
    assert_eq!(node.text("10-pods.conflist"), old);
    let wrong = node.command("install").args(["--exempt", "a b"]).output().unwrap();
    assert!(!wrong.status.success());
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("`a b`"));
    // Runtimes skip a list without plug-ins, and so does the installer.
    let node =
        Node::new(&[("10-none.conflist", r#"{"cniVersion": "1.0.0", "plugins": []}"#), ("20-pods.conflist", LIST)]);
    let _installer = node.install(&[]);
    node.await_kinds("20-pods.conflist", &["bridge", "portmap", "leno-cni"]);
    let chosen = Node::new(&[("10-pods.conflist", LIST), ("20-other.conflist", LIST)]);
    let _other = chosen.install(&["--file", "20-other.conflist"]);
    chosen.await_kinds("20-other.conflist", &["bridge", "portmap", "leno-cni"]);
    assert_eq!(chosen.text("10-pods.conflist"), LIST);
}

/// Writes a file as another program does: in place, or by a second file.
fn write(node: &Node, text: &str, in_place: bool) {
    let file = node.path("net.d/10-pods.conflist");
    if in_place {
        return std::fs::write(file, text).unwrap();
    }
    std::fs::write(node.path("net.d/.new"), text).unwrap();
    std::fs::rename(node.path("net.d/.new"), file).unwrap();
}

#[test]
fn changes_of_other_programs_at_the_same_time_are_kept() {
    for in_place in [false, true] {
        let node = Node::new(&[("10-pods.conflist", LIST)]);
        let installers = [node.install(&[]), node.install(&[])];
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if !in_place {
                // A runtime never sees half a file.
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let kinds = node.kinds("10-pods.conflist");
                        assert_eq!(kinds[..2], ["bridge", "portmap"], "{}", node.text("10-pods.conflist"));
                    }
                });
            }
            for version in 0..200 {
                write(&node, &LIST.replace("1.5e3", &format!("{version}.50")), in_place);
                if version % 50 == 49 {
                    node.await_kinds("10-pods.conflist", &["bridge", "portmap", "leno-cni"]);
                }
            }
            eventually(|| {
                let text = node.text("10-pods.conflist");
                if text.contains("\"mtu\": 199.50") && text.contains("leno-cni") { Ok(()) } else { Err(text) }
            });
            stop.store(true, Ordering::Relaxed);
        });
        for installer in installers {
            installer.terminate();
        }
        assert_eq!(node.kinds("10-pods.conflist"), ["bridge", "portmap", "leno-cni"]);
        node.run("remove").unwrap();
        assert_eq!(node.text("10-pods.conflist"), LIST.replace("1.5e3", "199.50"));
        assert_eq!(node.files("net.d"), ["10-pods.conflist"]);
        assert_eq!(node.files("bin"), ["bridge"]);
    }
}
