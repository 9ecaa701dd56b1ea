//! The contenders: the same functions, with five ways for their calls.

use super::load;
use crate::affinity::Cores;
use crate::contenders::listeners;
use crate::metrics;
use crate::proxy_under_test::Proxy;
use anyhow::{Context, ensure};
use leno_testkit::Process;
use leno_testkit::free_addresses;
use leno_testkit::process::tree;
use serde::Deserialize;
use serde_json::json;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Where sidecars run.
pub(super) const ENGINE: &str = "wasm";
/// The node's counters of a chain: bytes of bodies copied into it, copied out of it, and handed
/// over inside.
pub(super) const COUNTERS: [&str; 3] =
    ["leno_chain_copied_in_bytes_total", "leno_chain_copied_out_bytes_total", "leno_chain_shared_bytes_total"];
/// The label of the shop's chain.
pub(super) const CHAIN: &str = "chain=\"shop/shop\"";

const TIMEOUT: Duration = Duration::from_secs(60);
/// Texts in the example's documents that the benchmark replaces.
const FOLDER: &str = "workingDirectory: ../../../../target/release";
const TRANSPORT: &str = "env: {BOUTIQUE_TRANSPORT: chain}";
const PROTOCOL: &str = "protocol: chain";
const SPEC: &str = "spec:\n";
const CONCURRENCY: &str = "  concurrency: 32\n";
const PATHS: &str = "      to: [{methods: [POST], paths: [/boutique.v1.";
/// The shop, and the two functions that measure a hop. The last of each is the Chain document.
const DOCUMENTS: [[&str; 3]; 2] = [
    [
        include_str!("../../../../examples/boutique/mesh/shop/functions.yaml"),
        include_str!("../../../../examples/boutique/mesh/shop/policies.yaml"),
        include_str!("../../../../examples/boutique/mesh/shop/chain.yaml"),
    ],
    [
        include_str!("../../../../examples/boutique/mesh/hop/functions.yaml"),
        include_str!("../../../../examples/boutique/mesh/hop/policies.yaml"),
        include_str!("../../../../examples/boutique/mesh/hop/chain.yaml"),
    ],
];
const FUNCTIONS: [&str; 12] = [
    "frontend",
    "currency",
    "productcatalog",
    "cart",
    "recommendation",
    "shipping",
    "checkout",
    "payment",
    "email",
    "ad",
    "caller",
    "echo",
];

/// A way for the functions' calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// Memory of a chain.
    Chain,
    /// The same, with rules about the caller only, so that the kernel judges.
    Direct,
    /// HTTP/1.1 through the node.
    Http,
    /// HTTP/1.1 from process to process.
    Plain,
    /// gRPC from process to process.
    Grpc,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Chain, Self::Direct, Self::Http, Self::Plain, Self::Grpc];

    /// As in the names of figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Direct => "direct",
            Self::Http => "http",
            Self::Plain => "plain",
            Self::Grpc => "grpc",
        }
    }

    /// On the way of a message from one function to another.
    pub(super) fn sockets(self) -> u32 {
        match self {
            Self::Chain | Self::Direct => 0,
            Self::Http => 2,
            Self::Plain | Self::Grpc => 1,
        }
    }

    /// On the way of a message from the client to the first function.
    pub(super) fn sockets_at_the_edge(self) -> u32 {
        match self {
            Self::Http => 2,
            Self::Chain | Self::Direct | Self::Plain | Self::Grpc => 1,
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the programs are.
pub(super) struct Programs {
    pub leno: PathBuf,
    pub boutique: PathBuf,
}

/// The program with all functions.
pub(super) fn find_boutique(path: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match path {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("boutique"),
    };
    ensure!(path.is_file(), "there is no {}: `cargo build --profile dist -p boutique` makes it", path.display());
    Ok(path.canonicalize()?)
}

/// Functions that run, with a node or without one. All of it ends when this is dropped.
pub(super) struct Running {
    pub kind: Kind,
    /// Where the shop's pages are.
    pub shop: SocketAddr,
    /// Where the function is that measures a hop.
    hops: SocketAddr,
    /// Of the node.
    admin: Option<SocketAddr>,
    node: Option<Proxy>,
    /// Without a node, with their addresses.
    functions: Vec<(SocketAddr, Process)>,
}

/// The results of the calling function.
#[derive(Deserialize)]
pub(super) struct Hop {
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Running {
    pub(super) fn start(programs: &Programs, cores: Cores, folder: &Path, kind: Kind) -> anyhow::Result<Self> {
        let running = match kind {
            Kind::Chain | Kind::Direct | Kind::Http => Self::with_node(programs, cores, folder, kind)?,
            Kind::Plain | Kind::Grpc => Self::without_node(programs, cores, kind)?,
        };
        let begin = Instant::now();
        for (address, host, path) in
            [(running.shop, "shop.example", "/"), (running.hops, "hop.example", "/hops?calls=1&bytes=1")]
        {
            loop {
                let answer = load::get(address, host, path);
                if answer.as_ref().is_ok_and(|(status, _)| *status == 200) {
                    break;
                }
                ensure!(begin.elapsed() < TIMEOUT, "{path} is answered with {answer:?}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(running)
    }

    fn with_node(programs: &Programs, cores: Cores, folder: &Path, kind: Kind) -> anyhow::Result<Self> {
        let (folder, listeners) = (folder.join(kind.name()), listeners()?);
        fs::create_dir(&folder)?;
        let token = folder.with_extension("token");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&token)?;
        file.write_all(metrics::TOKEN.as_bytes())?;
        let mesh = json!({
            "apiVersion": "leno.dev/v1alpha1",
            "kind": "Mesh",
            "metadata": {"name": "bench"},
            "spec": {
                "trustDomain": "boutique.example",
                "engine": ENGINE,
                "instances": {"accounts": "node"},
                "gateway": {"http": listeners.gateway},
                "listeners": {"outbound": listeners.outbound, "inbound": listeners.inbound, "admin": listeners.admin, "adminToken": token, "control": listeners.control},
            },
        });
        fs::write(folder.join("mesh.yaml"), mesh.to_string())?;
        let programs_at = programs.boutique.parent().context("a program is in a folder")?;
        for (number, [functions, policies, chain]) in DOCUMENTS.iter().enumerate() {
            for known in [FOLDER, TRANSPORT, PROTOCOL] {
                ensure!(functions.contains(known), "the example's documents do not say `{known}`");
            }
            let mut functions = functions.replace(FOLDER, &format!("workingDirectory: {}", programs_at.display()));
            let mut policies = (*policies).to_owned();
            if kind == Kind::Direct {
                // The kernel does not know paths, nor how many calls an instance has at a time.
                policies =
                    policies.lines().filter(|line| !line.starts_with(PATHS)).flat_map(|line| [line, "\n"]).collect();
                functions = functions.replace(CONCURRENCY, "");
                ensure!(chain.contains(SPEC), "the example's chains do not say `{SPEC}`");
                fs::write(folder.join(format!("chain-{number}.yaml")), chain.replace(SPEC, "spec:\n  direct: true\n"))?;
            } else if kind == Kind::Chain {
                fs::write(folder.join(format!("chain-{number}.yaml")), chain)?;
            } else {
                functions = functions.replace(TRANSPORT, "env: {BOUTIQUE_TRANSPORT: http}");
                functions = functions.replace(PROTOCOL, "protocol: http1");
            }
            fs::write(folder.join(format!("functions-{number}.yaml")), functions)?;
            fs::write(folder.join(format!("policies-{number}.yaml")), policies)?;
        }
        let node = Proxy::leno(&programs.leno, cores, &folder, listeners.admin)?;
        Ok(Self {
            kind,
            shop: listeners.gateway,
            hops: listeners.gateway,
            admin: Some(listeners.admin),
            node: Some(node),
            functions: Vec::new(),
        })
    }

    fn without_node(programs: &Programs, cores: Cores, kind: Kind) -> anyhow::Result<Self> {
        let addresses: [SocketAddr; FUNCTIONS.len()] = free_addresses();
        let direct: Vec<_> = FUNCTIONS.iter().zip(addresses).map(|(name, at)| format!("{name}={at}")).collect();
        let transport = if kind == Kind::Grpc { "grpc" } else { "http" };
        let find = |name: &str| FUNCTIONS.iter().position(|known| *known == name).map(|place| addresses[place]);
        let mut running = Self {
            kind,
            shop: find("frontend").context("there is a frontend")?,
            hops: find("caller").context("there is a caller")?,
            admin: None,
            node: None,
            functions: Vec::new(),
        };
        for (name, address) in FUNCTIONS.iter().zip(addresses) {
            let mut command = Command::new(&programs.boutique);
            command.arg(name).stdin(Stdio::null()).env_remove("HTTP_PROXY");
            command.env("PORT", address.port().to_string()).env("BOUTIQUE_TRANSPORT", transport);
            let process = cores.spawn_proxy(command.env("BOUTIQUE_DIRECT", direct.join(",")), Process::spawn)?;
            running.functions.push((address, process));
        }
        let begin = Instant::now();
        for address in addresses {
            while TcpStream::connect(address).is_err() {
                ensure!(begin.elapsed() < TIMEOUT, "a function does not start");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(running)
    }

    /// Node and functions.
    pub(super) fn pids(&self) -> Vec<u32> {
        let node = self.node.as_ref().map(Proxy::pids).unwrap_or_default();
        node.into_iter().chain(self.functions.iter().map(|(_, process)| process.pid())).flat_map(tree).collect()
    }

    /// The node's metrics.
    pub(super) fn metrics(&self) -> Option<String> {
        metrics::get(self.admin?)
    }

    /// So many calls from one function to another, one after the other.
    pub(super) fn hops(&self, calls: usize, bytes: usize) -> anyhow::Result<Hop> {
        let (status, body) = load::get(self.hops, "hop.example", &format!("/hops?calls={calls}&bytes={bytes}"))?;
        ensure!(status == 200, "the hops are answered with {status}");
        Ok(serde_json::from_slice(&body)?)
    }

    /// Calls between functions for each request of the shop's pages, since the start, as the
    /// functions count them. Only functions that speak HTTP/1.1 with any client report it.
    pub(super) fn calls_per_request(&self) -> anyhow::Result<f64> {
        let count = |(address, _): &(SocketAddr, Process)| {
            let (_, body) = load::get(*address, "function", "/calls")?;
            Ok(std::str::from_utf8(&body)?.parse::<u64>()?)
        };
        let counts: Vec<u64> = self.functions.iter().map(count).collect::<anyhow::Result<_>>()?;
        // The shop's functions come first.
        let [pages, calls @ ..] = &counts[..10] else { anyhow::bail!("there are ten functions") };
        Ok(calls.iter().sum::<u64>() as f64 / *pages as f64)
    }
}
