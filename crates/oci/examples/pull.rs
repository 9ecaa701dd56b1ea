//! Pulls an image into a store: `pull FOLDER REFERENCE [INSECURE-HOST]`. Prints where its layers are, how long it took and how much memory.

use leno_files::FileAccess;
use leno_oci::{Limits, Progress, Registries, Registry, Store};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, reference, insecure @ ..] = &arguments[..] else {
        return Err("expected: pull FOLDER REFERENCE [INSECURE-HOST]".into());
    };
    let mut registries = Registries::default();
    for host in insecure {
        registries.registries.insert(host.clone(), Registry { insecure: true, ..Registry::default() });
    }
    let store = Store::open(Path::new(folder), Limits::default(), registries)?;
    let start = Instant::now();
    let reference = store.reference(reference)?.named_by("", &FileAccess::Any);
    let digest = store.resolve(&reference).await?;
    let progress = Progress::default();
    let image = store.pull(&reference.with_digest(digest), &progress).await?;
    println!("{digest} in {:.3} s: {:?}", start.elapsed().as_secs_f64(), progress.snapshot());
    for layer in image.layers() {
        println!("{}", layer.display());
    }
    Ok(())
}
