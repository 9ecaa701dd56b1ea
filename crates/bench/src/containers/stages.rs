//! A start in a room by stage, without the rest of the node.

use super::TAG;
use crate::path;
use crate::report::Report;
use crate::statistics::Figure;
use anyhow::Context;
use leno_files::FileAccess;
use leno_jail::{Container, Image};
use leno_oci::{Limits, Progress, Registries, Store};
use std::collections::BTreeMap;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Where the program listens in its room.
const PORT: u16 = 8080;

/// The layers of the image, unpacked: of what `measure` and `bare` have in common.
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
        let rooms = path::open(2).await?;
        let mut stages: [Vec<f64>; 3] = Default::default();
        for _ in 0..starts {
            // For the room that is made again.
            tokio::time::sleep(Duration::from_millis(80)).await;
            let (output, theirs) = std::io::pipe()?;
            drop(output);
            let errors = OwnedFd::from(theirs.try_clone()?);
            let image = Image {
                layers: layers.clone(),
                entrypoint: ["/bin/function", crate::pipeline::greeter::SUBCOMMAND].map(str::to_owned).into(),
                user: "1000:1000".to_owned(),
                ..Image::default()
            };
            let environment = BTreeMap::from([("PORT".to_owned(), PORT.to_string())]);
            let container = Container { image, environment, hostname: "bench".to_owned(), ..Container::default() };
            let begin = Instant::now();
            let mut room = rooms.take_for_container().await?;
            let taken = begin.elapsed();
            room.contain(container, theirs.into(), errors).await?;
            let begun = begin.elapsed();
            let inside = room.dialer();
            loop {
                if let Ok(mut stream) = inside.connect(PORT).await {
                    stream.write_all(b"GET / HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n").await?;
                    stream.read_exact(&mut [0; 12]).await?;
                    break;
                }
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            let answered = begin.elapsed();
            let times = [taken, begun.saturating_sub(taken), answered.saturating_sub(begun)];
            stages.iter_mut().zip(times).for_each(|(stage, time)| stage.push(time.as_secs_f64() * 1e3));
            room.end().await;
        }
        Ok::<_, anyhow::Error>(stages)
    })?;
    let names = ["container_room_ms", "container_begin_ms", "container_answer_ms"];
    for (name, values) in names.into_iter().zip(stages) {
        report.add_figure(name, Figure::of(values, false).context("nothing was measured")?);
    }
    Ok(())
}
