//! What images are meant: a tag is looked up once, when what names it is published first or has changed, and its digest belongs to the revision from
//! then on.

use futures_util::StreamExt;
use futures_util::stream;
use leno_config::slice::Container;
use leno_config::{FunctionId, Problem, Slice, Snapshot};
use leno_control::{Control, Definitions};
use leno_image::{Digest, Reference, Resolver};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::task::block_in_place;
use tokio::time::timeout;

/// Registries are asked for so many tags at a time.
const AT_A_TIME: usize = 8;
/// A registry that has not said by then what a tag means does not say it.
const LONGEST: Duration = Duration::from_secs(20);

/// What is wrong with the names of images, or with what is said of registries. Nobody is asked.
pub(crate) fn check(snapshot: &Snapshot) -> Vec<Problem> {
    let images = &snapshot.mesh_slice().images;
    let nothing = images.default_registry.is_none() && images.docker_config.is_none() && images.registries.is_empty();
    if nothing && snapshot.containers().next().is_none() {
        return Vec::new();
    }
    match resolver(snapshot) {
        Ok(resolver) => {
            let each = snapshot.containers();
            each.filter_map(|(_, container, place)| reference(&resolver, container, place).err()).collect()
        }
        Err(problem) => vec![problem],
    }
}

/// Makes the definitions of a snapshot, in which each container has its image's digest.
///
/// # Errors
/// Tags that nobody can say the meaning of, each where it stands.
pub(crate) async fn resolve(control: &Control, snapshot: &Snapshot) -> Result<Definitions, Vec<Problem>> {
    let mut slices: BTreeMap<FunctionId, Slice> =
        snapshot.functions().filter_map(|id| Some((id.clone(), snapshot.slice(id)?))).collect();
    if snapshot.containers().next().is_some() {
        let digests = digests(control, snapshot, &slices).await?;
        for (id, digest) in digests {
            if let Some(container) = slices.get_mut(&id).and_then(|slice| slice.run.container_mut()) {
                container.digest = Some(digest);
            }
        }
    }
    Ok(Definitions { mesh: snapshot.mesh_slice().clone(), slices, modules: snapshot.modules().clone() })
}

async fn digests(
    control: &Control,
    snapshot: &Snapshot,
    slices: &BTreeMap<FunctionId, Slice>,
) -> Result<BTreeMap<FunctionId, String>, Vec<Problem>> {
    // Files with certificates and credentials are read.
    let resolver = block_in_place(|| resolver(snapshot)).map_err(|problem| vec![problem])?;
    let (mut digests, mut unknown, mut problems) = (BTreeMap::new(), HashMap::new(), Vec::new());
    for (id, container, place) in snapshot.containers() {
        let reference = match reference(&resolver, container, place) {
            Ok(reference) => reference,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        let known = reference.digest().map(|digest| digest.to_string());
        match known.or_else(|| unchanged(control, slices.get(id)?)) {
            Some(digest) => drop(digests.insert(id.clone(), digest)),
            None => unknown.entry(reference).or_insert_with(Vec::new).push((id.clone(), place.clone())),
        }
    }
    let answers = stream::iter(unknown).map(|(reference, who)| {
        let resolver = &resolver;
        async move { (ask(resolver, &reference).await, reference, who) }
    });
    let mut answers = answers.buffer_unordered(AT_A_TIME);
    while let Some((answer, reference, who)) = answers.next().await {
        match answer {
            Ok(digest) => {
                tracing::info!("image {reference} is {digest}");
                digests.extend(who.into_iter().map(|(id, _)| (id, digest.to_string())));
            }
            Err(message) => {
                let message = format!("which image that is cannot be found out: {message}");
                problems.extend(who.into_iter().map(|(_, place)| Problem { message: message.clone(), ..place }));
            }
        }
    }
    problems.sort();
    if problems.is_empty() { Ok(digests) } else { Err(problems) }
}

/// The digest that the latest revision has, if the function or job is still what it was then.
fn unchanged(control: &Control, slice: &Slice) -> Option<String> {
    let latest = control.latest(&slice.id)?;
    let digest = latest.run.container()?.digest.clone()?;
    let mut now = slice.template();
    now.run.container_mut()?.digest = Some(digest.clone());
    (now == latest).then_some(digest)
}

async fn ask(resolver: &Resolver, reference: &Reference) -> Result<Digest, String> {
    match timeout(LONGEST, resolver.resolve(reference)).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("{reference}: no answer within {LONGEST:?}")),
    }
}

fn resolver(snapshot: &Snapshot) -> Result<Resolver, Problem> {
    let registries = leno_node::registries(&snapshot.mesh_slice().images);
    let resolver = registries.and_then(|registries| Resolver::new(registries).map_err(|error| error.to_string()));
    resolver.map_err(|reason| snapshot.mesh_problem("spec.images", &reason))
}

fn reference(resolver: &Resolver, container: &Container, place: &Problem) -> Result<Reference, Problem> {
    let parsed = resolver.reference(&container.image);
    parsed.map_err(|error| Problem { message: error.to_string(), ..place.clone() })
}
