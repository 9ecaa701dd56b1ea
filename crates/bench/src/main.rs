//! `leno-bench`: measurements of Leno, one subcommand each. Every one prints a table and, with
//! `--json FILE`, writes its figures as `{"figures": {name: number, ...}, "machine": {...}}`.
#![forbid(unsafe_code)]

mod ablation;
mod affinity;
mod arguments;
mod azure;
mod chains;
mod coldstart;
mod containers;
mod contenders;
mod control;
mod cpu;
mod dashboard;
mod density;
mod hop;
mod hostile;
mod instance;
mod instructions;
mod kubernetes;
mod load;
mod machine;
mod material;
mod metrics;
mod neighbours;
mod node;
mod policies;
mod proxy_under_test;
mod relay;
mod report;
mod rig;
mod routes;
mod sample;
mod sandbox;
mod sinks;
mod slow_registry;
mod smoke;
mod start;
mod statistics;
mod syscalls;
mod trial;
mod upstream;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "leno-bench", about = "Measures Leno on this machine")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// One sidecar: a fresh sandbox started, run and reset, on every engine; and the cost of a
    /// program.
    Sandbox(sandbox::Arguments),
    /// A whole hop: Envoy and Leno with no policies and with all nine, side by side before the same
    /// upstream.
    Hop(hop::Arguments),
    /// The cost of each policy by itself, and the saving of all nine without it.
    Ablation(arguments::Plain),
    /// Memory and CPU of a node with many functions, and of one Envoy for each.
    Density(density::Arguments),
    /// One tenant at full blast, and its effect on another one.
    Neighbours(neighbours::Arguments),
    /// From a function never seen to its first judged request, and from nothing to Envoy's first.
    Coldstart(arguments::Plain),
    /// A node with ten functions: from the start of its process to its first answer, and its memory
    /// at rest; the same of an Envoy.
    Start(start::Arguments),
    /// A trace of Azure Functions through no mesh, Leno, and an Envoy for each instance: slowdown
    /// of each invocation.
    Azure(azure::Arguments),
    /// Functions that start: the time that the mesh adds, starts a second, and the instances that a
    /// flood of denied requests starts.
    Functions(arguments::Plain),
    /// Instructions of the node per request: the same on a busy machine as on an idle one.
    Instructions(instructions::Arguments),
    /// Functions that are container images: cold starts beside the bare runtime, warm requests
    /// beside a process.
    Containers(containers::Arguments),
    /// A shop of ten functions that call each other through the memory of a chain, through HTTP
    /// with the same policies, and without a mesh.
    Chains(chains::Arguments),
    /// Control plane: updates of nodes, their latency and their cost with up to 10,000 functions on
    /// 100 nodes.
    Control(control::Arguments),
    /// Leno in a Kubernetes cluster, as root: 10,000 pods on 100 fake nodes, and two real nodes with
    /// real pods.
    Kubernetes(kubernetes::Arguments),
    /// The processor time that open pages of the dashboard take of a control plane under load.
    Dashboard(dashboard::Arguments),
    /// A gateway with up to 1,000 routes on one host, the match last: Envoy and Leno with the same
    /// routes.
    Routes(arguments::Plain),
    /// In under two minutes, for CI: whether the hot path has become slower.
    Smoke(smoke::Arguments),
    /// (part of the others) A service that does nothing, fast.
    #[command(hide = true)]
    Upstream(upstream::Arguments),
    /// (part of the others) An OTLP collector and a rate limit service.
    #[command(hide = true)]
    Sinks(sinks::Arguments),
    /// (part of the others) Sends requests by a plan on standard input.
    #[command(hide = true)]
    Load,
    /// (part of the others) Control plane and node in one process, as `leno up` has them.
    #[command(hide = true)]
    Node(node::Arguments),
    /// (part of the others) An instance of a function that calls another.
    #[command(hide = true)]
    Instance(instance::Arguments),
    /// (part of neighbours) An instance that takes resources without end.
    #[command(hide = true)]
    Hostile(hostile::Arguments),
    /// (part of neighbours) A registry that answers with a byte now and then.
    #[command(hide = true)]
    SlowRegistry(slow_registry::Arguments),
    /// (part of control) The control plane.
    #[command(hide = true)]
    ControlPlane(control::plane::Arguments),
    /// (part of containers) A small function as a process.
    #[command(hide = true)]
    Greeter,
    /// (part of azure) An instance that works for the time in each request.
    #[command(hide = true)]
    Function(azure::function::Arguments),
    /// (part of azure) The serverless layer without a mesh.
    #[command(hide = true)]
    Layer(azure::layer::Arguments),
    /// (part of azure) An instance with an Envoy before it.
    #[command(hide = true)]
    Sidecar(azure::sidecar::Arguments),
}

fn main() -> anyhow::Result<ExitCode> {
    // Before anything that could start a thread.
    if containers::stages::is_jailer() {
        return Ok(leno_jail::jailer::run());
    }
    let done = match Arguments::parse().command {
        Command::Sandbox(arguments) => sandbox::run(&arguments),
        Command::Hop(arguments) => hop::run(&arguments),
        Command::Ablation(arguments) => ablation::run(&arguments),
        Command::Density(arguments) => density::run(&arguments),
        Command::Routes(arguments) => routes::run(&arguments),
        Command::Neighbours(arguments) => neighbours::run(&arguments),
        Command::Coldstart(arguments) => coldstart::run(&arguments),
        Command::Start(arguments) => start::run(&arguments),
        Command::Azure(arguments) => azure::run(&arguments),
        Command::Functions(arguments) => azure::cycles::run(&arguments),
        Command::Instructions(arguments) => instructions::run(&arguments),
        Command::Greeter => containers::greeter::run(),
        Command::Containers(arguments) => containers::run(&arguments),
        Command::Chains(arguments) => chains::run(&arguments),
        Command::Control(arguments) => control::run(&arguments),
        Command::Kubernetes(arguments) => kubernetes::run(&arguments),
        Command::Dashboard(arguments) => dashboard::run(&arguments),
        Command::ControlPlane(arguments) => control::plane::run(&arguments),
        Command::Smoke(arguments) => smoke::run(&arguments),
        Command::Upstream(arguments) => upstream::run(&arguments),
        Command::Sinks(arguments) => sinks::run(&arguments),
        Command::Node(arguments) => node::run(&arguments),
        Command::Load => load::run(),
        Command::Instance(arguments) => instance::run(&arguments),
        Command::Hostile(arguments) => hostile::run(&arguments),
        Command::SlowRegistry(arguments) => slow_registry::run(&arguments),
        Command::Function(arguments) => azure::function::run(&arguments),
        Command::Layer(arguments) => azure::layer::run(&arguments),
        Command::Sidecar(arguments) => azure::sidecar::run(&arguments),
    };
    done.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_testkit::documentation::{commands, simple_commands};

    #[test]
    fn every_command_line_of_the_documentation_is_accepted() {
        for block in commands().0 {
            for words in block.lines.iter().flat_map(|line| simple_commands(line)) {
                if words[0].ends_with("/leno-bench")
                    && let Err(error) = Arguments::try_parse_from(&words)
                {
                    assert!(!error.use_stderr(), "{}:{}: {error}", block.page, block.line);
                }
            }
        }
    }
}
