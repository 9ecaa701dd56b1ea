//! Images for tests, and Debian's docker-registry to pull them from.

use leno_oci::layout::{Builder, Layer, push};
use leno_oci::{Digest, Reference, Registries, Registry};
use leno_testkit::free_port;
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// `user:secret`, with bcrypt.
const HTPASSWD: &str = "user:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n";

/// A real registry, on a port of the loopback interface. Dropping this ends it.
pub(crate) struct DockerRegistry {
    process: Child,
    pub host: String,
    pub folder: tempfile::TempDir,
}

impl DockerRegistry {
    /// Starts one without authentication.
    pub(crate) fn start() -> Self {
        Self::start_with(|_| String::new())
    }

    /// Starts one that only `user` with the password `secret` may use.
    pub(crate) fn start_private() -> Self {
        Self::start_with(|folder| {
            let users = folder.join("htpasswd");
            fs::write(&users, HTPASSWD).unwrap();
            format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", users.display())
        })
    }

    fn start_with(more: impl Fn(&Path) -> String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let host = format!("127.0.0.1:{port}");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp:\n  addr: {host}\n{}",
            folder.path().join("registry").display(),
            more(folder.path())
        );
        let config = folder.path().join("registry.yaml");
        fs::write(&config, text).unwrap();
        let log = File::create(folder.path().join("registry.log")).unwrap();
        let mut process = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("the package `docker-registry` (make setup)");
        let begin = Instant::now();
        while TcpStream::connect(&host).is_err() {
            let log = || fs::read_to_string(folder.path().join("registry.log")).unwrap();
            assert!(process.try_wait().unwrap().is_none(), "docker-registry ended: {}", log());
            assert!(begin.elapsed() < Duration::from_secs(60), "docker-registry does not listen: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { process, host, folder }
    }

    /// Pushes an image, and returns its digest. `name` is `repository:tag`.
    pub(crate) fn push(&self, image: &Builder, name: &str) -> Digest {
        let layout = tempfile::tempdir().unwrap();
        image.write(layout.path(), "pushed").unwrap();
        let to = Reference::parse(&format!("{}/{name}", self.host), None).unwrap();
        let password = leno_oci::Credentials::Basic { username: "user".into(), password: "secret".into() };
        let registry = Registry { insecure: true, credentials: Some(password), ..Registry::default() };
        let registries = Registries {
            registries: [(self.host.clone(), registry)].into(),
            proxies: Default::default(),
            ..Registries::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(push(layout.path(), "pushed", &to, registries)).unwrap()
    }

    /// Ends the registry early.
    pub(crate) fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An image of a program of this machine and its shared libraries.
pub(crate) fn image_of(program: &Path) -> Builder {
    let listed = Command::new("ldd").arg(program).output().unwrap();
    assert!(listed.status.success(), "ldd {}: {listed:?}", program.display());
    let listed = String::from_utf8(listed.stdout).unwrap();
    let libraries = listed.lines().filter_map(|line| {
        let path = line.split_once(" => ").map_or(line, |(_, path)| path).trim();
        path.starts_with('/').then(|| path.split(' ').next().unwrap().to_owned())
    });
    let libraries = libraries.fold(Layer::new(), |layer, path| layer.file(&path, PathBuf::from(&path), 0o755));
    let app = Layer::new().file("app/main", program.to_owned(), 0o755);
    Builder::new().layer(libraries).layer(app).entrypoint(&["/app/main"]).working_dir("/app")
}

/// An image with a shell and a web server, which serves the files in `/www`. `script` runs before.
pub(crate) fn busybox(script: &str) -> Builder {
    let serve = format!("{script}\nexec busybox httpd -f -h /www -p 127.0.0.1:$PORT\n");
    let mut layer = Layer::new().file("bin/busybox", PathBuf::from("/bin/busybox"), 0o755).folder("www", 0o777);
    for name in ["sh", "cat", "echo", "id", "sleep", "touch", "wget"] {
        layer = layer.symlink(&format!("bin/{name}"), "busybox");
    }
    let layer = layer.file("etc/passwd", "root:x:0:0::/:/bin/sh\nweb:x:33:33::/:/bin/sh\n", 0o644);
    Builder::new()
        .layer(layer)
        .layer(Layer::new().file("serve", serve.as_str(), 0o755))
        .entrypoint(&["/bin/sh", "/serve"])
}
