//! The stages of a start in a jail, without the rest of the node.

use super::{TAG, greeter};
use crate::report::Report;
use crate::statistics::Figure;
use anyhow::Context;
use leno_ebpf::Interception;
use leno_files::FileAccess;
use leno_jail::{Container, Image, Jailer, Jails, ListenerGuard, Prepare};
use leno_oci::{Limits, Progress, Registries, Store};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The port at which the program listens in its jail.
const PORT: u16 = 8080;
/// The subcommand that is the jailer.
const JAILER: &str = "jailer";

/// Whether this process was started as the jailer.
pub(crate) fn is_jailer() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == JAILER)
}

/// Starts a jailer that keeps so many jails ready.
async fn open(ahead: usize) -> anyhow::Result<Jails> {
    let mut jailer = Command::new(std::env::current_exe()?);
    jailer.arg(JAILER).current_dir("/");
    Jails::open(Jailer::start(jailer)?, ahead, Some(prepare())).await.context("no jails can be made here")
}

/// Intercepts connections as `leno up` does: those to any port arrive at the node.
fn prepare() -> Prepare {
    Arc::new(|listeners, network| Some(ListenerGuard::new(Interception::begin(network, listeners.http.as_fd()).ok()?)))
}

/// Unpacks the image. Returns the folders of its layers.
pub(super) fn layers(folder: &Path, layout: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = Store::open(&folder.join("store"), Limits::default(), Registries::default())?;
    let image = runtime.block_on(async {
        let reference =
            store.reference(&format!("oci:{}:{TAG}", layout.display()))?.named_by("bench", &FileAccess::Any);
        let digest = store.resolve(&reference).await?;
        store.pull(&reference.with_digest(digest), &Progress::default()).await
    })?;
    Ok(image.layers())
}

pub(super) fn measure(folder: &Path, layout: &Path, starts: usize, report: &mut Report) -> anyhow::Result<()> {
    let layers = layers(folder, layout)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let stages = runtime.block_on(async {
        let jails = open(2).await?;
        let mut stages: [Vec<f64>; 3] = Default::default();
        for _ in 0..starts {
            // The jailer makes another jail meanwhile.
            tokio::time::sleep(Duration::from_millis(80)).await;
            let (output, theirs) = std::io::pipe()?;
            drop(output);
            let errors = OwnedFd::from(theirs.try_clone()?);
            let image = Image {
                layers: layers.clone(),
                entrypoint: ["/bin/function", greeter::SUBCOMMAND].map(str::to_owned).into(),
                user: "1000:1000".to_owned(),
                ..Image::default()
            };
            let environment = BTreeMap::from([("PORT".to_owned(), PORT.to_string())]);
            let container = Container { image, environment, hostname: "bench".to_owned(), ..Container::default() };
            let begin = Instant::now();
            let mut jail = jails.take_for_container().await?;
            let taken = begin.elapsed();
            jail.contain(container, theirs.into(), errors).await?;
            let begun = begin.elapsed();
            let dialer = jail.dialer();
            loop {
                if let Ok(mut stream) = dialer.connect(PORT).await {
                    stream.write_all(b"GET / HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n").await?;
                    stream.read_exact(&mut [0; 12]).await?;
                    break;
                }
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            let answered = begin.elapsed();
            let times = [taken, begun.saturating_sub(taken), answered.saturating_sub(begun)];
            stages.iter_mut().zip(times).for_each(|(stage, time)| stage.push(time.as_secs_f64() * 1e3));
            jail.end().await;
        }
        Ok::<_, anyhow::Error>(stages)
    })?;
    let names = ["container_jail_ms", "container_begin_ms", "container_answer_ms"];
    for (name, values) in names.into_iter().zip(stages) {
        report.add_figure(name, Figure::of(values, false).context("nothing was measured")?);
    }
    Ok(())
}
