//! Programs as people have them: on another port than theirs, with variables in their arguments, and
//! with interpreters outside of `/usr`.

use super::start;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, policy};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A function that runs a command, and is exposed at its own host.
pub(super) fn function(name: &str, command: &[&str], spec: &str) -> String {
    let command = serde_json::to_string(command).unwrap();
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  command: {command}\n  \
         callees: []\n  expose: [{{hosts: [{name}.example], path: /}}]\n{spec}\n"
    ) + &policy(&format!("{name}-in"), name, &format!("  sidecar: {{deadline: 100ms}}\n{ALLOW_ALL}"))
}

pub(super) fn status(mesh: &Mesh, name: &str) -> u16 {
    mesh.curl("/", &["--header", &format!("host: {name}.example")]).status
}

pub(super) fn text(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Serves the working directory.
const SERVE: [&str; 4] = ["-m", "http.server", "$(PORT)", "--bind=$(HOST)"];
pub(super) const SPEC: &str = "  env: {HOST: 127.0.0.1}\n  workingDirectory: public\n  timeouts: {startup: 60s}";

#[test]
fn arguments_have_the_values_of_variables() {
    let job = "---\napiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {name: says, namespace: test}\nspec:\n  workingDirectory: public\n  \
               command: [/bin/echo, $(A) $$(A) $(B), $(LENO_FUNCTION)]\n  env: {A: one}\n";
    let serves = [&["/usr/bin/python3"][..], &SERVE].concat();
    let mut mesh = start("strict", &(function("serves", &serves, SPEC) + job));
    assert_eq!(status(&mesh, "serves"), 200);
    mesh.wait_for("the job's line", |mesh| mesh.output().iter().any(|line| line.contains("one $(A) $(B) test/says")));
}

#[test]
fn a_program_on_another_port_is_told_where_it_should_listen() {
    let spec = "  workingDirectory: public\n  timeouts: {startup: 3s}";
    let other = ["/usr/bin/python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"];
    let sleeps = ["/bin/sleep", "1000"];
    let process = format!("{spec}\n  isolation: process");
    let documents = function("jailed", &other, spec)
        + &function("process", &["/usr/bin/python3", "-m", "http.server", "0", "--bind", "127.0.0.2"], &process)
        + &function("nowhere", &sleeps, spec);
    let mut mesh = start("auto", &documents);
    for (name, places) in [("jailed", "8000,"), ("process", "127.0.0.2:"), ("nowhere", "no port,")] {
        let told = format!("it listens on {places}");
        mesh.wait_for(&told, |mesh| {
            assert_eq!(status(mesh, name), 503);
            let holds = |line: &String| line.contains(&told) && line.contains(&format!("function=test/{name}"));
            mesh.output().iter().any(holds)
        });
        for listing in ["functions", "events"] {
            let listed = mesh.leno(&["get", listing, "--json"]);
            assert!(text(&listed).contains(&told), "{listing}: {}", text(&listed));
        }
    }
    let expected = |line: &String| line.contains("expected $PORT ") && line.contains(" on 127.0.0.1 (no connection");
    assert!(mesh.output().iter().any(expected), "{:?}", mesh.output());
}

/// A folder that every account may enter, until it is dropped.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

/// A Python of its own in this folder, as version managers install it. It is the machine's.
fn install_python(folder: &Path) -> PathBuf {
    let script =
        "import os, sys, sysconfig; print(os.path.realpath(sys.executable)); print(sysconfig.get_path('stdlib'))";
    let told = Command::new("/usr/bin/python3").args(["-c", script]).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let (program, library) = told.trim().split_once('\n').unwrap();
    fs::create_dir_all(folder.join("bin")).unwrap();
    fs::create_dir_all(folder.join("lib")).unwrap();
    let python = folder.join("bin").join(Path::new(program).file_name().unwrap());
    fs::copy(program, &python).unwrap();
    symlink(python.file_name().unwrap(), folder.join("bin/python3")).unwrap();
    run("cp", &["-a", library, folder.join("lib").to_str().unwrap()]);
    folder.join("bin/python3")
}

#[test]
fn pythons_outside_of_usr_and_their_environments_run() {
    let place = open_folder();
    let python = install_python(&place.path().join("versions/3"));
    let serve =
        |python: &str| [&[python][..], &SERVE].concat().iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let venv = place.path().join("venvs/app");
    run(python.to_str().unwrap(), &["-m", "venv", "--without-pip", venv.to_str().unwrap()]);
    let inside = venv.join("bin/python").display().to_string();
    // A program of the environment, as `pip` makes them.
    let script = venv.join("bin/serve");
    fs::write(
        &script,
        format!("#!{inside}\nimport http.server as s, sys; s.test(s.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind='127.0.0.1')\n"),
    )
    .unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let shell = format!("cd . && exec {inside} -m http.server $PORT --bind $HOST");
    let commands = [
        ("version", serve(python.to_str().unwrap())),
        ("venv", serve(&inside)),
        ("script", vec![script.display().to_string(), "$(PORT)".to_owned()]),
        ("shell", vec!["sh".to_owned(), "-c".to_owned(), shell]),
        ("env", [vec!["/usr/bin/env".to_owned(), "A=b".to_owned()], serve(&inside)].concat()),
    ];
    let of = |(name, command): &(&str, Vec<String>)| {
        function(name, &command.iter().map(String::as_str).collect::<Vec<_>>(), SPEC)
    };
    let mesh = start("strict", &commands.iter().map(of).collect::<String>());
    for (name, _) in &commands {
        assert_eq!(status(&mesh, name), 200, "{name}: {:?}", mesh.output());
    }
}

#[test]
fn a_node_outside_of_usr_and_its_global_modules_run() {
    let Ok(node) = fs::canonicalize("/usr/bin/node") else {
        eprintln!("SKIPPED: no /usr/bin/node");
        return;
    };
    let place = open_folder();
    let folder = place.path().join("versions/node/v1");
    for inside in ["bin", "include/node", "lib/node_modules/hello"] {
        fs::create_dir_all(folder.join(inside)).unwrap();
    }
    fs::copy(node, folder.join("bin/node")).unwrap();
    fs::write(folder.join("include/node/node.h"), "").unwrap();
    let script = "#!/usr/bin/env node\nrequire('http').createServer((_, answer) => answer.end('hello')).listen(process.argv[2], 'localhost')\n";
    let cli = folder.join("lib/node_modules/hello/cli.js");
    fs::write(&cli, script).unwrap();
    fs::set_permissions(&cli, fs::Permissions::from_mode(0o755)).unwrap();
    symlink("../lib/node_modules/hello/cli.js", folder.join("bin/hello")).unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
    let spec = format!("  env: {{PATH: \"{path}\"}}\n  workingDirectory: public\n  timeouts: {{startup: 60s}}");
    let documents =
        function("named", &["hello", "$(PORT)"], &spec) + &function("shell", &["sh", "-c", "hello $PORT"], &spec);
    let mesh = start("strict", &documents);
    for name in ["named", "shell"] {
        assert_eq!(status(&mesh, name), 200, "{name}: {:?}", mesh.output());
    }
}

/// Serves `ok` with the programs of distributions, if they are there.
#[test]
fn interpreters_of_the_distribution_find_their_configuration() {
    let java = "import com.sun.net.httpserver.*; import java.net.*; class App { public static void main(String[] a) throws Exception {\n\
                var s = HttpServer.create(new InetSocketAddress(\"127.0.0.1\", Integer.parseInt(a[0])), 0);\n\
                s.createContext(\"/\", e -> { e.sendResponseHeaders(200, -1); e.close(); }); s.start(); } }";
    let ruby = "require 'socket'; require 'json'; s = TCPServer.new('127.0.0.1', ARGV[0])\n\
                loop { c = s.accept; c.write(\"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n\") if c.gets; c.close }";
    let php = "<?php echo php_ini_loaded_file();";
    let commands = [
        ("java", vec!["/usr/bin/java", "App.java", "$(PORT)"]),
        ("ruby", vec!["/usr/bin/ruby", "-e", ruby, "$(PORT)"]),
        ("php", vec!["/usr/bin/php", "-S", "127.0.0.1:$(PORT)", "index.php"]),
        (
            "perl",
            vec![
                "/usr/bin/perl",
                "-MIO::Socket::INET",
                "-e",
                "$s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 9); while ($c = $s->accept) { sysread $c, $b, 4096; print $c \"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n\"; close $c }",
                "$(PORT)",
            ],
        ),
    ];
    let is_there = |(name, command): &&(&str, Vec<&str>)| {
        let there = Path::new(command[0]).exists();
        if !there {
            eprintln!("SKIPPED: no {name}: {}", command[0]);
        }
        there
    };
    let present: Vec<_> = commands.iter().filter(is_there).collect();
    let documents: String = present.iter().map(|(name, command)| function(name, command, SPEC)).collect();
    let leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    let mesh = Mesh::start_with_command(leno, &super::instances("strict"), &documents, |folder| {
        fs::create_dir(folder.join("public")).unwrap();
        fs::write(folder.join("public/App.java"), java).unwrap();
        fs::write(folder.join("public/index.php"), php).unwrap();
    });
    for (name, _) in present {
        assert_eq!(status(&mesh, name), 200, "{name}: {:?}", mesh.output());
    }
}

#[test]
fn what_a_jail_cannot_show_is_told_by_check_and_at_start() {
    let (open, closed) = (open_folder(), tempfile::tempdir().unwrap());
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let python = install_python(&closed.path().join("versions/3"));
    let venv = open.path().join("venv");
    run(python.to_str().unwrap(), &["-m", "venv", "--without-pip", venv.to_str().unwrap()]);
    let inside = venv.join("bin/python").display().to_string();
    let shell = format!("exec {inside} -m http.server");
    let documents = function("venv", &[&inside, "-m", "http.server"], SPEC)
        + &function("shell", &["sh", "-c", &shell], SPEC)
        + &function("missing", &["sh", "-c", "no-such-program --port $PORT"], SPEC)
        + &function("script", &["python3", "no-such-script.py"], SPEC);
    let mut mesh = start("strict", &documents);
    let mut expected =
        vec![("missing", "the shell cannot run `no-such-program`: `no-such-program` is in no folder of PATH")];
    // Without root, jails use the account of the node, which owns that folder.
    if rustix::process::geteuid().is_root() {
        expected
            .push(("venv", "a jail's own account may not go there: have others enter each folder above (`chmod o+x`)"));
        expected.push((
            "shell",
            "a jail's own account may not go there: have others enter each folder above (`chmod o+x`)",
        ));
    }
    let checked = text(&mesh.leno(&["check", mesh.folder.path().to_str().unwrap()]));
    assert!(checked.contains("there is no file `no-such-script.py` in "), "{checked}");
    for (name, reason) in &expected {
        assert_eq!(status(&mesh, name), 503, "{name}");
        let told = |line: &String| line.contains(&format!("test/{name}")) && line.contains(reason);
        mesh.wait_for(name, |mesh| mesh.output().iter().any(told));
        let listed = text(&mesh.leno(&["get", "events", "--json"]));
        assert!(listed.contains(reason), "{name}: {listed}");
        assert!(checked.contains("spec.command: in a jail on this machine: ") && checked.contains(reason), "{checked}");
    }
}
