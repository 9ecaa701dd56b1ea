//! Chooses the image for this machine among those that an index leads to.

use super::source::Source;
use crate::manifest::{self, Configuration, Descriptor, Document, Manifest, not_for_this_machine};
use crate::platform::Platform;
use crate::{Digest, Error, Result};
use std::cmp::Reverse;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// How many indexes deep a manifest may be.
const MAX_DEPTH: usize = 4;
/// How many documents are fetched to find one image.
const MAX_DOCUMENTS: usize = 32;

/// An image as its documents describe it, and these documents.
pub(super) struct Choice {
    /// The indexes that lead to the manifest, outermost first.
    pub(super) indexes: Vec<Vec<u8>>,
    pub(super) manifest_bytes: Vec<u8>,
    pub(super) manifest: Manifest,
    pub(super) config_bytes: Vec<u8>,
    pub(super) configuration: Configuration,
}

/// The indexes on the way to a descriptor.
type Way = Vec<Arc<Vec<u8>>>;

struct Candidate {
    rank: u32,
    digest: Digest,
    way: Way,
}

struct Search<'a> {
    source: &'a Source,
    image: &'a str,
    documents: usize,
    seen: HashSet<Digest>,
    candidates: Vec<Candidate>,
    /// Images without a platform in the index. Their configurations have to name one.
    unnamed: VecDeque<(Digest, Way)>,
    /// The platforms of images for other machines.
    others: Vec<Platform>,
    /// Why a part of the index could not be read.
    failure: Option<Error>,
}

/// Finds the image for this machine that a digest leads to: the variant that uses most of the
/// processor's features, and of equal ones the first.
pub(super) async fn choose(source: &Source, image: &str, digest: Digest) -> Result<Choice> {
    let mut search = Search {
        source,
        image,
        documents: 0,
        seen: HashSet::new(),
        candidates: Vec::new(),
        unnamed: VecDeque::new(),
        others: Vec::new(),
        failure: None,
    };
    let bytes = search.fetch(digest).await?;
    match manifest::read(image, &bytes)? {
        Document::Manifest(manifest) => match search.configured(Vec::new(), bytes, manifest).await? {
            Ok(choice) => Ok(choice),
            Err(platform) => Err(not_for_this_machine(image, [platform].iter())),
        },
        Document::Index(entries) => {
            search.index(vec![Arc::new(bytes)], entries).await?;
            search.best().await
        }
    }
}

impl Search<'_> {
    fn wrong(&self, reason: String) -> Error {
        Error::Image { image: self.image.to_owned(), reason }
    }

    async fn fetch(&mut self, digest: Digest) -> Result<Vec<u8>> {
        self.documents += 1;
        if self.documents > MAX_DOCUMENTS {
            return Err(self.wrong(format!("its index leads to more than {MAX_DOCUMENTS} others; expected fewer")));
        }
        self.seen.insert(digest);
        self.source.manifest(digest).await
    }

    /// Sorts the entries of an index, and of those below it.
    async fn index(&mut self, way: Way, entries: Vec<Descriptor>) -> Result<()> {
        let mut waiting = VecDeque::from([(way, entries)]);
        while let Some((way, entries)) = waiting.pop_front() {
            for entry in entries {
                let rank = match entry.platform() {
                    None => None,
                    Some(platform) => match platform.rank() {
                        Some(rank) => Some(rank),
                        None => {
                            self.others.push(platform.clone());
                            continue;
                        }
                    },
                };
                let digest = entry.blob().map_err(|error| self.wrong(error.to_string()))?.digest;
                if !entry.is_index() {
                    match rank {
                        Some(rank) => self.candidates.push(Candidate { rank, digest, way: way.clone() }),
                        None => self.unnamed.push_back((digest, way.clone())),
                    }
                } else if !self.seen.contains(&digest) {
                    waiting.extend(self.inner(digest, &way).await?);
                }
            }
        }
        Ok(())
    }

    /// Fetches an index in an index. If that part is missing, because some registries keep no
    /// platforms but their own, the choice is among the rest.
    async fn inner(&mut self, digest: Digest, way: &Way) -> Result<Option<(Way, Vec<Descriptor>)>> {
        let bytes = match self.fetch(digest).await {
            Err(error @ Error::Answer { status: Some(404), .. }) => {
                self.failure.get_or_insert(error);
                return Ok(None);
            }
            other => other?,
        };
        match manifest::read(self.image, &bytes)? {
            Document::Index(entries) => Ok(Some((self.longer(way, bytes)?, entries))),
            Document::Manifest(_) => {
                self.unnamed.push_back((digest, way.clone()));
                Ok(None)
            }
        }
    }

    fn longer(&self, way: &Way, bytes: Vec<u8>) -> Result<Way> {
        if way.len() >= MAX_DEPTH {
            return Err(self.wrong(format!("its indexes are more than {MAX_DEPTH} deep")));
        }
        Ok(way.iter().cloned().chain([Arc::new(bytes)]).collect())
    }

    /// The best candidate; where the index names no platform that this machine runs, the first whose configuration does.
    async fn best(mut self) -> Result<Choice> {
        loop {
            let best = (0..self.candidates.len()).min_by_key(|at| Reverse(self.candidates[*at].rank));
            let (digest, way) = match best {
                Some(at) => {
                    let Candidate { digest, way, .. } = self.candidates.remove(at);
                    (digest, way)
                }
                None => match self.unnamed.pop_front() {
                    Some(next) => next,
                    None => {
                        return Err(self
                            .failure
                            .take()
                            .unwrap_or_else(|| not_for_this_machine(self.image, self.others.iter())));
                    }
                },
            };
            let bytes = self.fetch(digest).await?;
            match manifest::read(self.image, &bytes) {
                Ok(Document::Manifest(manifest)) => {
                    let indexes = way.iter().map(|index| index.to_vec()).collect();
                    match self.configured(indexes, bytes, manifest).await {
                        Ok(Ok(choice)) => return Ok(choice),
                        Ok(Err(platform)) => self.others.push(platform),
                        // An attestation or a signature is no image.
                        Err(error @ Error::Image { .. }) if best.is_none() => drop(self.failure.get_or_insert(error)),
                        Err(error) => return Err(error),
                    }
                }
                Ok(Document::Index(entries)) => {
                    let way = self.longer(&way, bytes)?;
                    self.index(way, entries).await?;
                }
                Err(error) if best.is_none() => drop(self.failure.get_or_insert(error)),
                Err(error) => return Err(error),
            }
        }
    }

    /// An image with its configuration; or its platform, if that is not this machine's.
    async fn configured(
        &self,
        indexes: Vec<Vec<u8>>,
        manifest_bytes: Vec<u8>,
        manifest: Manifest,
    ) -> Result<Result<Choice, Platform>> {
        let config_bytes = self.source.config(manifest.config).await?;
        let configuration = manifest::configuration(self.image, &config_bytes, &manifest)?;
        if configuration.platform.rank().is_none() {
            return Ok(Err(configuration.platform));
        }
        Ok(Ok(Choice { indexes, manifest_bytes, manifest, config_bytes, configuration }))
    }
}
