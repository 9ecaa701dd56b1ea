//! The functions as images: this program builds them reproducibly, and pushes them to a registry
//! that it starts. This needs no daemon and no Dockerfile.

use crate::Result;
use leno_oci::layout::{Builder, Layer, push};
use leno_oci::{Reference, Registries, Registry};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Attempts to reach the registry's port: half a minute.
const LOOKS: u32 = 600;
/// The user of all images, which is not root.
const USER: &str = "1000:1000";

/// A registry on the loopback interface. Dropping this ends it.
pub(crate) struct LocalRegistry {
    process: Child,
    pub host: String,
}

impl LocalRegistry {
    /// Starts one with its data in a new folder.
    pub(crate) async fn start(folder: &Path) -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            return Err("containers need a node that runs as root: run this as root, or without --containers".into());
        }
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        fs::create_dir(folder)?;
        let configuration = folder.join("registry.yaml");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: \"{}\"}}}}\nhttp: {{addr: \"{address}\"}}\n",
            folder.join("storage").display()
        );
        fs::write(&configuration, text)?;
        let log = File::create(folder.join("registry.log"))?;
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(&configuration)
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| format!("docker-registry: {error}; `make setup` installs it"))?;
        let mut registry = Self { process, host: address.to_string() };
        registry.listens(address, folder).await?;
        Ok(registry)
    }

    async fn listens(&mut self, address: SocketAddr, folder: &Path) -> Result<()> {
        for _ in 0..LOOKS {
            if let Some(status) = self.process.try_wait()? {
                let log = fs::read_to_string(folder.join("registry.log")).unwrap_or_default();
                return Err(format!("docker-registry ended: {status}: {log}").into());
            }
            if TcpStream::connect(address).is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err("docker-registry does not listen".into())
    }

    /// Makes an image of a program and pushes it. Returns its name in the registry.
    pub(crate) async fn push(&self, program: &Path, layouts: &Path) -> Result<String> {
        let name = program.file_name().and_then(|name| name.to_str()).ok_or("a program without a name")?;
        let layout = layouts.join(name);
        image(program, name)?.write(&layout, "1")?;
        let image = format!("{}/orders/{name}:1", self.host);
        let registry = Registry { insecure: true, ..Registry::default() };
        let registries = Registries {
            registries: [(self.host.clone(), registry)].into(),
            // There is no proxy between this program and its registry.
            proxies: Default::default(),
            ..Registries::default()
        };
        push(&layout, "1", &Reference::parse(&image, None)?, registries).await?;
        Ok(image)
    }
}

impl Drop for LocalRegistry {
    fn drop(&mut self) {
        // There is no remedy for a failure.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Two layers: the shared libraries of the program, which all images share, and the program.
fn image(program: &Path, name: &str) -> Result<Builder> {
    let ldd = Command::new("ldd").arg(program).output()?;
    if !ldd.status.success() {
        return Err(format!("ldd {}: {}", program.display(), String::from_utf8_lossy(&ldd.stderr)).into());
    }
    let listed = String::from_utf8_lossy(&ldd.stdout).into_owned();
    // `libc.so.6 => /lib/…/libc.so.6 (0x…)`, or `/lib64/ld-linux-x86-64.so.2 (0x…)`.
    let paths = listed.lines().filter_map(|line| {
        let path = line.split_once(" => ").map_or(line, |(_, path)| path).trim();
        path.split(' ').next().filter(|path| path.starts_with('/'))
    });
    let libraries = paths.fold(Layer::new(), |layer, path| layer.file(path, PathBuf::from(path), 0o755));
    let program = Layer::new().file(&format!("app/{name}"), program.to_owned(), 0o755);
    let entrypoint = format!("/app/{name}");
    Ok(Builder::new().layer(libraries).layer(program).entrypoint(&[&entrypoint]).working_dir("/app").user(USER))
}
