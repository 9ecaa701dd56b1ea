//! The cost of a user-written policy: a fresh instance of each example module started, shown a
//! request, and dropped.

use super::{Counts, DEADLINE, add, nine};
use crate::report::Report;
use crate::sample::Sample;
use anyhow::{Context, ensure};
use leno_sandbox::extension::{
    Extensions, Headers, Module, Outcome, Plugin, Request, Run, RunInputs, Settings, SharedData,
};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// The examples: language, file, name of the extension, configuration.
const EXAMPLES: [(&str, &str, &str, &str); 3] = [
    ("rust", "tenant.wasm", "tenant", "acme = gold\ntiny = free\n"),
    ("cpp", "count.wasm", "count", ""),
    ("assemblyscript", "maintenance.wasm", "maintenance", "off"),
];

/// Measures the examples whose tools are here.
pub(super) fn measure(counts: &Counts, report: &mut Report) -> anyhow::Result<()> {
    println!("\nextensions");
    let engine = Extensions::new()?;
    for (language, file, name, configuration) in EXAMPLES {
        let Some(bytes) = build(language, file)? else { continue };
        let begin = Instant::now();
        let module = engine.compile(&bytes)?;
        let compiled = begin.elapsed().as_secs_f64() * 1e3;
        println!("  {language}: {} bytes, compiled in {compiled:.1} ms", bytes.len());
        report.add(&format!("extension_{language}_compile_ms"), compiled);
        let plugin = start(&module, name, configuration)?;
        let how = if plugin.is_copied() { "copied" } else { "started anew" };
        let inits = Sample::of(counts.inits, || start(&module, name, configuration).map(drop))?;
        add(report, &format!("extension_{language}_start"), &inits, "configured and started");
        let runs = time_runs(&plugin, counts.runs)?;
        add(report, &format!("extension_{language}"), &runs, &format!("fresh instance ({how}), request's head, end"));
    }
    Ok(())
}

fn start(module: &Module, name: &str, configuration: &str) -> anyhow::Result<Plugin> {
    let name = format!("bench/extensions/{name}");
    let settings = Settings::new("orders/order-service", &name, configuration.into(), 8 << 20, DEADLINE);
    Ok(Plugin::start(module, settings)?)
}

fn time_runs(plugin: &Plugin, count: usize) -> anyhow::Result<Sample> {
    let shared: Arc<SharedData> = Arc::default();
    let sample = nine::Request::new();
    let mut random = 0;
    Sample::of(count, || {
        random += 1;
        let given = RunInputs { now_ms: 1_800_000_000_000, random, shared: shared.clone() };
        let mut run = Run::start(plugin, given, plugin.deadline())?;
        let outcome = run.request(shown(&sample))?;
        run.end()?;
        ensure!(matches!(outcome, Outcome::Continue(_)), "the request does not go on: {outcome:?}");
        Ok(())
    })
}

/// The request of the other figures, for a tenant that the example knows. Making it is part of the
/// proxy's work.
fn shown(sample: &nine::Request) -> Request {
    let input = sample.input();
    let mut fields: Headers = sample.headers().iter().map(|header| (header.name, header.value)).collect();
    fields.push(b"x-tenant", b"acme");
    Request {
        method: input.method.to_owned(),
        scheme: "http",
        authority: input.authority.to_owned(),
        path: input.path.to_owned(),
        protocol: "HTTP/1.1",
        fields,
        bodiless: true,
        id: "00000000-0000-4000-8000-000000000000".to_owned(),
        source: (nine::ADDRESS, 40_000).into(),
        port: input.port,
        identity: input.peer.identity.map(Into::into),
        target: input.target.into(),
    }
}

/// A module of `examples/extensions`; `None`: its tools are missing here, which the output states.
fn build(language: &str, file: &str) -> anyhow::Result<Option<Vec<u8>>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = Command::new(root.join("examples/extensions/build")).arg(language).output()?;
    let said = String::from_utf8_lossy(&built.stderr);
    match built.status.code() {
        Some(0) => {
            let path = root.join("target/extensions").join(file);
            Ok(Some(std::fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?))
        }
        Some(77) => {
            println!("  not measured: {}", said.trim());
            Ok(None)
        }
        _ => anyhow::bail!("{language}: {said}"),
    }
}
