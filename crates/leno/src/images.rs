//! What images are meant: a tag is looked up once, when what names it is published first or has changed, and its digest belongs to the revision from
//! then on.

use futures_util::StreamExt;
use futures_util::stream;
use leno_config::slice::Container;
use leno_config::{FunctionId, Problem, Slice, Snapshot};
use leno_control::{Control, Definitions};
use leno_files::FileAccess;
use leno_namespaces::Turns;
use leno_oci::{AddressCheck, Digest, Reference, Resolver};
use leno_proxy::{Machines, Requester};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::block_in_place;
use tokio::time::{Instant, timeout, timeout_at};

/// Registries are asked for so many tags of one request at a time.
const AT_A_TIME: usize = 8;
/// For all requests together, so many tags are looked up at a time, for one namespace so many, and of one registry for one namespace so many.
const LOOK_UPS: (usize, usize, usize) = (64, 8, 4);
/// All tags of one request are looked up within this time.
const ALL: Duration = Duration::from_secs(60);
/// A registry that has not said by then what a tag means does not say it.
const LONGEST: Duration = Duration::from_secs(20);

/// What is wrong with the names of images, or with what is said of registries. Nobody is asked.
pub(crate) fn check(snapshot: &Snapshot) -> Vec<Problem> {
    let images = &snapshot.mesh_slice().images;
    let nothing = images.default_registry.is_none() && images.docker_config.is_none() && images.registries.is_empty();
    if nothing && snapshot.containers().next().is_none() {
        return Vec::new();
    }
    let each = snapshot.containers();
    let wrong = each.filter_map(|(_, container, place)| reference(snapshot, container, place).err());
    wrong.chain(resolver(snapshot).err()).collect()
}

/// What registries have said that tags mean.
#[derive(Clone, Default)]
pub(crate) struct Tags(HashMap<Tag, Digest>);

/// A reference, and whose document has it: what one namespace may ask a registry, another may not.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Tag {
    reference: Reference,
    requester: Requester,
}

/// What becomes of a snapshot.
pub(crate) enum Outcome {
    /// Each container has its image's digest.
    Defined(Box<Definitions>),
    /// Registries have to be asked first.
    Asks(Unknown),
}

/// Tags whose meaning is not known yet, and where they stand.
pub(crate) struct Unknown {
    resolver: Resolver,
    machines: Arc<Machines>,
    /// By namespace: each looks up its own.
    tags: HashMap<Tag, Vec<Problem>>,
}

/// Makes the definitions of a snapshot, in which each container has its image's digest. Asks registries where that is necessary.
///
/// # Errors
/// Tags that nobody can say the meaning of, each where it stands.
pub(crate) async fn resolve(control: &Control, snapshot: &Snapshot) -> Result<Definitions, Vec<Problem>> {
    let mut tags = Tags::default();
    loop {
        match block_in_place(|| define(control, snapshot, &tags))? {
            Outcome::Defined(definitions) => return Ok(*definitions),
            Outcome::Asks(unknown) => unknown.ask(&mut tags).await?,
        }
    }
}

/// The same without asking anybody, with what was said before. Blocks on files with certificates and credentials.
pub(crate) fn define(control: &Control, snapshot: &Snapshot, tags: &Tags) -> Result<Outcome, Vec<Problem>> {
    let mut slices: BTreeMap<FunctionId, Slice> =
        snapshot.functions().filter_map(|id| Some((id.clone(), snapshot.slice(id)?))).collect();
    if snapshot.containers().next().is_some() {
        let (mut unknown, mut problems) = (HashMap::new(), Vec::new());
        for (id, container, place) in snapshot.containers() {
            let reference = match reference(snapshot, container, place) {
                Ok(reference) => reference,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            let Some(slice) = slices.get_mut(id) else { continue };
            let tag = Tag { reference, requester: Requester::of(slice) };
            let said = tag.reference.digest().or_else(|| tags.0.get(&tag).copied()).map(|digest| digest.to_string());
            match said.or_else(|| unchanged(control, slice)) {
                Some(digest) => {
                    if let Some(container) = slice.run.container_mut() {
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
            return Ok(Outcome::Asks(Unknown { resolver, machines, tags: unknown }));
        }
    }
    let (mesh, modules) = (snapshot.mesh_slice().clone(), snapshot.modules().clone());
    let permissions = snapshot.permissions();
    Ok(Outcome::Defined(Box::new(Definitions { mesh, slices, modules, permissions })))
}

impl Unknown {
    /// Asks the registries, several at a time.
    ///
    /// # Errors
    /// Tags that nobody can say the meaning of, each where it stands.
    pub(crate) async fn ask(self, tags: &mut Tags) -> Result<(), Vec<Problem>> {
        let (resolver, machines, until) = (&self.resolver, &self.machines, Instant::now() + ALL);
        let answers = stream::iter(self.tags).map(|(tag, places)| async move {
            let answer = timeout_at(until, ask(resolver, machines, &tag)).await;
            let late =
                |_| Err(format!("{}: the tags of this request were not all found out within {ALL:?}", tag.reference));
            (answer.unwrap_or_else(late), tag, places)
        });
        let (mut answers, mut problems) = (answers.buffer_unordered(AT_A_TIME), Vec::new());
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

/// The digest that the latest revision has, if the function or job is still what it was then.
fn unchanged(control: &Control, slice: &Slice) -> Option<String> {
    let latest = control.latest(&slice.id)?;
    let digest = latest.run.container()?.digest.clone()?;
    let mut now = slice.template();
    now.run.container_mut()?.digest = Some(digest.clone());
    (now == latest).then_some(digest)
}

/// The turns of all look-ups of this process.
fn turns() -> &'static Arc<Turns> {
    static TURNS: OnceLock<Arc<Turns>> = OnceLock::new();
    let (all, each, of_one) = LOOK_UPS;
    TURNS.get_or_init(|| Turns::new(all, each, of_one))
}

/// Asks a registry, when it is the namespace's turn.
async fn ask(resolver: &Resolver, machines: &Arc<Machines>, tag: &Tag) -> Result<Digest, String> {
    let Tag { reference, requester } = tag.clone();
    let _turn = turns().take(&requester.namespace, &reference.origin()).await;
    let check = match requester.egress {
        None => AddressCheck::default(),
        Some(_) => {
            let machines = machines.clone();
            AddressCheck::new(move |address| requester.check(address, &machines))
        }
    };
    let resolver = resolver.checked(&check).map_err(|error| error.to_string())?;
    match timeout(LONGEST, resolver.resolve(&reference)).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("{reference}: no answer within {LONGEST:?}")),
    }
}

fn resolver(snapshot: &Snapshot) -> Result<Resolver, Problem> {
    let registries = leno_node::registries(&snapshot.mesh_slice().images, &snapshot.control_files());
    let resolver = registries.and_then(|registries| Resolver::new(registries).map_err(|error| error.to_string()));
    resolver.map_err(|reason| snapshot.mesh_problem("spec.images", &reason))
}

fn reference(snapshot: &Snapshot, container: &Container, place: &Problem) -> Result<Reference, Problem> {
    let default_registry = snapshot.mesh_slice().images.default_registry.as_deref();
    // Documents of requests name layouts by digest, so only those of the operator's files are looked into.
    let parsed =
        Reference::parse(&container.image, default_registry).map(|reference| reference.named_by("", &FileAccess::Any));
    parsed.map_err(|error| Problem { message: error.to_string(), ..place.clone() })
}
