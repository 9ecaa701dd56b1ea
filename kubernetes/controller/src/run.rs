//! The program: watches the API server, publishes documents and pods, and serves nodes.

use crate::admin::Admin;
use crate::api::{ApiServer, Kind, ObjectKey, Watch, WatchCounts};
use crate::authority::AuthoritySecret;
use crate::crds::{GROUP, KINDS, VERSION};
use crate::index::{Changes, ClusterCounts, Index, follow};
use crate::lease::Candidate;
use crate::listener::listen;
use crate::publication::{Counts, Inbox, Publication, Publisher};
use crate::review::TokenReviewer;
use crate::status::{CaptureReporter, EventWriter, Peers, StatusWriter, WriteCounts};
use anyhow::{Context, Result};
use kube::Client;
use leno_control::{Authorities, Control, Store, Transaction};
use leno_identity::TrustDomain;
use leno_intake::Intake;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

/// The kind with the trust domain.
const MESH: &str = "Mesh";
/// Pause before an unusable Mesh object is looked at again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the Lease may take to be given back at the end.
const RELEASE: Duration = Duration::from_secs(5);

/// The options of the controller.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The controller's namespace. It has the Lease and the Secret of the authority.
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", default_value = "leno-system")]
    pub namespace: String,
    /// The name of this controller, unique among those of the cluster. Default: the host name.
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub identity: Option<String>,
    /// Address at which it serves nodes: by default all addresses, of IPv4 and of IPv6.
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:15010")]
    pub listen: SocketAddr,
    /// Address of /healthz, /readyz and /metrics, without TLS.
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:15020")]
    pub admin: SocketAddr,
    /// The Secret with the authority: tls.crt, tls.key and ca.crt, as cert-manager writes them, with
    /// a key on P-256 in PKCS #8. The controller that leads makes a missing one. A ConfigMap of the
    /// same name has the roots, for agents.
    #[arg(long, value_name = "NAME", default_value = "leno-ca")]
    pub ca_secret: String,
    /// The service account of agents, in the controller's namespace.
    #[arg(long, value_name = "NAME", default_value = "leno-agent")]
    pub agent_account: String,
    /// The Lease of the controller that leads.
    #[arg(long, value_name = "NAME", default_value = "leno-controller")]
    pub lease: String,
}

/// Counts of all watches.
#[derive(Debug, Default)]
struct AllCounts {
    documents: [WatchCounts; KINDS.len()],
    cluster: ClusterCounts,
}

impl AllCounts {
    fn metrics(&self) -> Vec<(&'static str, &'static str, u64)> {
        let all = || self.documents.iter().chain(self.cluster.all());
        let sum = |of: fn(&WatchCounts) -> &AtomicU64| all().map(|counts| of(counts).load(Ordering::Relaxed)).sum();
        vec![
            ("leno_controller_watch_events_total", "Changes of objects that watches reported.", sum(|it| &it.events)),
            ("leno_controller_watch_lists_total", "Complete lists of a kind.", sum(|it| &it.lists)),
            (
                "leno_controller_watch_relists_total",
                "Complete lists of a kind that was listed before.",
                sum(|it| &it.relists),
            ),
            (
                "leno_controller_watch_resumed_total",
                "Watches that went on where they had ended.",
                sum(|it| &it.resumed),
            ),
            ("leno_controller_broken_objects_total", "Objects that could not be decoded.", sum(|it| &it.broken)),
        ]
    }
}

/// Runs until a signal ends it.
///
/// # Errors
/// The API server is not known, or an address cannot be used.
pub async fn run(options: Options) -> Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let client =
        Client::try_default().await.context("the API server is not known: neither a pod's token nor KUBECONFIG")?;
    let identity = options.identity.clone().map_or_else(host_name, Ok)?;
    let (leads, leading) = watch::channel(false);
    let candidate = Candidate::new(client.clone(), &options.namespace, &options.lease, &identity);
    let candidate = tokio::spawn(candidate.run(leads));
    let outcome = tokio::select! {
        outcome = serve(&options, client, &identity, leading) => outcome,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    // All receivers are gone, so the candidate gives the Lease back.
    if timeout(RELEASE, candidate).await.is_err() {
        tracing::warn!("the Lease is not given back");
    }
    outcome
}

fn host_name() -> Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").context("give --identity NAME")?;
    Ok(name.trim().to_owned())
}

async fn serve(options: &Options, client: Client, identity: &str, leads: watch::Receiver<bool>) -> Result<()> {
    let (inbox, counts) = (Arc::new(Inbox::default()), Arc::new(AllCounts::default()));
    let (published, written) = (Arc::new(Counts::default()), Arc::new(WriteCounts::default()));
    let (waiting, is_waiting) = watch::channel("reads objects from the API server".to_owned());
    let admin = Admin {
        waiting: is_waiting,
        leads: leads.clone(),
        publications: published.clone(),
        writes: written.clone(),
        watches: {
            let counts = counts.clone();
            Box::new(move || counts.metrics())
        },
    };
    let server = ApiServer::new(client.clone());
    let (complete, is_complete) = watch::channel(BTreeSet::new());
    let documents = futures_util::future::join_all(KINDS.iter().zip(&counts.documents).map(|(kind, counts)| {
        let watch = Watch::all(Kind { group: GROUP, version: VERSION, plural: kind.plural, name: kind.name });
        let (server, inbox, complete, mut is_first) = (&server, &inbox, &complete, true);
        async move {
            server
                .watch(&watch, counts, |change| {
                    inbox.change_objects(kind, change);
                    if std::mem::take(&mut is_first) {
                        complete.send_modify(|kinds: &mut BTreeSet<&str>| {
                            kinds.insert(kind.name);
                        });
                    }
                })
                .await
        }
    }));
    let serve = async {
        let mut is_complete = is_complete;
        // The authority needs the Mesh alone. Long lists of other kinds do not keep the others waiting.
        is_complete.wait_for(|kinds| kinds.contains(MESH)).await?;
        let domain = trust_domain(&inbox, &waiting).await;
        let secret = AuthoritySecret::new(client.clone(), &options.namespace, &options.ca_secret, domain);
        let mut trouble = secret.trouble();
        let waits = async {
            loop {
                let reason = trouble.borrow_and_update().clone();
                waiting.send_replace(format!("waits for the authority in the Secret {}: {reason}", options.ca_secret));
                if trouble.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let (authority, pem) = tokio::select! {
            opened = secret.open(&leads) => opened,
            never = waits => match never {},
        };
        let control = block_in_place(|| {
            Control::with_authorities(
                Authorities::in_memory(authority),
                Store::memory(),
                leno_control::Options::default(),
            )
        })?;
        let peers = Peers::new(client.clone(), &options.namespace, identity);
        secret.join(&control, &peers, |reason| drop(waiting.send_replace(reason))).await;
        let missing = |kinds: &BTreeSet<&str>| {
            let missing: Vec<&str> = KINDS.iter().map(|kind| kind.name).filter(|name| !kinds.contains(name)).collect();
            missing.join(", ")
        };
        waiting.send_replace(format!("reads objects from the API server: {}", missing(&is_complete.borrow())));
        is_complete.wait_for(|kinds| kinds.len() == KINDS.len()).await?;
        let account = ObjectKey { namespace: options.namespace.clone(), name: options.agent_account.clone() };
        control.set_join_verifier(Arc::new(TokenReviewer::new(server.clone(), account)));
        waiting.send_replace("reads pods from the API server".to_owned());
        let (publications, publication) = watch::channel(Arc::default());
        let publisher = Publisher {
            inbox: inbox.clone(),
            control: control.clone(),
            publications,
            counts: published,
            intake: Intake::default(),
        };
        let (index, (begun, begins)) = (Mutex::new(Index::default()), oneshot::channel());
        let mut begun = Some(begun);
        let cluster = follow(&server, &counts.cluster, &index, |changes| {
            take(&inbox, &control, changes);
            if let Some(begun) = begun.take() {
                let _ = begun.send(());
            }
        });
        let (captures, captured) = watch::channel(Arc::default());
        let capture_reporter = CaptureReporter {
            control: control.clone(),
            index: &index,
            peers: peers.clone(),
            events: EventWriter::new(client.clone(), identity),
            captures,
        };
        let writer = StatusWriter {
            client,
            control: control.clone(),
            inbox: inbox.clone(),
            peers: peers.clone(),
            captures: captured.clone(),
            authority: secret.trouble(),
            counts: written,
        };
        let serving = async {
            begins.await?;
            let nodes = nodes(&control, options.listen, publication.clone(), &waiting);
            tokio::select! {
                never = publisher.run() => match never {},
                never = peers.report(&control, &publication, &captured) => match never {},
                never = capture_reporter.run(leads.clone()) => match never {},
                ended = nodes => ended,
                () = writer.run(publication.clone(), leads.clone()) => anyhow::bail!("status is not written any more"),
                () = secret.follow(&control, pem, &peers, leads.clone()) => anyhow::bail!("the authority is not followed any more"),
            }
        };
        tokio::select! {
            never = cluster => match never {},
            ended = serving => ended,
        }
    };
    tokio::select! {
        ended = serve => ended,
        ended = admin.serve(options.admin) => ended,
        _ = documents => anyhow::bail!("documents are not watched any more"),
    }
}

/// The trust domain of the mesh. Waits for a Mesh object that can be used, because another trust
/// domain would change every identity.
async fn trust_domain(inbox: &Inbox, waiting: &watch::Sender<String>) -> TrustDomain {
    loop {
        let problems = match block_in_place(|| inbox.trust_domain()) {
            Ok(domain) => return domain,
            Err(problems) => problems,
        };
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let reason = format!("the Mesh object cannot be used: {}", lines.join("; "));
        if *waiting.borrow() != reason {
            tracing::error!("{reason}");
            waiting.send_replace(reason);
        }
        sleep(AGAIN).await;
    }
}

/// Applies changes of the cluster.
fn take(inbox: &Inbox, control: &Control, changes: Changes) {
    let Changes { put, gone, workloads, nodes_gone, enforced, left_alone, unenrolled, services } = changes;
    for (pod, reason) in left_alone {
        tracing::warn!(%pod, "left alone: {reason}");
    }
    inbox.change_workloads(workloads);
    block_in_place(|| {
        if let Some(enforced) = enforced {
            control.set_enforced_namespaces(&enforced);
        }
        control.change_pods(put, &gone);
        control.notify_unenrolled(&unenrolled);
        if let Some(services) = services {
            control.change_destinations(services.destinations());
        }
        for node in nodes_gone {
            if let Err(error) = control.revoke(&node, Transaction::default()) {
                tracing::warn!(node, %error, "the membership of a node that is gone has not ended");
            }
        }
    });
}

/// Serves nodes once the first publication is in force: nodes that received an empty configuration
/// would let go of their pods.
async fn nodes(
    control: &Control,
    address: SocketAddr,
    mut publication: watch::Receiver<Arc<Publication>>,
    waiting: &watch::Sender<String>,
) -> Result<()> {
    while !control.has_definitions() {
        publication.changed().await?;
        if let Some(failure) = &publication.borrow_and_update().failure {
            waiting.send_replace(format!("the documents are not in force: {failure}"));
        }
    }
    let listener = listen(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address} (--listen)"))?;
    tracing::info!("nodes: {}", listener.local_addr()?);
    waiting.send_replace(String::new());
    control.serve(listener, std::future::pending()).await?;
    anyhow::bail!("nodes are not served any more")
}
