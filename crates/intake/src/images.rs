//! Digests of images. The control plane looks up a tag when it first publishes a document with the
//! tag, or a changed one. The digest then belongs to the revision.

use futures_util::StreamExt;
use futures_util::stream;
use leno_config::{Problem, Snapshot};
use leno_control::{Control, Definitions};
use leno_files::FileAccess;
use leno_model::{Container, FunctionConfig, FunctionId, Run};
use leno_namespaces::Turns;
use leno_oci::{AddressCheck, Digest, Reference, Resolver};
use leno_proxy::{Machines, Requester};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Concurrent look-ups for one snapshot.
const CONCURRENT: usize = 8;
/// Concurrent look-ups of this process, of one namespace, and of one namespace at one registry.
const LOOK_UPS: (usize, usize, usize) = (64, 8, 4);
/// Timeout of all look-ups for one snapshot.
const ALL: Duration = Duration::from_secs(60);
/// Timeout of one look-up.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(20);

/// Problems with names of images and with settings of registries. Contacts no registry.
pub(crate) fn problems(snapshot: &Snapshot) -> Vec<Problem> {
    let images = &snapshot.mesh_config().images;
    let nothing = images.default_registry.is_none() && images.docker_config.is_none() && images.registries.is_empty();
    if nothing && snapshot.containers().next().is_none() {
        return Vec::new();
    }
    let each = snapshot.containers();
    let wrong = each.filter_map(|(_, _, container, place)| reference(snapshot, container, place).err());
    wrong.chain(resolver(snapshot).err()).collect()
}

/// Why the digest of a tag is not known.
#[derive(Debug, thiserror::Error)]
enum LookUpError {
    #[error(transparent)]
    Registry(#[from] leno_oci::Error),
    #[error("{0}: no answer within {LOOK_UP_TIMEOUT:?}")]
    Late(Box<Reference>),
    #[error("{0}: the tags of this request were not all found out within {ALL:?}")]
    AllLate(Box<Reference>),
}

/// Digests that registries have returned.
#[derive(Clone, Default)]
pub struct Tags(HashMap<Tag, Digest>);

/// A reference and the namespace of its document. Namespaces differ in the registries and
/// repositories that they may use.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Tag {
    reference: Reference,
    requester: Requester,
}

/// The definitions of a snapshot, if all digests are known.
pub enum Resolution {
    /// Each container has its image's digest.
    Complete(Box<Definitions>),
    /// Registries must be asked first.
    Incomplete(UnresolvedTags),
}

/// Tags without a known digest, with their places in documents.
pub struct UnresolvedTags {
    resolver: Resolver,
    machines: Arc<Machines>,
    /// Each namespace looks up its own tags.
    tags: HashMap<Tag, Vec<Problem>>,
}

/// The definitions of a snapshot, with the digests in `tags`. Contacts no registry. Blocks on files
/// with certificates and credentials.
pub(crate) fn resolve(control: &Control, snapshot: &Snapshot, tags: &Tags) -> Result<Resolution, Vec<Problem>> {
    let mut configs: BTreeMap<FunctionId, FunctionConfig> =
        snapshot.functions().filter_map(|id| Some((id.clone(), snapshot.function_config(id)?))).collect();
    if snapshot.containers().next().is_some() {
        let (mut unknown, mut problems) = (HashMap::new(), Vec::new());
        for (id, name, container, place) in snapshot.containers() {
            let reference = match reference(snapshot, container, place) {
                Ok(reference) => reference,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            let Some(function) = configs.get_mut(id) else { continue };
            let tag = Tag { reference, requester: Requester::of(function) };
            let known = tag.reference.digest().or_else(|| tags.0.get(&tag).copied()).map(|digest| digest.to_string());
            match known.or_else(|| unchanged(control, function, name)) {
                Some(digest) => {
                    if let Some(container) = run_mut(function, name).and_then(Run::container_mut) {
                        container.digest = Some(digest);
                    }
                }
                None => unknown.entry(tag).or_insert_with(Vec::new).push(place.clone()),
            }
        }
        if !problems.is_empty() {
            problems.sort();
            return Err(problems);
        }
        if !unknown.is_empty() {
            let resolver = resolver(snapshot).map_err(|problem| vec![problem])?;
            let machines = Arc::<Machines>::default();
            machines.set_others(control.machine_addresses());
            return Ok(Resolution::Incomplete(UnresolvedTags { resolver, machines, tags: unknown }));
        }
    }
    let (mesh, modules) = (snapshot.mesh_config().clone(), snapshot.modules().clone());
    let routes = snapshot.gateway_routes().clone();
    let (permissions, secrets) = (snapshot.permissions(), Some(snapshot.secrets().values()));
    Ok(Resolution::Complete(Box::new(Definitions { mesh, configs, routes, modules, permissions, secrets })))
}

impl UnresolvedTags {
    /// Looks the tags up at their registries.
    ///
    /// # Errors
    /// Tags without an answer, at their places in the documents.
    pub async fn look_up(self, tags: &mut Tags) -> Result<(), Vec<Problem>> {
        let (resolver, machines, until) = (&self.resolver, &self.machines, Instant::now() + ALL);
        let answers = stream::iter(self.tags).map(|(tag, places)| async move {
            let answer = timeout_at(until, digest(resolver, machines, &tag)).await;
            (answer.unwrap_or_else(|_| Err(LookUpError::AllLate(Box::new(tag.reference.clone())))), tag, places)
        });
        let (mut answers, mut problems) = (answers.buffer_unordered(CONCURRENT), Vec::new());
        while let Some((answer, tag, places)) = answers.next().await {
            match answer {
                Ok(digest) => {
                    tracing::info!("image {} is {digest}", tag.reference);
                    tags.0.insert(tag, digest);
                }
                Err(message) => {
                    let message = format!("which image that is cannot be found out: {message}");
                    problems.extend(places.into_iter().map(|place| Problem { message: message.clone(), ..place }));
                }
            }
        }
        problems.sort();
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

/// The run of a declared revision, or else the function's own.
fn run_mut<'a>(function: &'a mut FunctionConfig, name: Option<&str>) -> Option<&'a mut Run> {
    match name {
        None => Some(&mut function.run),
        Some(name) => {
            let declared = function.revisions.plan.declared.iter_mut().find(|declared| declared.name == name);
            declared.map(|declared| &mut declared.template.run)
        }
    }
}

/// The digest of the latest revision, if the function, the job or the declared revision has not
/// changed since.
fn unchanged(control: &Control, function: &FunctionConfig, name: Option<&str>) -> Option<String> {
    let latest = control.latest(&function.id, name)?;
    let digest = latest.run.container()?.digest.clone()?;
    let declared = |name| function.revisions.plan.declared.iter().find(|declared| declared.name == name);
    let mut now = match name {
        None => function.template(),
        Some(name) => declared(name)?.template.clone(),
    };
    now.run.container_mut()?.digest = Some(digest.clone());
    (now == latest).then_some(digest)
}

/// The queue of all look-ups of this process.
fn turns() -> &'static Arc<Turns> {
    static TURNS: OnceLock<Arc<Turns>> = OnceLock::new();
    let (all, each, of_one) = LOOK_UPS;
    TURNS.get_or_init(|| Turns::new(all, each, of_one))
}

/// Looks one tag up, in the turn of its namespace.
async fn digest(resolver: &Resolver, machines: &Arc<Machines>, tag: &Tag) -> Result<Digest, LookUpError> {
    let Tag { reference, requester } = tag.clone();
    let _turn = turns().take(&requester.namespace, &reference.origin()).await;
    let check = match requester.egress {
        None => AddressCheck::default(),
        Some(_) => {
            let machines = machines.clone();
            AddressCheck::new(move |address| requester.check(address, &machines))
        }
    };
    let resolver = resolver.checked(&check)?;
    match timeout(LOOK_UP_TIMEOUT, resolver.resolve(&reference)).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(LookUpError::Late(Box::new(reference))),
    }
}

fn resolver(snapshot: &Snapshot) -> Result<Resolver, Problem> {
    let problem = |error: &dyn fmt::Display| snapshot.mesh_problem("spec.images", &error.to_string());
    let registries = leno_node::registries(&snapshot.mesh_config().images, &snapshot.control_files());
    Resolver::new(registries.map_err(|error| problem(&error))?).map_err(|error| problem(&error))
}

fn reference(snapshot: &Snapshot, container: &Container, place: &Problem) -> Result<Reference, Problem> {
    let default_registry = snapshot.mesh_config().images.default_registry.as_deref();
    // Documents from requests name layouts by digest, so this opens only the operator's files.
    let parsed =
        Reference::parse(&container.image, default_registry).map(|reference| reference.named_by("", &FileAccess::Any));
    parsed.map_err(|error| Problem { message: error.to_string(), ..place.clone() })
}
