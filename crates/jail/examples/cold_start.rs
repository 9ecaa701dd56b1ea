//! How long a start takes, by stage: of a program of the machine, and of a container, each in a
//! jail that was made ahead; and of bursts of programs. Prints medians of 50.
//!
//! `cargo run --release -p leno-jail --example cold_start` as root, with the package `busybox-static`.

use leno_jail::{Container, Image, Jailer, Jails, Program};
use std::error::Error;
use std::fs;
use std::io::{PipeReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const STARTS: usize = 50;
/// Programs of a burst.
const BURST: usize = 12;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    if std::env::args().nth(1).as_deref() == Some("jailer") {
        return Ok(leno_jail::jailer::run());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure())?;
    Ok(ExitCode::SUCCESS)
}

async fn measure() -> Result<(), Box<dyn Error>> {
    let mut jailer = Command::new(std::env::current_exe()?);
    jailer.arg("jailer");
    let jails = Jails::open(Jailer::start(jailer)?, 2, None).await?;
    let folder = tempfile::tempdir()?;
    let layers = layers(folder.path())?;
    let mut stages = [const { Vec::new() }; 9];
    for _ in 0..STARTS {
        // Jails are made again after 20 milliseconds.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begin = Instant::now();
        let mut jail = jails.take().await?;
        let taken = begin.elapsed();
        let program = Program {
            argv: ["/bin/busybox", "echo", "answer"].map(str::to_owned).to_vec(),
            directory: "/usr".into(),
            ..Program::default()
        };
        let (output, theirs, errors) = outputs()?;
        jail.run(program, theirs, errors).await?;
        let begun = begin.elapsed();
        read(output).await.map_err(|error| error.to_string())?;
        for (stage, time) in [taken, begun, begin.elapsed()].into_iter().enumerate() {
            stages[stage].push(time);
        }
        jail.end().await;
        for (layers, first) in [(1, 3), (10, 6)].map(|(number, first)| (layers.get(..number).unwrap_or(&layers), first))
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let begin = Instant::now();
            let mut jail = jails.take_for_container().await?;
            let taken = begin.elapsed();
            let command = ["/bin/busybox", "echo", "answer"].map(str::to_owned).to_vec();
            let image = Image { layers: layers.to_vec(), command, ..Image::default() };
            let (output, theirs, errors) = outputs()?;
            jail.contain(Container { image, ..Container::default() }, theirs, errors).await?;
            let begun = begin.elapsed();
            read(output).await.map_err(|error| error.to_string())?;
            for (stage, time) in [taken, begun, begin.elapsed()].into_iter().enumerate() {
                stages[first + stage].push(time);
            }
            jail.end().await;
        }
    }
    let mut bursts = Vec::new();
    for _ in 0..STARTS {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let begin = Instant::now();
        let jails: Vec<_> = (0..BURST).map(|_| tokio::spawn(run(jails.clone()))).collect();
        for jail in jails {
            jail.await??;
        }
        bursts.push(begin.elapsed());
    }
    jails.close().await;
    println!("ms since the request, p50 of {STARTS}:  jail taken  program begun  first line");
    for (name, stages) in
        ["program", "container, 1 layer", "container, 10 layers"].into_iter().zip(stages.chunks_mut(3))
    {
        print!("{name:35}");
        for times in stages {
            times.sort_unstable();
            print!("  {:11.2}", times.get(times.len() / 2).copied().unwrap_or_default().as_secs_f64() * 1e3);
        }
        println!();
    }
    bursts.sort_unstable();
    println!(
        "{BURST} programs at once: {:.2}",
        bursts.get(STARTS / 2).copied().unwrap_or_default().as_secs_f64() * 1e3
    );
    Ok(())
}

/// Starts a program in a jail, until its first line.
async fn run(jails: Jails) -> std::io::Result<()> {
    let mut jail = jails.take().await.map_err(std::io::Error::other)?;
    let program = Program {
        argv: ["/bin/busybox", "echo", "answer"].map(str::to_owned).to_vec(),
        directory: "/usr".into(),
        ..Program::default()
    };
    let (output, theirs, errors) = outputs()?;
    jail.run(program, theirs, errors).await?;
    read(output).await.map_err(std::io::Error::other)?;
    jail.end().await;
    Ok(())
}

/// One layer with a busybox, and nine with a file.
fn layers(folder: &std::path::Path) -> std::io::Result<Vec<PathBuf>> {
    let layers: Vec<PathBuf> = (0..10).map(|number| folder.join(number.to_string())).collect();
    for (number, layer) in layers.iter().enumerate() {
        fs::create_dir_all(layer)?;
        fs::write(layer.join(format!("file-{number}")), "")?;
    }
    if let Some(first) = layers.first() {
        fs::create_dir(first.join("bin"))?;
        fs::copy("/bin/busybox", first.join("bin/busybox"))?;
        symlink("busybox", first.join("bin/sh"))?;
    }
    Ok(layers)
}

fn outputs() -> std::io::Result<(PipeReader, OwnedFd, OwnedFd)> {
    let (output, theirs) = std::io::pipe()?;
    let errors = theirs.try_clone()?;
    Ok((output, theirs.into(), errors.into()))
}

async fn read(mut output: PipeReader) -> Result<(), Box<dyn Error + Send + Sync>> {
    let read = tokio::task::spawn_blocking(move || {
        let mut line = [0; 7];
        output.read_exact(&mut line).map(|()| line)
    });
    if read.await?? == *b"answer\n" { Ok(()) } else { Err("no answer".into()) }
}
