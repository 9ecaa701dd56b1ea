//! Servers of the distribution as the documentation starts them, and what the mesh says of programs
//! that do not serve.

use super::programs::{SPEC, function, status, text};
use super::start;
use leno_testkit::mesh::{ALLOW_ALL, policy};
use std::path::Path;

/// Whether a program is there. If not, prints that.
fn is_installed(program: &str) -> bool {
    let there = Path::new(program).exists();
    if !there {
        eprintln!("SKIPPED: no {program}");
    }
    there
}

/// The name of the function, its program, its arguments, and the rest of its `spec`.
const SERVERS: [(&str, &str, &[&str], &str); 4] = [
    (
        "nginx",
        "/usr/sbin/nginx",
        &["-g", "daemon off;"],
        "  port: 80\n  readOnlyPaths: [/etc/nginx, /var/www]\n  volumes: [{path: /run}, {path: /var/lib/nginx}, {path: /var/log/nginx}]",
    ),
    (
        "apache",
        "/usr/sbin/apache2",
        &["-D", "FOREGROUND"],
        "  port: 80\n  readOnlyPaths: [/etc/apache2, /var/www]\n  env: {APACHE_RUN_USER: www-data, APACHE_RUN_GROUP: www-data, APACHE_RUN_DIR: /run, \
         APACHE_PID_FILE: /run/apache2.pid, APACHE_LOG_DIR: /var/log/apache2}\n  volumes: [{path: /run}, {path: /var/log/apache2}]",
    ),
    (
        "lighttpd",
        "/usr/sbin/lighttpd",
        &["-D", "-f", "/etc/lighttpd/lighttpd.conf"],
        "  port: 80\n  readOnlyPaths: [/etc/lighttpd, /var/www]\n  volumes: [{path: /run}, {path: /var/cache/lighttpd}, {path: /var/log/lighttpd}]",
    ),
    ("busybox", "/usr/bin/busybox", &["httpd", "-f", "-p", "$(PORT)", "-h", "."], "  workingDirectory: public"),
];

#[test]
fn servers_of_the_distribution_run_with_their_own_configuration() {
    let is_root = rustix::process::geteuid().is_root();
    let present =
        SERVERS.iter().filter(|(_, program, _, spec)| is_installed(program) && (is_root || !spec.contains("port: 80")));
    let present: Vec<_> = present.collect();
    let of = |(name, program, arguments, spec): &&(&str, &str, &[&str], &str)| {
        function(name, &[&[*program], *arguments].concat(), &format!("{spec}\n  timeouts: {{startup: 60s}}"))
    };
    // HAProxy reads a file of the working directory, and writes its log to a path.
    let script = "printf 'global\\n  log stdout format raw local0\\ndefaults\\n  mode http\\n  timeout client 5s\\n  timeout server 5s\\n  \
                  timeout connect 5s\\nfrontend f\\n  bind :%s\\n  http-request return status 200 content-type text/plain string ok\\n' \
                  $PORT > /tmp/haproxy.cfg; echo started > /dev/stdout; exec haproxy -f /tmp/haproxy.cfg";
    let has_haproxy = is_installed("/usr/sbin/haproxy");
    let haproxy = if has_haproxy { function("haproxy", &["sh", "-c", script], SPEC) } else { String::new() };
    let mesh = start("strict", &(present.iter().map(of).collect::<String>() + &haproxy));
    for name in present.iter().map(|(name, ..)| *name).chain(has_haproxy.then_some("haproxy")) {
        let status = status(&mesh, name);
        // Some have no page at `/`.
        assert!([200, 403, 404].contains(&status), "{name}: {status}: {:?}", mesh.output());
    }
}

/// A program that listens at a Unix socket only.
const AT_UNIX: &str =
    "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('/tmp/app.sock'); s.listen(); time.sleep(1000)";

#[test]
fn what_a_program_wrote_and_the_likely_fix_are_told() {
    let spec = "  workingDirectory: public\n  timeouts: {startup: 5s}";
    let programs: [(&str, &[&str], &str); 7] = [
        ("writes", &["sh", "-c", "echo x > app.log"], "write to /tmp, or to a folder of `volumes`"),
        ("logs", &["sh", "-c", "cat /var/log/shop/app.log"], "add `volumes: [{path: /var/log/shop}]`"),
        ("configured", &["sh", "-c", "cat /etc/shop/shop.conf"], "add `readOnlyPaths: [/etc/shop]`"),
        ("drops", &["sh", "-c", "echo cannot find user id for shop >&2; exit 1"], "leave out changes of the user"),
        ("background", &["sh", "-c", "sleep 1000 &"], "have the program stay in the foreground"),
        ("unix", &["/usr/bin/python3", "-c", AT_UNIX], "but on the Unix socket /tmp/app.sock"),
        ("plain", &["./readme"], "is not executable: run `chmod +x "),
    ];
    let documents: String = programs.iter().map(|(name, command, _)| function(name, command, spec)).collect();
    let mut mesh = start("strict", &documents);
    for (name, _, fix) in programs {
        mesh.wait_for(fix, |mesh| {
            assert_eq!(status(mesh, name), 503);
            mesh.output().iter().any(|line| line.contains(fix) && line.contains(&format!("function=test/{name}")))
        });
        let listed = text(&mesh.leno(&["get", "events", "--json"]));
        assert!(listed.contains(fix), "{name}: {listed}");
    }
    let checked = text(&mesh.leno(&["check", mesh.folder.path().to_str().unwrap()]));
    assert!(checked.contains("is not executable"), "{checked}");
}

#[test]
fn a_program_with_other_ports_only_is_ready_when_it_listens_there() {
    let server = "import socketserver; H = type('H', (socketserver.BaseRequestHandler,), {'handle': lambda s: s.request.sendall(b'hello')}); \
                  socketserver.TCPServer(('127.0.0.1', 7000), H).serve_forever()";
    let client = "import http.server, os, socket\nclass H(http.server.BaseHTTPRequestHandler):\n  def do_GET(self):\n    \
                  said = socket.create_connection(('server', 7000)).recv(99)\n    self.send_response(200); self.end_headers(); self.wfile.write(said)\n\
                  http.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), H).serve_forever()";
    let of = |name: &str, script: &str, spec: &str| {
        let command = serde_json::to_string(&["/usr/bin/python3", "-c", script]).unwrap();
        let spec = format!("  command: {command}\n  workingDirectory: public\n  timeouts: {{startup: 60s}}\n{spec}");
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test}}\nspec:\n{spec}\n"
        ) + &policy(&format!("{name}-in"), name, &format!("  sidecar: {{deadline: 100ms}}\n{ALLOW_ALL}"))
    };
    let documents = of("server", server, "  callees: []\n  ports: [{port: 7000, splice: false}]")
        + &of("client", client, "  callees: [server]\n  expose: [{hosts: [client.example], path: /}]");
    let mut mesh = start("strict", &documents);
    mesh.wait_for("the server", |mesh| mesh.instances("test/server").iter().any(|row| row["state"] == "ready"));
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: without root, only connections to port 80 are intercepted");
        return;
    }
    let answer = mesh.curl("/", &["--header", "host: client.example"]);
    assert_eq!((answer.status, &*answer.body), (200, "hello"), "{:?}", mesh.output());
}
