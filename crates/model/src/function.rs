//! The configuration of one function, job or External, as the control plane delivers it to nodes.

mod delivery;
mod shared;

use crate::authorizer::Authorizer;
use crate::bounds::NamespaceBounds;
use crate::chain_link::ChainLink;
use crate::fault::Fault;
use crate::function_id::FunctionId;
use crate::http_route::CallRoute;
use crate::revision::{Revision, Revisions, Template};
use crate::run::{AppProtocol, ModuleHash, ModuleUrl, Port, Run, Scale};
use crate::spiffe::SpiffeId;
use crate::stored_secret::StoredKey;
use leno_policy::spec::{Cidr, KeyId, ProgramSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The configuration of one function's sidecars and its supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionConfig {
    /// The function.
    pub id: FunctionId,
    /// SPIFFE ID.
    pub identity: SpiffeId,
    /// Inbound program.
    pub inbound: ProgramSpec,
    /// Outbound program.
    pub outbound: ProgramSpec,
    /// Engine that a policy selects; `None`: the mesh's.
    pub engine: Option<Engine>,
    /// Longest run of a sandbox.
    pub deadline: Duration,
    /// The instances' protocol.
    pub protocol: AppProtocol,
    /// Verification keys of the programs.
    pub keys: Vec<VerificationKey>,
    /// Key sets to fetch. The node adds their keys to `inbound.authentication[issuer].keys` and
    /// `keys`.
    pub jwks: Vec<JwksFetch>,
    /// How the node gets instances.
    pub run: Run,
    /// Hosts and paths at the gateway.
    pub expose: Vec<Expose>,
    /// Faults of requests that come to it by `expose`. At most one acts on a request: the first that
    /// meets it.
    pub faults: Vec<Fault>,
    /// A route of the gateway leads to it.
    pub is_routed: bool,
    /// Permitted callees, and their names.
    pub callees: Vec<Callee>,
    /// Concurrent requests of one instance; 0: no limit.
    pub concurrency: u32,
    /// Requests that can wait for an instance on one node.
    pub queue: u32,
    /// The number of instances, if the node runs them.
    pub scale: Scale,
    /// Authorizers of calls to it, in order.
    pub authorizers: Vec<Authorizer>,
    /// User-written policies for calls to it, in order.
    pub inbound_extensions: Vec<Extension>,
    /// User-written policies for its own calls, in order.
    pub outbound_extensions: Vec<Extension>,
    /// The revision in these fields, and the others that get requests.
    pub revisions: Revisions,
    /// The function's chain; `None`: none.
    pub chain: Option<ChainLink>,
    /// Bounds of the function's namespace.
    pub bounds: NamespaceBounds,
}

impl FunctionConfig {
    /// All modules of the function, with the addresses of those that nodes fetch.
    pub fn modules(&self) -> impl Iterator<Item = (ModuleHash, Option<&ModuleUrl>)> + Clone {
        let extensions = self.inbound_extensions.iter().chain(&self.outbound_extensions);
        let others = self.revisions.split.iter().flat_map(|split| &split.others).map(|other| &other.template.run);
        let components = std::iter::once(&self.run).chain(others).filter_map(Run::module);
        extensions.map(|extension| (extension.module, extension.url.as_ref())).chain(components)
    }

    /// Whether it is a function, and no job and no External document.
    pub fn is_function(&self) -> bool {
        !matches!(self.run, Run::Job(_) | Run::Egress(_))
    }

    /// The template in the configuration's fields.
    pub fn template(&self) -> Template {
        Template { run: self.run.clone(), protocol: self.protocol, concurrency: self.concurrency, scale: self.scale }
    }

    /// Replaces the revision in the configuration's fields.
    pub fn set_revision(&mut self, Revision { number, template }: Revision) {
        let Template { run, protocol, concurrency, scale } = template;
        (self.run, self.protocol, self.concurrency, self.scale) = (run, protocol, concurrency, scale);
        self.revisions.number = number;
    }

    /// The stored secrets that its revisions name.
    pub fn stored_keys(&self) -> BTreeSet<StoredKey> {
        let of = |revision: Revision| revision.template.run.stored_keys().into_iter().cloned().collect::<Vec<_>>();
        self.all_revisions().flat_map(of).collect()
    }

    /// All revisions that can get requests, the one in the configuration's fields first.
    pub fn all_revisions(&self) -> impl Iterator<Item = Revision> {
        let own = Revision { number: self.revisions.number, template: self.template() };
        let others = self.revisions.split.iter().flat_map(|split| split.others.iter().cloned());
        std::iter::once(own).chain(others)
    }
}

/// A user-written policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// `<policy>/extensions/<name>`.
    pub name: String,
    /// Its module.
    pub module: ModuleHash,
    /// Where the node fetches the module; `None`: the control plane delivers it.
    pub url: Option<ModuleUrl>,
    /// It handles requests.
    pub request: bool,
    /// It handles responses.
    pub response: bool,
    /// The document's `configuration`, verbatim.
    pub configuration: Vec<u8>,
    /// Longest run.
    pub deadline: Duration,
    /// Most memory of an instance, in bytes.
    pub memory: u64,
    /// A request continues if the run fails.
    pub fail_open: bool,
}

/// A way to isolate sidecars that configuration may select. The inline engine is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// A micro-VM under KVM.
    Microvm,
    /// A WebAssembly instance.
    Wasm,
}

/// A public key, as raw bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerificationKey {
    /// Name in programs.
    pub id: KeyId,
    /// The key.
    pub key: PublicKey,
}

/// A raw public key, as in a JSON Web Key (RFC 7517, RFC 7518 section 6, RFC 8037).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PublicKey {
    /// Modulus and exponent, big-endian, without leading zeros.
    Rsa {
        /** Modulus. */
        n: Vec<u8>,
        /** Exponent. */
        e: Vec<u8>,
    },
    /// Uncompressed point `04 || x || y` on P-256.
    P256(Vec<u8>),
    /// Uncompressed point `04 || x || y` on P-384.
    P384(Vec<u8>),
    /// Uncompressed point `04 || x || y` on P-521.
    P521(Vec<u8>),
    /// 32 bytes.
    Ed25519(Vec<u8>),
}

/// A key set to fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JwksFetch {
    /// Index into `inbound.authentication`.
    pub issuer: usize,
    /// `http://` or `https://` address.
    pub url: String,
    /// PEM file with trusted roots for `https`; `None`: `ca`, or else the system's.
    pub ca_file: Option<PathBuf>,
    /// Trusted roots for `https`, in PEM; empty: those of the file, or else the system's.
    pub ca: String,
    /// Interval of fetches. An unknown `kid` causes an earlier one. After a failure the node keeps
    /// the previous keys.
    pub refresh: Duration,
    /// Timeout of a fetch.
    pub timeout: Duration,
}

/// Hosts and a path at the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expose {
    /// Host names without port: exact, `*.suffix`, or `*`.
    pub hosts: Vec<String>,
    /// Path prefix, by segments; `/`: all paths.
    pub path: String,
}

/// A permitted callee.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callee {
    /// The callee.
    pub id: FunctionId,
    /// The SPIFFE ID that the callee must present.
    pub identity: SpiffeId,
    /// Host names (lower case, without port): `name` (same namespace), `name.namespace`,
    /// `name.namespace.svc`, `name.namespace.svc.cluster.local`; for an External its own names,
    /// which can be `*.suffix` for one more label.
    pub hosts: Vec<String>,
    /// Ports with protocols other than HTTP.
    pub ports: Vec<Port>,
    /// Addresses that callers can use instead of a name, for an External.
    pub addresses: Vec<Cidr>,
    /// Routes for the caller's requests to it, sorted by name. Requests to a port without any go to
    /// the callee. Callers on a node share those that are the same.
    #[serde(with = "shared")]
    pub routes: Arc<[CallRoute]>,
}
