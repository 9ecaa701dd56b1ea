//! `leno control`: a standalone control plane, whose definitions are documents that users apply
//! through its API.
//!
//! Of several control planes that share a store one leads: it accepts changes and serves nodes. The
//! others follow: they answer requests that only read, and one of them takes over when the leader
//! is gone.

mod member;

use self::member::Member;
use crate::authority_file;
use crate::dashboard;
use crate::notify;
use crate::signals::Stop;
use crate::telemetry;
use anyhow::{Context, Result, ensure};
use leno_api::control::{self as api, ApiCertificate, Leading, Lines, Service};
use leno_control::{Backend, Control, Etcd, EtcdOptions, Redb, Term};
use rustix::process::geteuid;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::sleep;

/// Pause between two attempts to lead.
const CAMPAIGN: Duration = Duration::from_secs(1);
/// Pause between two attempts to put the stored documents into force.
const AGAIN: Duration = Duration::from_secs(5);

/// The options of a control plane.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Folder of this control plane's files, which only its account can read. Default:
    /// /var/lib/leno for root, else ~/.local/state/leno.
    #[arg(long, value_name = "FOLDER", env = "LENO_DATA")]
    data: Option<PathBuf>,
    /// File of the store, with documents and state. Default: control.redb in the data folder.
    #[arg(long, value_name = "FILE", conflicts_with = "etcd")]
    store: Option<PathBuf>,
    /// Address of an etcd that several control planes share: https://HOST:PORT, or http:// on
    /// loopback. Give it once for each member of a cluster.
    #[arg(long, value_name = "URL")]
    etcd: Vec<String>,
    /// Prefix of the keys in etcd; the same for all control planes of one mesh.
    #[arg(long, value_name = "PREFIX", default_value = "/leno", requires = "etcd")]
    etcd_prefix: String,
    /// PEM file with the authorities of etcd's certificates.
    #[arg(long, value_name = "FILE", requires = "etcd")]
    etcd_ca: Option<PathBuf>,
    /// PEM file with the certificate that this control plane presents to etcd.
    #[arg(long, value_name = "FILE", requires_all = ["etcd", "etcd_key"])]
    etcd_certificate: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE", requires = "etcd_certificate")]
    etcd_key: Option<PathBuf>,
    /// Seconds without a sign of life from the leader after which another control plane takes over.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=600), requires = "etcd")]
    etcd_lease: u64,
    /// Address at which it serves nodes.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15010")]
    listen: SocketAddr,
    /// Address of the API, over HTTPS.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15443")]
    api: SocketAddr,
    /// Address of this API for users, if it differs from --api: https://HOST:PORT. Other control
    /// planes refer to it while this one leads.
    #[arg(long, value_name = "URL")]
    api_url: Option<String>,
    #[command(flatten)]
    certificate: CertificateOptions,
    #[command(flatten)]
    authority: authority_file::OfControl,
    /// File with the first Mesh document. It has no effect when the store already has one.
    #[arg(long, value_name = "FILE")]
    mesh: Option<PathBuf>,
    /// File to which it also writes the audit log, one JSON object for each line.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// File for the first token, which the control plane makes when the store has none. Default:
    /// admin.token in the data folder.
    #[arg(long, value_name = "FILE")]
    first_token: Option<PathBuf>,
    /// Also serve the dashboard's page, at `/dashboard/` of the API's address. Users sign in with a
    /// token of the API, and see what that token may read.
    #[arg(long)]
    dashboard: bool,
}

/// The certificate of the API.
#[derive(clap::Args)]
struct CertificateOptions {
    /// PEM file with the certificate of the API, and the certificates between it and its authority.
    /// Without it, the control plane makes a self-signed one at the first start: `api.pem` in the
    /// data folder, which clients give as --ca.
    #[arg(long, value_name = "FILE", requires = "api_key")]
    api_certificate: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE", requires = "api_certificate")]
    api_key: Option<PathBuf>,
    /// Further names and IP addresses that clients use for the API, for the self-signed
    /// certificate.
    #[arg(long, value_name = "NAME")]
    api_name: Vec<String>,
}

impl CertificateOptions {
    fn certificate(&self) -> api::Certificate {
        match (&self.api_certificate, &self.api_key) {
            (Some(certificate), Some(key)) => api::Certificate::Files(certificate.clone(), key.clone()),
            _ => api::Certificate::SelfSigned(self.api_name.clone()),
        }
    }
}

/// Runs until a signal ends it.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    telemetry::start();
    let data = options.data.clone().map_or_else(data_folder, Ok)?;
    api::make_folder(&data)?;
    let address = options.api.ip().to_string();
    let certificate = options.certificate.certificate();
    let (tls, certificate, made) = certificate.config(&data, &address)?;
    let lines = options.audit.as_deref().map(Lines::open).transpose()?;
    // The lock lasts as long as the process.
    let member = if options.etcd.is_empty() { None } else { Member::of(&data)? };
    let named = certificate.leaf();
    let backend = backend(options, &data, member.as_ref(), named.clone())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("leno-control")
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut stop = Stop::new()?;
        let listener = TcpListener::bind(options.api).await;
        let listener = listener.with_context(|| format!("cannot listen on {} (--api)", options.api))?;
        let url = match &options.api_url {
            Some(url) => url.clone(),
            None => format!("https://{}", listener.local_addr()?),
        };
        tracing::info!("API       {url}{}", made.map(|ca| format!(" (--ca {})", ca.display())).unwrap_or_default());
        tracing::info!("store     {}", backend.name());
        let service = Service::new(backend, lines, certificate.clone(), options.authority.sealing_keys()?);
        tokio::spawn(api::watch_expiry(service.clone()));
        tokio::spawn(api::watch_alerts(service.clone()));
        tokio::spawn(name_certificate(service.clone(), certificate, named));
        let page = options.dashboard.then(|| api::page(&service, &url)).transpose()?;
        if page.is_some() {
            tracing::info!("dashboard {url}/dashboard/");
            dashboard::warn_without_page();
        }
        tokio::spawn(api::serve(service.clone(), listener, tls, page));
        let first_token = options.first_token.clone().unwrap_or_else(|| data.join("admin.token"));
        while let Some(term) = follow(&service, &url, &mut stop).await {
            match lead(&service, options, &first_token, term, &mut stop).await {
                Ok(true) => break,
                Ok(false) => {}
                // Another control plane may be able to lead, and this one later.
                Err(error) if service.backend.is_shared() => {
                    tracing::error!("this control plane cannot lead: {error:#}");
                    tokio::select! {
                        () = sleep(CAMPAIGN) => {}
                        () = stop.asked() => break,
                    }
                }
                Err(error) => return Err(error),
            }
        }
        notify::send("STOPPING=1");
        anyhow::Ok(())
    })?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(ExitCode::SUCCESS)
}

/// The folder for state of this account.
pub(crate) fn data_folder() -> Result<PathBuf> {
    if geteuid().is_root() {
        return Ok("/var/lib/leno".into());
    }
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let state = state.or_else(home).context("there is no HOME; give --data FOLDER")?;
    Ok(state.join("leno"))
}

fn backend(options: &Options, data: &Path, member: Option<&Member>, certificate: Vec<u8>) -> Result<Arc<dyn Backend>> {
    if options.etcd.is_empty() {
        let path = options.store.clone().unwrap_or_else(|| data.join("control.redb"));
        return Ok(Arc::new(Redb::open(&path)?));
    }
    let read = |path: &Option<PathBuf>| {
        let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()));
        path.as_ref().map(read).transpose()
    };
    ensure!(
        options.etcd_prefix.starts_with('/') && !options.etcd_prefix.ends_with('/'),
        "`{}` is no prefix of keys; expected something like /leno",
        options.etcd_prefix
    );
    let identity = read(&options.etcd_certificate)?.zip(read(&options.etcd_key)?);
    Ok(Arc::new(Etcd::connect(EtcdOptions {
        endpoints: options.etcd.clone(),
        prefix: options.etcd_prefix.clone(),
        ca: read(&options.etcd_ca)?,
        identity,
        certificate: Some(certificate),
        member: member.map(|member| member.name.clone()),
        lease: Duration::from_secs(options.etcd_lease),
    })?))
}

/// Keeps the store's record of the API's certificate current: control planes that follow accept no
/// other one from the leader.
async fn name_certificate(service: Arc<Service>, certificate: ApiCertificate, mut named: Vec<u8>) {
    loop {
        sleep(CAMPAIGN).await;
        let leaf = certificate.leaf();
        if leaf == named {
            continue;
        }
        match block_in_place(|| service.backend.set_certificate(&leaf)) {
            Ok(()) => named = leaf,
            Err(error) => tracing::warn!(%error, "other control planes do not know the new certificate of the API yet"),
        }
    }
}

/// Follows until this control plane can lead. `None`: the process shall end.
async fn follow(service: &Arc<Service>, url: &str, stop: &mut Stop) -> Option<Term> {
    let following = service.clone();
    let following = tokio::spawn(async move { following.follow().await });
    let mut told = None;
    let term = loop {
        let backend = &service.backend;
        match block_in_place(|| Ok::<_, leno_control::StoreError>((backend.try_lead(url)?, backend.leader()?))) {
            Ok((Some(term), _)) => break Some(term),
            Ok((None, leader)) => {
                if told != leader {
                    if leader.is_some() {
                        notify::send("READY=1");
                    }
                    tracing::info!("following {}", leader.as_deref().unwrap_or("nobody yet"));
                    told.clone_from(&leader);
                }
                let certificate = block_in_place(|| backend.leader_certificate()).unwrap_or_default();
                service.state_mut().leader = leader.map(|url| api::Leader { url, certificate });
            }
            Err(error) => tracing::warn!(%error, "nobody can be followed, and nobody can lead"),
        }
        tokio::select! {
            () = sleep(CAMPAIGN) => {}
            () = stop.asked() => break None,
        }
    };
    following.abort();
    // The follower may be in the middle of reading. The leader writes only after that, so that no
    // older state replaces its own.
    let _ = following.await;
    term
}

/// Leads until the term ends. Returns whether the process shall end.
async fn lead(
    service: &Arc<Service>,
    options: &Options,
    first_token: &Path,
    mut term: Term,
    stop: &mut Stop,
) -> Result<bool> {
    let leading = block_in_place(|| {
        service.read()?;
        if let Some(mesh) = &options.mesh {
            api::first_mesh(service, mesh)?;
        }
        service.first_token(first_token)?;
        let authority = &options.authority;
        Leading::begin(service, |domain| authority.file(domain), authority.replaces())
    })?;
    // `put_into_force` logs its problems, and the loop below tries again.
    tokio::select! {
        _ = leading.put_into_force(service) => {}
        () = term.lost() => anyhow::bail!("the lease was lost before anything was in force"),
    }
    {
        let mut state = service.state_mut();
        (state.leading, state.leader) = (Some(leading.clone()), None);
    }
    tracing::info!("this control plane leads");
    notify::send("READY=1");
    let mut nodes = None;
    let ends = loop {
        // Nodes that received an empty configuration would stop their instances.
        if nodes.is_none() && leading.has_definitions() {
            nodes = Some(Nodes::serve(leading.control.clone(), options.listen).await?);
        }
        tokio::select! {
            () = term.lost() => {
                tracing::error!("the lease is lost: this control plane does not lead any more");
                break false;
            }
            () = stop.asked() => break true,
            // This waits for changes that wait for registries, and the lease may be lost meanwhile.
            () = put_into_force(&leading, service) => {}
        }
    };
    service.state_mut().leading = None;
    if let Some(nodes) = nodes {
        nodes.stop().await;
    }
    drop(leading);
    Ok(ends)
}

/// Tries again to put the stored documents into force, if they are not.
async fn put_into_force(leading: &api::Leading, service: &Service) {
    sleep(AGAIN).await;
    // `put_into_force` reports problems in the log and the API.
    let _ = leading.put_into_force(service).await;
    block_in_place(|| leading.tidy_authority_file());
}

/// The listener for nodes.
struct Nodes {
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Nodes {
    async fn serve(control: Control, address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address} (--listen)"))?;
        tracing::info!("nodes     {}", listener.local_addr()?);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            let stopped = async move { drop(stopped.await) };
            if let Err(error) = control.serve(listener, stopped).await {
                tracing::error!(%error, "nodes are not served any more");
            }
        });
        Ok(Self { stop, serving })
    }

    async fn stop(self) {
        // The listener may have ended already.
        let _ = self.stop.send(());
        let _ = self.serving.await;
    }
}
