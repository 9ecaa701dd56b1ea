//! The configuration of one function, job or External, as the control plane delivers it to nodes.

mod delivery;

use crate::authorizer::Authorizer;
use crate::bounds::NamespaceBounds;
use crate::chain_link::ChainLink;
use crate::function_id::FunctionId;
use crate::revision::{Revision, Revisions, Template};
use crate::run::{AppProtocol, ModuleHash, ModuleUrl, Port, Run, Scale};
use leno_policy::spec::{Cidr, KeyId, ProgramSpec};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Everything one function's sidecars and its supervisor need.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionConfig {
    /// The function.
    pub id: FunctionId,
    /// Its SPIFFE ID.
    pub identity: String,
    /// Inbound program.
    pub inbound: ProgramSpec,
    /// Outbound program.
    pub outbound: ProgramSpec,
    /// Engine that a policy asks for; `None`: the mesh's.
    pub engine: Option<Engine>,
    /// Longest run of one sidecar.
    pub deadline: Duration,
    /// Protocol that the instances speak.
    pub protocol: AppProtocol,
    /// Verification keys that the programs name.
    pub keys: Vec<VerificationKey>,
    /// Key sets that the node fetches; its keys are added to `inbound.authentication[issuer].keys` and `keys`.
    pub jwks: Vec<JwksFetch>,
    /// How instances come to be.
    pub run: Run,
    /// Where the gateway lets outside traffic in.
    pub expose: Vec<Expose>,
    /// Whom it may call, and what it calls them.
    pub callees: Vec<Callee>,
    /// Requests that one instance handles at a time; 0: no limit.
    pub concurrency: u32,
    /// Requests that may wait for an instance on one node.
    pub queue: u32,
    /// How many instances there are, unless somebody else runs them.
    pub scale: Scale,
    /// Whom to ask about calls to it, in order.
    pub authorizers: Vec<Authorizer>,
    /// User-written policies for calls to it, in order.
    pub inbound_extensions: Vec<Extension>,
    /// User-written policies for its own calls, in order.
    pub outbound_extensions: Vec<Extension>,
    /// Which of its revisions this is, and who else gets requests.
    pub revisions: Revisions,
    /// The chain that it is in; `None`: none.
    pub chain: Option<ChainLink>,
    /// The bounds of its namespace.
    pub bounds: NamespaceBounds,
}

impl FunctionConfig {
    /// All modules that it names, with the addresses of those that nodes fetch.
    pub fn modules(&self) -> impl Iterator<Item = (ModuleHash, Option<&ModuleUrl>)> + Clone {
        let extensions = self.inbound_extensions.iter().chain(&self.outbound_extensions);
        let others = self.revisions.split.iter().flat_map(|split| &split.others).map(|other| &other.template.run);
        let components = std::iter::once(&self.run).chain(others).filter_map(Run::module);
        extensions.map(|extension| (extension.module, extension.url.as_ref())).chain(components)
    }

    /// The template in it.
    pub fn template(&self) -> Template {
        Template { run: self.run.clone(), protocol: self.protocol, concurrency: self.concurrency, scale: self.scale }
    }

    /// The same function with another revision as its own.
    pub fn set_revision(&mut self, Revision { number, template }: Revision) {
        let Template { run, protocol, concurrency, scale } = template;
        (self.run, self.protocol, self.concurrency, self.scale) = (run, protocol, concurrency, scale);
        self.revisions.number = number;
    }

    /// All revisions that may get requests, the slice's own first.
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
    /// Its module, delivered by the control plane, or fetched.
    pub module: ModuleHash,
    /// Where the node fetches the module; `None`: the control plane delivers it.
    pub url: Option<ModuleUrl>,
    /// Whether it sees requests.
    pub request: bool,
    /// Whether it sees responses.
    pub response: bool,
    /// As written.
    pub configuration: Vec<u8>,
    /// Longest run.
    pub deadline: Duration,
    /// Most memory of an instance, in bytes.
    pub memory: u64,
    /// Whether a request goes on when its run fails.
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
    /// Its name in programs.
    pub id: KeyId,
    /// The key.
    pub key: PublicKey,
}

/// Raw public keys, as JSON Web Keys carry them (RFC 7517, RFC 7518 section 6, RFC 8037).
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

/// A key set that the runtime fetches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JwksFetch {
    /// Index into `inbound.authentication`.
    pub issuer: usize,
    /// `http://` or `https://` address.
    pub url: String,
    /// PEM file with the roots to trust for `https`; `None`: the system's.
    pub ca_file: Option<PathBuf>,
    /// How often to fetch again. An unknown `kid` fetches sooner, a failed fetch keeps the keys it had.
    pub refresh: Duration,
    /// Per fetch.
    pub timeout: Duration,
}

/// Where the gateway lets outside traffic in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expose {
    /// Host names without port: exact, `*.suffix`, or `*`.
    pub hosts: Vec<String>,
    /// Path prefix, by segments; `/`: everything.
    pub path: String,
}

/// Somebody that a function may call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callee {
    /// The callee.
    pub id: FunctionId,
    /// The SPIFFE ID that it must present.
    pub identity: String,
    /// Host names (lower case, without port) by which the caller may name it: `name` (same namespace), `name.namespace`, `name.namespace.svc`,
    /// `name.namespace.svc.cluster.local`; of something outside of the mesh, its own names, which may be `*.suffix` for one label more.
    pub hosts: Vec<String>,
    /// Ports at which it serves something else than HTTP.
    pub ports: Vec<Port>,
    /// Addresses by which the caller may name it, of something outside of the mesh.
    pub addresses: Vec<Cidr>,
}
