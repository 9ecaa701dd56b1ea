//! The contenders: no proxy, Envoys and Lenos with different policies, all before the same
//! upstream.

use crate::load::{Outcome, Pace, Plan, Protocol, Request, Tls};
use crate::material::HOST;
use crate::policies::{Algorithm, Limit, Policies};
use crate::proxy_under_test::envoy::Sidecar;
use crate::proxy_under_test::leno::{Caller, Listeners, Mesh, host_of};
use crate::proxy_under_test::{Helper, Proxy};
use crate::rig::Rig;
use crate::trial::{Contender, HTTP1, HTTP2, Traffic, probe};
use anyhow::{Context, ensure};
use leno_testkit::free_addresses;
use leno_testkit::process;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest wait for something to work.
const TIMEOUT: Duration = Duration::from_secs(30);

/// One of those who are measured.
pub(crate) struct Running {
    name: String,
    proxy: Option<Proxy>,
    /// `leno-bench node` instead of a proxy.
    node: Option<Helper>,
    /// It speaks HTTP/2 and nothing else.
    http2_only: bool,
    /// Its instances count too.
    with_instances: bool,
    address: SocketAddr,
    tls: Option<Tls>,
    request: Request,
}

impl Contender for Running {
    fn name(&self) -> &str {
        &self.name
    }

    fn pids(&self) -> Vec<u32> {
        let proxies = self.proxy.as_ref().map(Proxy::pids).unwrap_or_default();
        let pids = proxies.into_iter().chain(self.node.as_ref().map(Helper::pid));
        if self.with_instances { pids.flat_map(process::tree).collect() } else { pids.collect() }
    }

    fn default_traffic(&self) -> Traffic {
        if self.http2_only { HTTP2 } else { HTTP1 }
    }

    fn plan(&self, traffic: Traffic, pace: Pace) -> Plan {
        let pace = if let Pace::Open(_) = pace { Pace::Open(traffic.rate) } else { pace };
        Plan {
            address: self.address,
            protocol: traffic.protocol,
            tls: self.tls.clone(),
            pace,
            connections: traffic.connections,
            streams: traffic.streams,
            warm_up_ms: 0,
            measured_ms: 0,
            request: self.request.clone(),
        }
    }
}

impl Running {
    /// Whether it can serve this traffic. The upstream itself speaks HTTP/1.1 only.
    pub(crate) fn accepts(&self, traffic: Traffic) -> bool {
        match traffic.protocol {
            Protocol::Http2 => self.proxy.is_some() || self.node.is_some(),
            Protocol::Http1 | Protocol::Fresh => !self.http2_only,
        }
    }

    /// Plain HTTP to this address, with whatever tokens the policies want.
    pub(crate) fn at(rig: &Rig, name: &str, address: SocketAddr, policies: Policies) -> anyhow::Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            proxy: None,
            node: None,
            http2_only: false,
            with_instances: false,
            address,
            tls: None,
            request: rig.material.request(policies.jwt.unwrap_or(Algorithm::Es256))?,
        })
    }

    /// Leno's gateway; with mutual TLS among the policies, by TLS.
    pub(crate) fn at_gateway(rig: &Rig, name: &str, listeners: Listeners, policies: Policies) -> anyhow::Result<Self> {
        let tls = policies.mtls.then(|| rig.material.client_tls(false));
        Ok(Self { tls, ..Self::at(rig, name, listeners.gateway, policies)? })
    }

    /// With the processor time of the instances that the node starts.
    pub(crate) fn with_instances(self) -> Self {
        Self { with_instances: true, ..self }
    }

    /// The output of the proxy.
    pub(crate) fn output(&self) -> String {
        self.proxy.as_ref().map(Proxy::output).unwrap_or_default()
    }

    /// With another request.
    pub(crate) fn asking(self, request: Request) -> Self {
        Self { request, ..self }
    }

    /// Requests have this header field too.
    pub(crate) fn add_header(&mut self, name: &str, value: &str) {
        self.request.headers.push((name.to_owned(), value.to_owned()));
    }

    /// With a proxy that was started already.
    pub(crate) fn behind(self, rig: &Rig, proxy: Proxy, policies: Policies) -> anyhow::Result<Self> {
        Self { proxy: Some(proxy), ..self }.wait_until_ready(rig, policies)
    }

    /// With a `leno up` for the documents of this folder.
    pub(crate) fn behind_leno(
        self,
        rig: &Rig,
        folder: &Path,
        listeners: Listeners,
        policies: Policies,
    ) -> anyhow::Result<Self> {
        let proxy = Proxy::leno(&rig.programs.leno, rig.cores, folder, listeners.admin)?;
        self.behind(rig, proxy, policies)
    }

    /// The upstream itself.
    pub(crate) fn direct(rig: &Rig) -> anyhow::Result<Self> {
        Self::at(rig, "direct", rig.upstream, Policies::NONE)
    }

    /// One Envoy before the upstream, as an inbound sidecar.
    pub(crate) fn envoy(rig: &Rig, name: &str, policies: Policies) -> anyhow::Result<Self> {
        let [listen] = free_addresses();
        Self::with_envoy(rig, name, policies, EnvoyPlace::inbound(listen, rig.upstream))
    }

    /// As [`Self::envoy`], before the upstream that speaks HTTP/2.
    pub(crate) fn envoy_http2(rig: &Rig, name: &str, policies: Policies) -> anyhow::Result<Self> {
        let [listen] = free_addresses();
        let place = EnvoyPlace { listen, upstream: rig.upstream_http2, http2_upstream: true, outbound: false };
        Self::with_envoy(rig, name, policies, place)
    }

    fn with_envoy(rig: &Rig, name: &str, policies: Policies, place: EnvoyPlace) -> anyhow::Result<Self> {
        let configurations = [envoy_file(rig, name, policies, place)?];
        let tls = policies.mtls.then(|| rig.material.client_tls(true));
        let proxy = Some(start_envoys(rig, &configurations)?);
        Self { proxy, tls, ..Self::at(rig, name, place.listen, policies)? }.wait_until_ready(rig, policies)
    }

    /// A caller's sidecar and the callee's, with mutual TLS between them where policies say so.
    pub(crate) fn envoy_pair(rig: &Rig, name: &str, policies: Policies) -> anyhow::Result<Self> {
        let [outbound, inbound] = free_addresses();
        let configurations = [
            envoy_file(
                rig,
                &format!("{name}-outbound"),
                policies,
                EnvoyPlace { outbound: true, ..EnvoyPlace::inbound(outbound, inbound) },
            )?,
            envoy_file(rig, &format!("{name}-inbound"), policies, EnvoyPlace::inbound(inbound, rig.upstream))?,
        ];
        let proxy = Some(start_envoys(rig, &configurations)?);
        Self { proxy, ..Self::at(rig, name, outbound, policies)? }.wait_until_ready(rig, policies)
    }

    /// One hop into Leno, by its gateway.
    pub(crate) fn leno(rig: &Rig, name: &str, engine: &str, policies: Policies) -> anyhow::Result<Self> {
        let folder = new_folder(rig, name)?;
        let listeners = listeners()?;
        let mesh = mesh(rig, &folder, engine, policies, listeners);
        fs::write(folder.join("bench.yaml"), mesh.documents())?;
        Self::at_gateway(rig, name, listeners, policies)?.behind_leno(rig, &folder, listeners, policies)
    }

    /// As [`Self::leno`], before the upstream that speaks HTTP/2.
    pub(crate) fn leno_http2(rig: &Rig, name: &str, engine: &str, policies: Policies) -> anyhow::Result<Self> {
        let folder = new_folder(rig, name)?;
        let listeners = listeners()?;
        let mesh = Mesh {
            upstream: rig.upstream_http2,
            http2_upstream: true,
            ..mesh(rig, &folder, engine, policies, listeners)
        };
        fs::write(folder.join("bench.yaml"), mesh.documents())?;
        Self::at_gateway(rig, name, listeners, policies)?.behind_leno(rig, &folder, listeners, policies)
    }

    /// A Leno with many functions; requests go to all of them in turn.
    pub(crate) fn leno_with_many(
        rig: &Rig,
        name: &str,
        engine: &str,
        policies: Policies,
        functions: usize,
    ) -> anyhow::Result<Self> {
        let folder = new_folder(rig, name)?;
        let listeners = listeners()?;
        let mesh = mesh(rig, &folder, engine, policies, listeners);
        for (number, documents) in mesh.documents_of_many(functions).iter().enumerate() {
            fs::write(folder.join(format!("{number}.yaml")), documents)?;
        }
        let mut running = Self::at_gateway(rig, name, listeners, policies)?;
        running.request.authorities = (0..functions).map(host_of).collect();
        running.behind_leno(rig, &folder, listeners, policies)
    }

    /// Two hops: an instance of `frontend` calls the service through its outbound sidecar. The load
    /// uses this instance's credential.
    pub(crate) fn leno_pair(
        rig: &Rig,
        name: &str,
        engine: &str,
        policies: Policies,
        same_node_tls: bool,
    ) -> anyhow::Result<Self> {
        let folder = new_folder(rig, name)?;
        let listeners = listeners()?;
        let credential = folder.with_extension("credential");
        let program = std::env::current_exe()?;
        let command = vec![
            program.display().to_string(),
            "instance".into(),
            "--credential".into(),
            credential.display().to_string(),
        ];
        let mesh = Mesh {
            caller: Some(Caller::Command(command)),
            same_node_tls,
            ..mesh(rig, &folder, engine, policies, listeners)
        };
        fs::write(folder.join("bench.yaml"), mesh.documents())?;
        let proxy = Proxy::leno(&rig.programs.leno, rig.cores, &folder, listeners.admin)?;
        let mut running = Self { proxy: Some(proxy), ..Self::at(rig, name, listeners.outbound, policies)? };
        running.request.headers.push(("proxy-authorization".into(), read_credential(&credential)?));
        running.request.target = format!("http://{HOST}{}", running.request.target);
        running.wait_until_ready(rig, policies)
    }

    /// `leno-bench node` with this engine, by its gateway.
    pub(crate) fn node(rig: &Rig, name: &str, engine: &str, policies: Policies) -> anyhow::Result<Self> {
        let folder = new_folder(rig, name)?;
        let listeners = listeners()?;
        let file = folder.join("bench.yaml");
        fs::write(&file, mesh(rig, &folder, "wasm", policies, listeners).documents())?;
        let node = Helper::start(rig.cores, &["node", "--engine", engine, "--documents", &file.display().to_string()])?;
        let running = Self { node: Some(node), ..Self::at_gateway(rig, name, listeners, policies)? };
        running.wait_until_ready(rig, policies)
    }

    /// `leno-bench node` with this engine, by its inbound listener: mutual TLS, HTTP/2; the load is
    /// `frontend`.
    pub(crate) fn node_inbound(rig: &Rig, name: &str, engine: &str, policies: Policies) -> anyhow::Result<Self> {
        let folder = new_folder(rig, name)?;
        let listeners = listeners()?;
        let mesh = Mesh { caller: Some(Caller::External), ..mesh(rig, &folder, "wasm", policies, listeners) };
        let (file, identity) = (folder.join("bench.yaml"), folder.join("load"));
        fs::write(&file, mesh.documents())?;
        let (csr, key) = crate::material::certificate_request()?;
        fs::write(identity.with_extension("csr"), csr)?;
        fs::write(identity.with_extension("key"), key)?;
        let [documents, path] = [&file, &identity].map(|path| path.display().to_string());
        let node =
            Helper::start(rig.cores, &["node", "--engine", engine, "--documents", &documents, "--identity", &path])?;
        let service: leno_identity::SpiffeId = crate::material::SERVICE.parse()?;
        let tls = Tls {
            ca: folder.join("mesh-ca.pem"),
            server_name: service.server_name().context("the service has a server name")?,
            client: Some((identity.with_extension("pem"), identity.with_extension("key"))),
        };
        let running = Self {
            node: Some(node),
            http2_only: true,
            tls: Some(tls),
            ..Self::at(rig, name, listeners.inbound, policies)?
        };
        running.wait_until_ready(rig, policies)
    }

    /// Waits until requests are answered with 200, and sees that one without a token is refused
    /// where a token is asked for, and one that no rule allows where there are rules.
    fn wait_until_ready(mut self, rig: &Rig, policies: Policies) -> anyhow::Result<Self> {
        self.wait_for_status(rig, 200, |_| {})?;
        if policies.jwt.is_some() {
            self.wait_for_status(rig, 401, |plan| plan.request.authorizations.clear())?;
        }
        if policies.authorization {
            self.wait_for_status(rig, 403, |plan| plan.request.method = "DELETE".into())?;
        }
        Ok(self)
    }

    /// Waits until all answers to such requests have this status.
    fn wait_for_status(&mut self, rig: &Rig, status: u16, change: fn(&mut Plan)) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            if let Some(proxy) = &mut self.proxy {
                proxy.ensure_running();
            }
            let outcome = probe(rig, self, change)?;
            if outcome.error.is_none() && outcome.statuses.keys().eq([&status]) {
                return Ok(());
            }
            let Outcome { statuses, error, .. } = outcome;
            ensure!(begin.elapsed() < TIMEOUT, "{} answers {statuses:?} instead of {status}, {error:?}", self.name);
        }
    }
}

fn start_envoys(rig: &Rig, configurations: &[PathBuf]) -> anyhow::Result<Proxy> {
    let program = rig.programs.envoy.as_ref().context("there is no Envoy")?;
    Proxy::envoys(program, rig.cores, configurations)
}

/// Where an Envoy stands.
#[derive(Clone, Copy)]
pub(crate) struct EnvoyPlace {
    listen: SocketAddr,
    upstream: SocketAddr,
    /// The upstream speaks HTTP/2.
    http2_upstream: bool,
    /// It is a caller's sidecar, before the callee's.
    outbound: bool,
}

impl EnvoyPlace {
    /// A callee's sidecar, before a service that speaks HTTP/1.1.
    pub(crate) fn inbound(listen: SocketAddr, upstream: SocketAddr) -> Self {
        Self { listen, upstream, http2_upstream: false, outbound: false }
    }
}

/// Writes a configuration.
pub(crate) fn envoy_file(
    rig: &Rig,
    name: &str,
    policies: Policies,
    EnvoyPlace { listen, upstream, http2_upstream, outbound }: EnvoyPlace,
) -> anyhow::Result<PathBuf> {
    let path = rig.folder().join(format!("{name}.json"));
    let log = path.with_extension("log").display().to_string();
    let sidecar = Sidecar {
        policies,
        listen,
        upstream,
        http2_upstream,
        outbound,
        material: &rig.material,
        otlp: rig.otlp,
        limits: rig.limits,
        log,
    };
    fs::write(&path, sidecar.configuration().to_string())?;
    Ok(path)
}

/// For one who is measured.
pub(crate) fn new_folder(rig: &Rig, name: &str) -> anyhow::Result<PathBuf> {
    let folder = rig.folder().join(name);
    fs::create_dir(&folder)?;
    Ok(folder)
}

/// Addresses for one node.
pub(crate) fn listeners() -> anyhow::Result<Listeners> {
    let [gateway, outbound, inbound, admin, control] = free_addresses();
    Ok(Listeners { gateway, outbound, inbound, admin, control })
}

/// One Leno before the upstream.
pub(crate) fn mesh<'a>(
    rig: &'a Rig,
    folder: &Path,
    engine: &'a str,
    policies: Policies,
    listeners: Listeners,
) -> Mesh<'a> {
    Mesh {
        policies,
        engine,
        listeners,
        upstream: rig.upstream,
        http2_upstream: false,
        caller: None,
        same_node_tls: false,
        material: &rig.material,
        otlp: rig.otlp,
        // Beside the folder: what changes inside it is read as documents.
        log: folder.with_extension("log").display().to_string(),
    }
}

fn read_credential(path: &Path) -> anyhow::Result<String> {
    let begin = Instant::now();
    loop {
        match fs::read_to_string(path) {
            Ok(text) if !text.is_empty() => return Ok(text),
            _ => ensure!(begin.elapsed() < TIMEOUT, "the instance of `frontend` did not start"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Envoy's variants with all nine policies: untuned, with each tuning, and with both.
pub(crate) fn envoy_tunings() -> [(&'static str, Policies); 4] {
    [
        ("envoy_nine", Policies::NINE),
        ("envoy_nine_cache", Policies { jwt_cache: true, ..Policies::NINE }),
        ("envoy_nine_local", Policies { limit: Some(Limit::Local), ..Policies::NINE }),
        ("envoy_best", Policies::BEST),
    ]
}
