//! An image of 200 MiB from a registry on this machine to folders.

use crate::ports::free_addresses;
use crate::report::Report;
use crate::statistics::Figure;
use anyhow::{Context, ensure};
use leno_oci::layout::{Builder, Layer, push};
use leno_oci::{Limits, Progress, Registries, Registry, Store};
use rand::{RngExt, SeedableRng};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Layers, and bytes of each.
const LAYERS: usize = 4;
const LAYER: usize = 50 << 20;
/// Files of a layer.
const FILES: usize = 200;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A registry that ends with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn measure(folder: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let [address] = free_addresses()?;
    let _registry = start(folder, address)?;
    let layout = folder.join("large");
    write(&layout)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let registries = || {
        let mut registries = Registries::default();
        registries.registries.insert(address.to_string(), Registry { insecure: true, ..Registry::default() });
        registries
    };
    let name = format!("{address}/bench/large:1");
    let to = leno_oci::Reference::parse(&name, None)?;
    runtime.block_on(push(&layout, "large", &to, registries()))?;
    fs::remove_dir_all(&layout)?;
    let (mut own, mut reference, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let place = folder.join(format!("pull-{round}"));
        let begin = Instant::now();
        let store = Store::open(&place.join("store"), Limits::default(), registries())?;
        runtime.block_on(async {
            let reference = store.reference(&name)?;
            let digest = store.resolve(&reference).await?;
            store.pull(&reference.with_digest(digest), &Progress::default()).await
        })?;
        let one = begin.elapsed().as_secs_f64();
        drop(store);
        let begin = Instant::now();
        let copy = place.join("copy");
        let copied = format!("oci:{}:large", copy.display());
        program("skopeo", &["copy", "--quiet", "--src-tls-verify=false", &format!("docker://{name}"), &copied])?;
        let unpacked = place.join("unpacked");
        let image = format!("{}:large", copy.display());
        program("umoci", &["unpack", "--image", &image, &unpacked.display().to_string()])?;
        rustix::fs::sync();
        let other = begin.elapsed().as_secs_f64();
        own.push(one);
        reference.push(other);
        ratio.push(one / other);
        fs::remove_dir_all(&place)?;
    }
    for (name, values) in [("pull_s", own), ("pull_reference_s", reference), ("pull_vs_reference", ratio)] {
        report.add_figure(name, Figure::of(values, false).context("nothing was measured")?);
    }
    Ok(())
}

fn program(name: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(name).args(arguments).output();
    let output = output.with_context(|| format!("{name} cannot be started (package {name})"))?;
    ensure!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Bytes that nothing can compress.
fn write(layout: &Path) -> anyhow::Result<()> {
    let mut random = rand::rngs::StdRng::seed_from_u64(20);
    let mut builder = Builder::new().cmd(&["/nothing"]);
    for layer in 0..LAYERS {
        let mut files = Layer::new();
        for file in 0..FILES {
            let mut bytes = vec![0; LAYER / FILES];
            random.fill(&mut bytes[..]);
            files = files.file(&format!("data/{layer}/{file}"), bytes, 0o644);
        }
        builder = builder.layer(files);
    }
    builder.write(layout, "large")?;
    Ok(())
}

fn start(folder: &Path, address: SocketAddr) -> anyhow::Result<Server> {
    let config = folder.join("registry.yml");
    let data = folder.join("registry");
    let text = format!(
        "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: \"{}\"}}}}\nhttp: {{addr: \"{address}\"}}\n",
        data.display()
    );
    fs::write(&config, text)?;
    let child = Command::new("docker-registry")
        .arg("serve")
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("docker-registry cannot be started (package docker-registry)")?;
    let server = Server(child);
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() {
        ensure!(begin.elapsed() < TIMEOUT, "docker-registry does not listen after {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(server)
}
