//! The part of the store that each namespace has, and the images that are removed to make space.
//!
//! A namespace has the images that it pulled, until they are removed to make space. A layer counts
//! once for each namespace that has it, in full, and once for the store. So no namespace pays less
//! because another one has the same layer, and none pays more when the other one's image is
//! removed.

use super::disk::{Disk, Layer, State};
use crate::space::Space;
use crate::{Digest, Error, Result};
use leno_namespaces::{Namespace, Resource};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

/// The unit in which space is reserved while there is plenty.
const PIECE: Space = Space { bytes: 4 << 20, files: 64 };
/// The store leaves a twentieth of its file system free, and no more than this.
const MAX_RESERVE: Space = Space { bytes: 1 << 30, files: 1 << 16 };

/// Namespaces that have nothing in the store are forgotten when there are more than this.
const MAX_UNUSED: usize = 1024;

/// The namespace that an image is pulled for; `None`: no namespace is charged.
pub(crate) type Owner = Option<Arc<Namespace>>;

/// The name of an owner; empty: none.
pub(crate) fn name(owner: &Owner) -> &str {
    owner.as_ref().map_or("", |namespace| namespace.name())
}

/// The layers that one namespace has in the store, and the space that its pulls have reserved.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    namespace: Owner,
    used: Space,
    /// How many images and pulls of the namespace have each layer.
    layers: HashMap<Digest, usize>,
}

impl Holding {
    fn change(&mut self, change: impl FnOnce(&mut Space)) {
        change(&mut self.used);
        if let Some(namespace) = &self.namespace {
            namespace.count(Resource::ImageBytes).set_used(self.used.bytes);
            namespace.count(Resource::ImageFiles).set_used(self.used.files);
        }
    }

    fn hold(&mut self, layer: &Layer) {
        let count = self.layers.entry(layer.chain).or_default();
        *count += 1;
        if *count == 1 {
            self.change(|used| *used += layer.space);
        }
    }

    fn release(&mut self, layer: &Layer) {
        let Some(count) = self.layers.get_mut(&layer.chain) else { return };
        *count -= 1;
        if *count == 0 {
            self.layers.remove(&layer.chain);
            self.change(|used| *used -= layer.space);
        }
    }
}

/// A layer that a pull has, charged to its namespace. It must not be dropped while the state is
/// locked.
pub(crate) struct HeldLayer {
    pub(crate) layer: Arc<Layer>,
    disk: Arc<Disk>,
    owner: Owner,
}

impl Drop for HeldLayer {
    fn drop(&mut self) {
        if self.owner.is_some() {
            self.disk.state().holding(&self.owner).release(&self.layer);
        }
    }
}

impl State {
    /// The holding of a namespace.
    pub(super) fn holding(&mut self, owner: &Owner) -> &mut Holding {
        if self.holdings.len() > MAX_UNUSED {
            self.holdings.retain(|_, holding| holding.used != Space::default() || !holding.layers.is_empty());
        }
        let holding = self.holdings.entry(name(owner).into()).or_default();
        if holding.namespace.is_none() {
            holding.namespace.clone_from(owner);
        }
        holding
    }

    /// Charges space of the store to a namespace.
    fn add(&mut self, owner: &Owner, space: Space) {
        self.used += space;
        self.holding(owner).change(|used| *used += space);
    }

    fn subtract(&mut self, owner: &Owner, space: Space) {
        self.used -= space;
        self.holding(owner).change(|used| *used -= space);
    }

    /// Gives an image to a namespace.
    pub(super) fn hold_image(&mut self, owner: &Owner, digest: Digest) {
        let Some(stored) = self.images.get_mut(&digest) else { return };
        stored.leases.entry(name(owner).into()).or_default();
        let (documents, layers) = (stored.documents, self.layers_of(digest));
        let holding = self.holding(owner);
        holding.change(|used| *used += documents);
        layers.iter().for_each(|layer| holding.hold(layer));
    }

    /// Takes an image from a namespace.
    fn release_image(&mut self, name: &str, digest: Digest) {
        let Some(stored) = self.images.get_mut(&digest) else { return };
        stored.leases.remove(name);
        let (documents, layers) = (stored.documents, self.layers_of(digest));
        if let Some(holding) = self.holdings.get_mut(name) {
            holding.change(|used| *used -= documents);
            layers.iter().for_each(|layer| holding.release(layer));
        }
    }

    /// The layers of an image, each once.
    fn layers_of(&self, digest: Digest) -> Vec<Arc<Layer>> {
        let chains: HashSet<_> =
            self.images.get(&digest).map(|stored| &stored.layers[..]).unwrap_or_default().iter().collect();
        chains.into_iter().filter_map(|chain| self.layers.get(chain).cloned()).collect()
    }

    /// The additional space that a namespace would be charged for an image that is in the store.
    pub(super) fn missing_for(&self, owner: &Owner, digest: Digest) -> Space {
        let mut missing = self.images.get(&digest).map(|stored| stored.documents).unwrap_or_default();
        self.layers_of(digest).iter().for_each(|layer| missing += self.missing_of(owner, layer));
        missing
    }

    fn missing_of(&self, owner: &Owner, layer: &Layer) -> Space {
        let has = self.holdings.get(name(owner)).is_some_and(|holding| holding.layers.contains_key(&layer.chain));
        if has { Space::default() } else { layer.space }
    }

    fn used_by(&self, name: &str) -> Space {
        self.holdings.get(name).map(|holding| holding.used).unwrap_or_default()
    }

    /// The next image to remove for space of a namespace. It is one that is not in use and belongs
    /// to this namespace only. If there is none, it belongs to namespaces that have more than this
    /// one would have then: the one whose namespace has most, least recently used first.
    fn next_victim(&self, disk: &Disk, owner: &Owner, needed: Space, unit: fn(Space) -> u64) -> Option<Digest> {
        let own = unit(self.used_by(name(owner))).saturating_add(unit(needed));
        let idle = self.images.iter().filter(|(_, stored)| stored.is_idle());
        let ranked = idle.filter_map(|(digest, stored)| {
            let others = stored.leases.keys().filter(|holder| !holder.is_empty() && &***holder != name(owner));
            let least = others.map(|holder| unit(self.used_by(holder))).min();
            let evictable = owner.is_none() || least.is_none_or(|least| least > own);
            evictable.then_some((*digest, least))
        });
        let rank =
            |(digest, least): &(Digest, Option<u64>)| (least.is_some(), Reverse(*least), disk.last_used(*digest));
        ranked.min_by_key(rank).map(|(digest, _)| digest)
    }
}

impl Disk {
    pub(crate) fn reservation(self: &Arc<Self>, owner: &Owner) -> Reservation {
        Reservation { disk: Some(self.clone()), owner: owner.clone(), taken: Space::default(), used: Space::default() }
    }

    /// Holds a layer that is in the store for a pull of this namespace.
    ///
    /// # Errors
    /// Fails if the namespace has reached its bound.
    pub(crate) fn hold(self: &Arc<Self>, owner: &Owner, layer: Arc<Layer>) -> Result<Arc<HeldLayer>> {
        self.changing(|state, moved| {
            self.bring_within(state, owner, moved, |state| state.missing_of(owner, &layer))?;
            Ok(self.held(state, owner, layer))
        })
    }

    /// As [`Disk::hold`], without a check of the bound.
    pub(super) fn held(self: &Arc<Self>, state: &mut State, owner: &Owner, layer: Arc<Layer>) -> Arc<HeldLayer> {
        if owner.is_some() {
            state.holding(owner).hold(&layer);
        }
        Arc::new(HeldLayer { layer, disk: self.clone(), owner: owner.clone() })
    }

    /// Reserves space, and returns how much: more than requested if it is free anyway.
    fn take(&self, owner: &Owner, space: Space) -> Result<Space> {
        self.leaves_reserve(space)?;
        self.changing(|state, moved| {
            let mut free = self.limit;
            free -= state.used;
            if let Some(bound) = bound(owner) {
                let left = bound.zip(state.used_by(name(owner)), u64::saturating_sub);
                free = free.zip(left, u64::min);
            }
            let piece = space.zip(PIECE.zip(free, |piece, free| piece.min(free / 64)), u64::max);
            let taken = if piece.fits(free) { piece } else { space };
            if !taken.fits(free) {
                self.bring_within(state, owner, moved, |_| space)?;
                self.free_space(state, owner, space, moved)?;
            }
            state.add(owner, taken);
            Ok(taken)
        })
    }

    /// Changes the state, and removes the files that have been moved out of the way.
    pub(super) fn changing<T>(&self, change: impl FnOnce(&mut State, &mut Vec<PathBuf>) -> Result<T>) -> Result<T> {
        let mut moved = Vec::new();
        let changed = change(&mut self.state(), &mut moved);
        self.remove_all(moved)?;
        changed
    }

    /// Takes from a namespace images that it does not use, until the needed space is within its
    /// bound.
    pub(super) fn bring_within(
        &self,
        state: &mut State,
        owner: &Owner,
        moved: &mut Vec<PathBuf>,
        needed: impl Fn(&State) -> Space,
    ) -> Result<()> {
        let (Some(bound), Some(namespace)) = (bound(owner), owner) else { return Ok(()) };
        loop {
            let (used, needed) = (state.used_by(name(owner)), needed(state));
            let mut all = used;
            all += needed;
            if all.fits(bound) || needed == Space::default() {
                return Ok(());
            }
            let idle = state.images.iter().filter(|(_, stored)| stored.is_idle_of(name(owner)));
            let Some(oldest) = idle.map(|(digest, _)| *digest).min_by_key(|digest| self.last_used(*digest)) else {
                let (resource, limit, needed) = if all.bytes > bound.bytes {
                    (Resource::ImageBytes, bound.bytes, needed.bytes)
                } else {
                    (Resource::ImageFiles, bound.files, needed.files)
                };
                namespace.count(resource).count_refusal();
                let (namespace, bound) = (namespace.name().to_string(), resource.name());
                return Err(Error::Quota { namespace, bound, limit, needed });
            };
            tracing::info!(image = %oldest, namespace = name(owner), "an image that is not in use makes space for another of its namespace");
            self.let_go(state, name(owner), oldest, moved)?;
        }
    }

    /// Takes an image from a namespace. It is removed if no other namespace has it.
    fn let_go(&self, state: &mut State, name: &str, digest: Digest, moved: &mut Vec<PathBuf>) -> Result<()> {
        state.release_image(name, digest);
        if state.images.get(&digest).is_some_and(|stored| stored.is_unheld()) {
            self.forget_image(state, digest, moved)?;
            while self.forget_unused_layer(state, moved)? {}
            return Ok(());
        }
        self.forget_holder(digest, name);
        Ok(())
    }

    /// Moves images and layers that are not in use out of the way, until there is space. The caller
    /// has to remove the moved files.
    pub(super) fn free_space(
        &self,
        state: &mut State,
        owner: &Owner,
        needed: Space,
        moved: &mut Vec<PathBuf>,
    ) -> Result<()> {
        loop {
            let mut all = state.used;
            all += needed;
            if all.fits(self.limit) {
                return Ok(());
            }
            let (name, unit): (_, fn(Space) -> u64) = if all.bytes > self.limit.bytes {
                ("bytes", |space| space.bytes)
            } else {
                ("files", |space| space.files)
            };
            if self.forget_unused_layer(state, moved)? {
                continue;
            }
            // Removing an image whose layers are all in use by others frees nothing, but is no loss
            // either.
            let Some(oldest) = state.next_victim(self, owner, needed, unit) else {
                let (limit, needed) = (unit(self.limit), unit(needed));
                return Err(Error::Full { folder: self.folder.clone(), unit: name, limit, needed });
            };
            let holders: Vec<_> =
                state.images.get(&oldest).map(|stored| stored.leases.keys().cloned().collect()).unwrap_or_default();
            holders.iter().for_each(|holder| state.release_image(holder, oldest));
            self.forget_image(state, oldest, moved)?;
            tracing::info!(image = %oldest, "an image that is not in use makes space for others");
        }
    }

    /// Refuses to take the last space of the file system, which the rest of the node needs.
    fn leaves_reserve(&self, space: Space) -> Result<()> {
        let Ok(found) = rustix::fs::fstatvfs(&self.lock) else { return Ok(()) };
        let all = Space { bytes: found.f_blocks * found.f_frsize, files: found.f_files };
        let free = Space { bytes: found.f_bavail * found.f_frsize, files: found.f_favail };
        let reserve = all.zip(MAX_RESERVE, |all, most| (all / 20).min(most));
        let short = |unit, free: u64, reserve, needed| {
            let error = || Error::Disk { folder: self.folder.clone(), unit, free, reserve };
            if free.saturating_sub(needed) < reserve { Err(error()) } else { Ok(()) }
        };
        short("bytes", free.bytes, reserve.bytes, space.bytes)?;
        // Some file systems do not count files.
        if all.files == 0 { Ok(()) } else { short("files", free.files, reserve.files, space.files) }
    }
}

/// The bound on the space of a namespace.
fn bound(owner: &Owner) -> Option<Space> {
    let of = |resource| owner.as_ref().map(|namespace| namespace.count(resource).bound());
    Some(Space { bytes: of(Resource::ImageBytes)?, files: of(Resource::ImageFiles)? })
}

/// Reserved space of the store, charged to a namespace, for a layer or image that is being made.
pub(crate) struct Reservation {
    /// `None` once a layer or an image has taken the space over.
    disk: Option<Arc<Disk>>,
    owner: Owner,
    taken: Space,
    used: Space,
}

impl Reservation {
    pub(crate) fn take(&mut self, space: Space) -> Result<()> {
        let mut used = self.used;
        used += space;
        if !used.fits(self.taken)
            && let Some(disk) = &self.disk
        {
            let missing = used.zip(self.taken, u64::saturating_sub);
            self.taken += disk.take(&self.owner, missing)?;
        }
        self.used = used;
        Ok(())
    }

    pub(crate) fn used(&self) -> Space {
        self.used
    }

    /// Leaves the used space to the store. The namespace is charged from now on only as long as it
    /// has the layer or image.
    pub(super) fn keep(mut self, state: &mut State) {
        state.subtract(&self.owner, self.taken);
        state.used += self.used;
        self.disk = None;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(disk) = &self.disk {
            disk.state().subtract(&self.owner, self.taken);
        }
    }
}
