//! `leno-bench sandbox`: the cost of one sidecar.
//!
//! A *run* is the proxy's work for a request whose decision it does not remember: take a sandbox,
//! encode the input into it, run the program from its snapshot, decode and validate the output, erase
//! everything the run wrote.

mod extension;
mod nine;

use crate::machine;
use crate::report::Report;
use crate::sample::Sample;
use anyhow::{Context, ensure};
use leno_policy::engine::EngineKind;
use leno_policy::input::RequestInput;
use leno_policy::outcome::{Output, Verdict};
use leno_policy::spec::ProgramSpec;
use leno_sandbox::{Engine, Image, Pool};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Long enough for a run to end even when the machine is busy with something else.
const DEADLINE: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to write the figures.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A tenth of the runs: for a look, not for a figure.
    #[arg(long)]
    quick: bool,
}

/// How often each thing is measured.
struct Counts {
    runs: usize,
    inits: usize,
    programs: usize,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let share = if arguments.quick { 10 } else { 1 };
    let counts = Counts { runs: 50_000 / share, inits: 2_000 / share, programs: 1_000 / share };
    let machine = machine::describe();
    println!("machine: {machine}");
    let mut report = Report::default();
    let inline = measure(&Engine::inline(), &counts, &mut report)?;
    for engine in [Engine::microvm(), Engine::wasm()] {
        match engine {
            Ok(engine) => {
                let output = measure(&engine, &counts, &mut report)?;
                ensure!(output == inline, "{} and inline do not say the same", engine.kind());
            }
            Err(reason) => println!("not measured: {reason}"),
        }
    }
    extension::measure(&counts, &mut report)?;
    match &arguments.json {
        Some(path) => report.write(machine, path),
        None => Ok(()),
    }
}

/// Measures one engine. Returns its verdict on the request, for comparison.
fn measure(engine: &Engine, counts: &Counts, report: &mut Report) -> anyhow::Result<Output> {
    let kind = engine.kind();
    let request = nine::Request::new();
    let input = request.input();
    let image = load(engine, &nine::program("orders/order-service"))?;
    let mut pool = Pool::new();
    let output = pool.run(&image, &input, DEADLINE)?;
    ensure!(
        matches!(&output, Output::Decided(decision) if matches!(decision.verdict, Verdict::Allow { .. })),
        "the request is not allowed: {output:?}"
    );

    println!("\n{kind}");
    let runs = time_runs(&mut pool, &image, &input, counts.runs)?;
    add(report, &kind.to_string(), &runs, "nine policies, head of 1 KiB");
    let empty = load(engine, &nine::empty("orders/order-service"))?;
    let runs = time_runs(&mut pool, &empty, &nine::bare_request(), counts.runs)?;
    add(report, &format!("{kind}_empty"), &runs, "no policies, smallest input");
    if kind == EngineKind::Inline {
        return Ok(output);
    }

    let inits = time_inits(engine, &mut pool, &input, counts.inits)?;
    add(report, &format!("{kind}_init"), &inits, "a program never seen: encode, load, first run");
    let resident = program_memory(engine, counts.programs)?;
    println!("  each further program: {resident:.0} bytes of resident memory ({} by its own count)", image.bytes());
    report.add(&format!("{kind}_program_bytes"), resident);
    report.add(&format!("{kind}_image_bytes"), image.bytes() as f64);
    if kind == EngineKind::Microvm {
        // The figures that name no engine are those of the default one.
        report.add("init_p50_us", inits.micros(0.5));
        report.add("init_p99_us", inits.micros(0.99));
        report.add("program_bytes", resident);
    }
    Ok(output)
}

fn add(report: &mut Report, name: &str, sample: &Sample, what: &str) {
    let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| sample.micros(share));
    println!("  {what}: p50 {p50:.2} us, p90 {p90:.2} us, p99 {p99:.2} us");
    report.add(&format!("{name}_p50_us"), p50);
    report.add(&format!("{name}_p99_us"), p99);
}

fn load(engine: &Engine, spec: &ProgramSpec) -> anyhow::Result<Image> {
    Ok(engine.load(&leno_sandbox::encode(spec)?)?)
}

fn time_runs(pool: &mut Pool, image: &Image, input: &RequestInput<'_>, count: usize) -> anyhow::Result<Sample> {
    Sample::of(count, || pool.run(image, input, DEADLINE).map(drop)).context("a run failed")
}

fn time_inits(engine: &Engine, pool: &mut Pool, input: &RequestInput<'_>, count: usize) -> anyhow::Result<Sample> {
    let mut times = Vec::with_capacity(count);
    for index in 0..count {
        let spec = nine::program(&format!("orders/service-{index}"));
        let start = Instant::now();
        let image = load(engine, &spec)?;
        pool.run(&image, input, DEADLINE)?;
        times.push(start.elapsed());
    }
    Ok(Sample::new(times))
}

/// Resident memory that each of many different programs adds.
fn program_memory(engine: &Engine, count: usize) -> anyhow::Result<f64> {
    let specs: Vec<_> = (0..count)
        .map(|index| leno_sandbox::encode(&nine::program(&format!("orders/service-{index}"))))
        .collect::<Result<_, _>>()?;
    let mut images = Vec::with_capacity(count);
    let before = resident_memory()?;
    for spec in &specs {
        images.push(engine.load(spec)?);
    }
    let after = resident_memory()?;
    Ok((after as f64 - before as f64) / images.len() as f64)
}

/// Resident memory of this process in bytes.
fn resident_memory() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = status.lines().find_map(|line| line.strip_prefix("Rss:")).context("the kernel does not say Rss")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}
