//! Servers of the distribution as the documentation starts them, and what the mesh says of programs
//! that do not serve.

use super::programs::{SPEC, function, status, text};
use super::start;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, policy};
use std::fs;
use std::path::{Path, PathBuf};

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

/// The folder with the programs of the newest PostgreSQL.
fn postgres() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("postgres").exists()).max()
}

#[test]
fn databases_of_the_distribution_are_ready_at_their_ports() {
    let postgres = postgres();
    let path = postgres.as_deref().unwrap_or(Path::new("/usr/bin")).display();
    let memory = "  volumes: [{path: /data, size: 500Mi}]";
    let path = format!("{memory}\n  env: {{PATH: \"{path}:/usr/sbin:/usr/bin:/bin\"}}");
    let databases: [(&str, &[&str], u16, &str); 4] = [
        ("/usr/bin/redis-server", &["redis-server", "--protected-mode", "no"], 6379, ""),
        ("/usr/bin/memcached", &["memcached"], 11211, ""),
        (
            "/usr/lib/postgresql",
            &["sh", "-c", "[ -d /data/pg ] || initdb -D /data/pg; exec postgres -D /data/pg -k /tmp"],
            5432,
            &path,
        ),
        (
            "/usr/sbin/mariadbd",
            &[
                "sh",
                "-c",
                "[ -d /data/m ] || mariadb-install-db --datadir=/data/m; exec mariadbd --datadir=/data/m --socket=/tmp/m.sock",
            ],
            3306,
            &path,
        ),
    ];
    let present: Vec<_> = databases.into_iter().filter(|(program, ..)| is_installed(program)).collect();
    let of = |(_, command, port, spec): &(&str, &[&str], u16, &str)| {
        let spec =
            format!("  workingDirectory: public\n  ports: [{{port: {port}}}]\n  timeouts: {{startup: 120s}}\n{spec}");
        function(&format!("at-{port}"), command, &spec)
    };
    let mut mesh = start("strict", &present.iter().map(of).collect::<String>());
    for (program, _, port, _) in present {
        let function = format!("test/at-{port}");
        mesh.wait_for(program, |mesh| mesh.instances(&function).iter().any(|row| row["state"] == "ready"));
    }
}

#[test]
fn puma_and_php_fpm_behind_nginx_run() {
    let nginx = "pid /tmp/nginx.pid; error_log stderr; daemon off; events {}\nhttp { access_log /dev/stdout; client_body_temp_path /tmp/b; \
                 proxy_temp_path /tmp/p; fastcgi_temp_path /tmp/f; uwsgi_temp_path /tmp/u; scgi_temp_path /tmp/s; server { listen 8080; location / { \
                 fastcgi_pass unix:/tmp/fpm.sock; fastcgi_param SCRIPT_FILENAME FOLDER/index.php; fastcgi_param REQUEST_METHOD $request_method; } } }\n";
    let fpm = "[global]\nerror_log = /dev/stderr\npid = /tmp/fpm.pid\n[www]\nlisten = /tmp/fpm.sock\npm = static\npm.max_children = 2\n";
    let found = fs::read_dir("/usr/sbin").into_iter().flatten().flatten().map(|entry| entry.path());
    let found: Vec<PathBuf> = found
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("php-fpm")))
        .collect();
    let has_fpm = match found.first() {
        Some(_) => is_installed("/usr/sbin/nginx"),
        None => is_installed("/usr/sbin/php-fpm"),
    };
    let mut documents = String::new();
    if let Some(program) = found.first().filter(|_| has_fpm) {
        let script = format!("{} -y fpm.conf && exec nginx -c $PWD/nginx.conf", program.display());
        documents += &function("fpm", &["sh", "-c", &script], &format!("{SPEC}\n  port: 8080"));
    }
    let has_puma = is_installed("/usr/bin/puma");
    if has_puma {
        documents += &function("puma", &["puma", "-p", "$(PORT)"], SPEC);
    }
    let leno = std::process::Command::new(env!("CARGO_BIN_EXE_leno"));
    let mesh = Mesh::start_with_command(leno, &super::instances("strict"), &documents, |folder| {
        let public = folder.join("public");
        fs::create_dir(&public).unwrap();
        fs::write(public.join("nginx.conf"), nginx.replace("FOLDER", public.to_str().unwrap())).unwrap();
        fs::write(public.join("fpm.conf"), fpm).unwrap();
        fs::write(public.join("index.php"), "<?php echo 'hello from php';").unwrap();
        fs::write(public.join("config.ru"), "run ->(_) { [200, {}, ['hello from puma']] }\n").unwrap();
    });
    for (name, _) in [("fpm", has_fpm), ("puma", has_puma)].into_iter().filter(|(_, there)| *there) {
        assert_eq!(status(&mesh, name), 200, "{name}: {:?}", mesh.output());
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
