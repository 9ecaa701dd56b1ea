//! `leno get` and `leno explain`, and the client of a node's admin address.

use crate::NodeAddress;
use crate::changes::with_columns;
use crate::columns;
use crate::listing::{Form, print_rows};
use crate::names::NamespaceOptions;
use crate::progress::Progress;
use crate::remote::{self, Connection, NO_CONTROL_PLANE, Server};
use crate::screen::shown;
use crate::table::{Column, Show};
use anyhow::{Context, Result, anyhow, bail, ensure};
use async_trait::async_trait;
use clap::ValueEnum;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use leno_api::node::{self, Address};
use leno_dashboard::mesh::Mesh;
use leno_dashboard::source::SourceKind;
use leno_model::FunctionId;
use serde_json::Value;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// Pause between two queries of `leno get --watch`.
const LOOK: Duration = Duration::from_secs(1);
/// Timeout of a node's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A listing of `leno get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Listing {
    /// Functions, with engine, callees, and how many instances there are and why.
    #[value(alias = "function", alias = "fn")]
    Functions,
    /// Nodes: the capacity that they offer, how much of it is used, and how many instances they
    /// host.
    #[value(alias = "node")]
    Nodes,
    /// Revisions of functions: the shares of requests that they are to get and that they serve, the
    /// progress of rollouts, and the reasons of failures and rollbacks.
    #[value(alias = "revision")]
    Revisions,
    /// Running copies of functions.
    #[value(alias = "instance")]
    Instances,
    /// Pods of Kubernetes on this node: whether their connections pass the node, and why not.
    #[value(alias = "pod")]
    Pods,
    /// Services of Kubernetes that pods of this node call, with their endpoints and the way there.
    #[value(alias = "service", alias = "svc")]
    Services,
    /// External services, the functions that may call them, and the number of connections.
    #[value(alias = "external")]
    Externals,
    /// Listeners of Gateways: their routes, whether the gateway serves them, and why not.
    #[value(alias = "gateway", alias = "gw")]
    Gateways,
    /// HTTPRoutes and the like: their hosts and parents, whether these accept them, and why not.
    #[value(alias = "route", alias = "httproutes", alias = "httproute", alias = "grpcroutes", alias = "grpcroute")]
    Routes,
    /// Functions of chains that this node runs: the members that share memory, how much of it, and
    /// whose calls go through it.
    #[value(alias = "chain")]
    Chains,
    /// Jobs, their progress, and how they ended.
    #[value(alias = "job")]
    Jobs,
    /// The last decisions of the autoscaler (in instances) and on rollouts (in per cent), and the
    /// events of jobs, with reasons.
    #[value(alias = "event")]
    Events,
    /// SPIFFE IDs and their certificates.
    #[value(alias = "identity")]
    Identities,
    /// Namespaces, and the use that each makes of its quota.
    #[value(alias = "namespace", alias = "ns")]
    Namespaces,
    /// Rate limits, queues and circuit breakers with their use, and ejected endpoints.
    #[value(alias = "limit")]
    Limits,
    /// Conditions that need attention, the worst first: with the subject, a sentence and the fix.
    #[value(alias = "alert")]
    Alerts,
    /// Volumes that this node keeps on its disk, also of functions that are gone.
    #[value(alias = "volume")]
    Volumes,
    /// Documents that users have applied, all or of a kind; of a control plane.
    #[value(alias = "document")]
    Documents,
    /// Stored secrets: their keys, sizes, when they changed, and who names them; never their values.
    /// Of a control plane.
    #[value(alias = "secret", alias = "storedsecrets", alias = "storedsecret")]
    Secrets,
    /// Documents of the kind Policy; of a control plane.
    #[value(alias = "policy")]
    Policies,
    /// The document of the kind Mesh; of a control plane.
    #[value(alias = "meshes")]
    Mesh,
    /// Documents of the kind NamespaceQuota; of a control plane.
    #[value(alias = "namespacequotas", alias = "namespacequota", alias = "quota")]
    Quotas,
    /// Changes of documents: who, when, which, and the recorded requests that their dry run decided
    /// differently. `leno describe change REVISION` shows the differences.
    #[value(alias = "change", alias = "history")]
    Changes,
    /// The audit log of changes to documents; of a control plane.
    Audit,
}

impl Listing {
    /// The name in `leno get`.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The listing of the control plane; `None`: only a node has these rows.
    pub(crate) fn of_control_plane(self) -> Option<remote::Listing> {
        match self {
            Self::Nodes => Some(remote::Listing::Nodes),
            Self::Audit => Some(remote::Listing::Audit),
            Self::Functions => Some(remote::Listing::Functions),
            Self::Instances => Some(remote::Listing::Instances),
            Self::Events => Some(remote::Listing::Events),
            Self::Revisions => Some(remote::Listing::Revisions),
            Self::Jobs => Some(remote::Listing::Jobs),
            Self::Identities => Some(remote::Listing::Identities),
            Self::Namespaces => Some(remote::Listing::Namespaces),
            Self::Secrets => Some(remote::Listing::Secrets),
            Self::Limits => Some(remote::Listing::Limits),
            Self::Gateways => Some(remote::Listing::Gateways),
            Self::Routes => Some(remote::Listing::Routes),
            Self::Alerts => Some(remote::Listing::Alerts),
            Self::Changes => Some(remote::Listing::Changes),
            _ => None,
        }
    }

    /// The kind of documents, and the name among them; `None`: the listing is not of documents.
    fn documents(self, which: &[String]) -> Option<Result<(Option<&str>, Option<&str>)>> {
        let kind = match self {
            Self::Documents => None,
            Self::Policies => Some("Policy"),
            Self::Mesh => Some("Mesh"),
            Self::Quotas => Some("NamespaceQuota"),
            _ => return None,
        };
        Some(match (kind, which) {
            (Some(_), []) | (None, []) => Ok((kind, None)),
            (None, [kind]) => Ok((Some(kind), None)),
            (Some(_), [name]) => Ok((kind, Some(name))),
            (None, [kind, name]) => Ok((Some(kind), Some(name))),
            _ => Err(anyhow!("expected at most KIND and NAME: `leno get documents Function demo/shop`")),
        })
    }

    fn path(self) -> Option<&'static str> {
        Some(match self {
            Self::Documents | Self::Policies | Self::Mesh | Self::Quotas | Self::Secrets | Self::Audit => return None,
            Self::Functions => "/functions",
            Self::Nodes => "/nodes",
            Self::Revisions => "/revisions",
            Self::Instances => "/instances",
            Self::Pods => "/pods",
            Self::Services => "/services",
            Self::Externals => "/externals",
            Self::Chains => "/chains",
            Self::Jobs => "/jobs",
            Self::Events => "/events",
            Self::Identities => "/identities",
            Self::Namespaces => "/namespaces",
            Self::Volumes => "/volumes",
            Self::Limits => "/limits",
            Self::Gateways => "/gateways",
            Self::Routes => "/routes",
            Self::Alerts => "/alerts",
            Self::Changes => "/changes",
        })
    }

    fn columns(self) -> &'static [Column] {
        use Show::{Age, Plain, Time, Wide};
        match self {
            Self::Documents | Self::Policies | Self::Mesh | Self::Quotas | Self::Secrets | Self::Audit => &[],
            Self::Functions => &[
                ("FUNCTION", "function", Plain),
                ("ENGINE", "engine", Plain),
                ("PROTOCOL", "protocol", Plain),
                ("DESIRED", "desired", Plain),
                ("READY", "ready", Plain),
                ("WAITING", "waiting", Plain),
                ("MODE", "mode", Plain),
                ("CALLEES", "callees", Plain),
                ("EXPOSED", "exposed", Plain),
                ("NOT IN FORCE", "audited", Plain),
                ("SCALED BY", "reason", Plain),
                ("FAILURE", "failure", Plain),
                ("NODES", "nodes", Wide),
                ("STARTING", "starting", Wide),
                ("PROGRAM BYTES", "program_bytes", Wide),
                ("LIMITS NOT IN FORCE", "unenforced_limits", Wide),
                ("IDENTITY", "identity", Wide),
            ],
            Self::Nodes => columns::NODES,
            Self::Revisions => &[
                ("REVISION", "revision", Plain),
                ("NAME", "declared", Plain),
                ("FUNCTION", "function", Plain),
                ("PERCENT", "percent", Plain),
                ("SERVED", "served", Plain),
                ("TAGS", "tags", Plain),
                ("STEP", "step", Plain),
                ("PAUSED", "paused", Plain),
                ("REQUESTS", "requests", Plain),
                ("FAILURES", "failures", Plain),
                ("SLOW", "slow", Plain),
                ("PROBLEM", "problem", Plain),
                ("ROLLED BACK", "failed", Plain),
                ("AGE", "created", Age),
                ("HEADERS", "headers", Wide),
                ("IMAGE", "image", Wide),
                ("DIGEST", "digest", Wide),
            ],
            Self::Instances => &columns::INSTANCES[..columns::INSTANCES.len() - 1],
            Self::Pods => columns::PODS,
            Self::Services => columns::SERVICES,
            Self::Volumes => &[
                ("VOLUME", "volume", Plain),
                ("SIZE", "size", Plain),
                ("USED", "used", Plain),
                ("IN USE", "in_use", Plain),
                ("SIZE IN FORCE", "bounded", Plain),
                ("FOLDER", "folder", Wide),
            ],
            Self::Externals => &[
                ("EXTERNAL", "external", Plain),
                ("HOSTS", "hosts", Plain),
                ("ADDRESSES", "addresses", Plain),
                ("PORTS", "ports", Plain),
                ("CALLERS", "callers", Plain),
                ("CONNECTIONS", "connections", Plain),
            ],
            Self::Chains => &[
                ("CHAIN", "chain", Plain),
                ("FUNCTION", "function", Plain),
                ("PROTOCOL", "protocol", Plain),
                ("MEMORY", "memory", Plain),
                ("TO", "to", Plain),
                ("LARGE PAGES", "large_pages", Wide),
                ("DIRECT", "direct", Wide),
            ],
            Self::Jobs => &[
                ("JOB", "job", Plain),
                ("STATE", "state", Plain),
                ("NODE", "node", Plain),
                ("ATTEMPT", "attempt", Plain),
                ("COMPLETIONS", "completions", Plain),
                ("ACTIVE", "active", Plain),
                ("FAILED", "failed", Plain),
                ("AGE", "start", Age),
                ("ENDED", "end", Time),
                ("EXIT", "exit_code", Plain),
                ("REASON", "reason", Plain),
            ],
            Self::Events => &columns::EVENTS[..columns::EVENTS.len() - 1],
            Self::Identities => &[
                ("IDENTITY", "identity", Plain),
                ("EXPIRES", "not_after", Age),
                ("RENEWAL", "renew_at", Age),
                ("REASON", "reason", Plain),
                ("FILE", "file", Wide),
            ],
            Self::Namespaces => columns::NAMESPACES_OF_NODE,
            Self::Limits => &columns::LIMITS[..columns::LIMITS.len() - 1],
            Self::Changes => columns::CHANGES,
            Self::Gateways => columns::GATEWAYS,
            Self::Routes => columns::ROUTES,
            Self::Alerts => &columns::ALERTS[..columns::ALERTS.len() - 1],
        }
    }
}

/// The output options of `leno get`.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Printing {
    /// Format of the listing.
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    output: Form,
    #[arg(long, conflicts_with = "output", hide = true)]
    json: bool,
    /// Look every second, and print new and changed rows, until interrupted.
    #[arg(short, long)]
    watch: bool,
}

impl Printing {
    fn form(self) -> Form {
        if self.json { Form::Json } else { self.output }
    }
}

/// The process that answers a command: the control plane that the user names, or else the node of
/// this machine.
pub(crate) enum Source {
    ControlPlane(Connection),
    Node(Node),
}

impl Source {
    /// `--admin` wins over the current context, which is not named in the command.
    pub(crate) fn of(server: &Server, node: &NodeAddress) -> Result<Self> {
        let target = server.target()?.filter(|target| !target.implied || node.admin.is_none());
        Ok(match target {
            Some(target) => Self::ControlPlane(Connection::of(target)?),
            None => Self::Node(Node::of(node)?),
        })
    }

    /// One look at functions, counts and refusals.
    pub(crate) fn look(&self) -> Result<Mesh> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let source: &dyn leno_dashboard::source::Source = self;
        runtime.block_on(source.look()).map_err(|failure| anyhow!("{}", shown(&failure.to_string())))
    }

    /// The namespace of names without one.
    pub(crate) fn namespace(&self) -> Option<&str> {
        match self {
            Self::ControlPlane(connection) => connection.namespace(),
            Self::Node(_) => None,
        }
    }

    /// The rows of a listing, with their columns.
    pub(crate) fn rows(&self, what: Listing) -> Result<(&'static [Column], Vec<Value>)> {
        let is_change = what == Listing::Changes;
        let (columns, rows) = match self {
            Self::ControlPlane(connection) => {
                let what = what.of_control_plane().context(
                    "a control plane does not have this listing, only nodes do: give --context local, or --admin",
                )?;
                (what.columns(), remote::rows(connection, what)?)
            }
            Self::Node(node) => (what.columns(), node.list(what.path().context(NO_CONTROL_PLANE)?)?),
        };
        let rows = if is_change { rows.into_iter().map(with_columns).collect::<Result<_>>()? } else { rows };
        Ok((columns, rows))
    }

    /// Changes of documents, with the one of this revision if it is known.
    pub(crate) fn change(&self, revision: u64) -> Result<Vec<Value>> {
        match self {
            Self::ControlPlane(connection) => remote::change_of_revision(connection, revision),
            Self::Node(_) => Ok(self.rows(Listing::Changes)?.1),
        }
    }
}

#[async_trait]
impl leno_dashboard::source::Source for Source {
    fn kind(&self) -> SourceKind {
        match self {
            Self::ControlPlane(_) => SourceKind::ControlPlane,
            Self::Node(_) => SourceKind::Node,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::ControlPlane(connection) => connection.address().to_owned(),
            Self::Node(node) => node.admin.to_string(),
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), String> {
        let answer = match self {
            Self::ControlPlane(connection) => connection.exchange(method, path, body).await,
            Self::Node(node) => match timeout(PATIENCE, node.exchange(method, path, body)).await {
                Ok(answer) => answer,
                Err(_) => Err(anyhow!("the node at {} did not answer within {PATIENCE:?}", node.admin)),
            },
        };
        answer.map_err(|error| shown(&format!("{error:#}")).into_owned())
    }
}

/// Prints one listing: of the control plane if the user names one, else of the node.
pub(crate) fn list(
    what: Listing,
    which: &[String],
    (node, server): (&NodeAddress, &Server),
    namespace: &NamespaceOptions,
    printing: Printing,
) -> Result<ExitCode> {
    let mut source = Source::of(server, node)?;
    if let Some(documents) = what.documents(which) {
        ensure!(!printing.watch, "--watch is for listings of functions and the like, not for documents");
        let Source::ControlPlane(connection) = &source else { bail!(NO_CONTROL_PLANE) };
        return remote::print_documents(connection, documents?, namespace, printing.form());
    }
    // The current context does not hide the listings that only nodes have.
    if matches!(&source, Source::ControlPlane(connection) if connection.is_implied() && what.of_control_plane().is_none())
    {
        source = Source::Node(Node::of(node)?);
    }
    ensure!(which.len() < 2, "expected at most one NAME: `leno get functions demo/shop`");
    let selection = namespace.selection(source.namespace(), which.first().map(String::as_str))?;
    let mut seen = Vec::new();
    let mut first = true;
    loop {
        let waits = Progress::of("waits for the listing");
        let (columns, mut rows) = source.rows(what)?;
        drop(waits);
        rows.retain(|row| selection.includes(row));
        ensure!(
            selection.name.is_none() || !rows.is_empty() || printing.watch,
            "there is no `{selection}` among the {}",
            what.name()
        );
        let new: Vec<&Value> = rows.iter().filter(|row| !seen.contains(*row)).collect();
        if first || !new.is_empty() {
            print_rows(columns, &new, printing.form(), first)?;
        }
        if !printing.watch {
            return Ok(ExitCode::SUCCESS);
        }
        (seen, first) = (rows, false);
        std::thread::sleep(LOOK);
    }
}

/// Deletes a volume of the node.
pub(crate) fn delete_volume(volume: &str, node: &NodeAddress) -> Result<ExitCode> {
    let id: FunctionId = volume.parse().context("a volume is named by its namespace and its name: `shop/data`")?;
    let node = Node::of(node)?;
    let (status, body) = node.delete(&format!("/volumes/{id}"))?;
    ensure!(status == 200, "the node at {} refuses: {}", node.admin, shown(body.trim_end()));
    println!("{}", shown(body.trim_end()));
    Ok(ExitCode::SUCCESS)
}

/// A connection to the admin API of a node.
pub(crate) struct Node {
    pub admin: Address,
    token: Option<String>,
}

impl Node {
    pub(crate) fn of(node: &NodeAddress) -> Result<Self> {
        let token = node.admin_token.as_deref().map(node::token).transpose()?;
        Ok(Self { admin: node.admin.clone().unwrap_or_else(Address::usual), token })
    }

    fn list(&self, path: &str) -> Result<Vec<Value>> {
        let (status, body) = self.ask(path)?;
        ensure!(status == 200, "the node at {} answered {status}: {}", self.admin, shown(body.trim_end()));
        serde_json::from_str(&body).context("the node's answer is not JSON")
    }

    /// One GET to the admin address.
    pub(crate) fn ask(&self, path: &str) -> Result<(u16, String)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let answer = timeout(PATIENCE, self.answer(Method::GET, path, Vec::new())).await;
            answer.with_context(|| format!("the node at {} did not answer within {PATIENCE:?}", self.admin))?
        })
    }

    /// One DELETE to the admin address.
    fn delete(&self, path: &str) -> Result<(u16, String)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.answer(Method::DELETE, path, Vec::new()))
    }

    /// One POST to the admin address, with this timeout.
    pub(crate) fn tell(&self, path: &str, body: Vec<u8>, patience: Duration) -> Result<(u16, String)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let answer = timeout(patience, self.answer(Method::POST, path, body)).await;
            answer.with_context(|| format!("the node at {} did not answer within {patience:?}", self.admin))?
        })
    }

    /// The status and the text of an answer.
    async fn answer(&self, method: Method, path: &str, body: Vec<u8>) -> Result<(u16, String)> {
        let (status, body) = self.exchange(method, path, body.into()).await?;
        Ok((status.as_u16(), String::from_utf8_lossy(&body).into_owned()))
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, Bytes)> {
        let nobody =
            || format!("no node at {}; is `leno up` running, as this account, and is --admin its address?", self.admin);
        match &self.admin {
            Address::Socket(socket) => {
                let stream = UnixStream::connect(socket).await.with_context(nobody)?;
                let peer = stream.peer_cred()?;
                // In a folder such as /tmp, a process of another account may have made this socket
                // first.
                ensure!(
                    node::is_trusted(&peer),
                    "at {} there is no node of this account, but a process of account {}",
                    self.admin,
                    peer.uid()
                );
                self.send(stream, None, (method, path, body)).await
            }
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await.with_context(nobody)?;
                self.send(stream, self.token.as_deref(), (method, path, body)).await
            }
        }
    }

    async fn send(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        token: Option<&str>,
        (method, path, body): (Method, &str, Bytes),
    ) -> Result<(StatusCode, Bytes)> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = hyper::Request::builder().method(method).uri(path).header("host", "admin");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = sender.send_request(request.body(Full::new(body))?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(
            status != StatusCode::UNAUTHORIZED,
            "the node at {} takes a token: give --admin-token FILE",
            self.admin
        );
        Ok((status, body))
    }
}
