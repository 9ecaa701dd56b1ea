//! Results for single documents of a cluster, kept from one compilation to the next.
//!
//! One function compiles all documents, with a cache or without. Where it looks at one document, it
//! takes the result of the last compilation if all that the result depends on is the same: the
//! document, the Mesh and the quotas, and the functions that the compiler looked up for it, which
//! [`Lookups`] records. So the cost of a change depends on the documents that it concerns.

use super::issuers::Issuers;
use super::{Documents, TypedDocument};
use crate::document;
use crate::permissions::{Fingerprint, fingerprint};
use crate::problem::{MAX_PROBLEMS, Problem};
use crate::snapshot::{Function, Policy};
use leno_model::{FunctionId, SpiffeId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Results of the last compilation. Clones share them.
#[derive(Clone, Default)]
pub struct CompileCache(Arc<Mutex<Results>>);

impl CompileCache {
    /// A compilation that panics leaves results that are complete.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Results> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Shared<T> = Arc<TypedDocument<T>>;

/// Documents by their addresses. An entry holds its document, so the address is no other one's.
type ByAddress<T> = HashMap<usize, T>;

/// Results for single documents.
#[derive(Default)]
pub(crate) struct Results {
    /// Whether results are kept.
    keeps: bool,
    common: Common,
    /// The documents by which functions and external services are known.
    known: BTreeMap<FunctionId, usize>,
    /// The same documents, in order.
    order: Vec<usize>,
    functions: ByAddress<CachedFunction>,
    policies: ByAddress<CachedPolicy>,
    /// The functions of each service account that several have.
    sharers: BTreeMap<SpiffeId, Vec<FunctionId>>,
    /// The number of this compilation.
    turn: u64,
}

/// The documents on which all results depend, and facts that few results depend on.
#[derive(Default)]
struct Common {
    meshes: Vec<Shared<document::Mesh>>,
    quotas: Vec<Shared<document::NamespaceQuota>>,
    externals: Vec<Shared<document::External>>,
    asking: BTreeSet<FunctionId>,
    issuers: BTreeMap<String, BTreeSet<String>>,
}

struct CachedFunction {
    document: Shared<document::Function>,
    identity: Option<SpiffeId>,
    function: Option<Function>,
    turn: u64,
}

struct CachedPolicy {
    /// Keeps the address.
    _document: Shared<document::Policy>,
    policy: Arc<Policy>,
    fingerprint: Fingerprint,
    doubts: Vec<Problem>,
    lookups: Lookups,
    /// The functions that it selects, and the doubts about them.
    selected: Option<(BTreeSet<FunctionId>, Vec<Problem>)>,
    /// Whether rules that name callers with a shared account are refused, and the doubts about them.
    sharing: Option<(bool, Vec<Problem>)>,
    warnings: Option<PolicyWarnings>,
    turn: u64,
}

/// The warnings of a policy, which depend on the functions that it applies to.
pub(super) struct PolicyWarnings {
    pub targets: Vec<WarnedTarget>,
    pub found: Vec<Problem>,
    /// The values that were compared.
    pub cost: u64,
}

/// The part of a function on which warnings of its policies depend.
pub(super) struct WarnedTarget {
    pub id: FunctionId,
    pub timeout: Duration,
    pub policies: Vec<Arc<Policy>>,
}

/// The facts about other documents that the result for one depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lookups {
    /// Functions and external services that were looked up by name.
    pub ids: BTreeSet<FunctionId>,
    /// The compiler searched all functions.
    pub all: bool,
    /// It looked at the issuers of all policies.
    pub issuers: bool,
}

fn address<T>(document: &Arc<T>) -> usize {
    Arc::as_ptr(document).addr()
}

fn are_same<T>(one: &[Arc<T>], other: &[Arc<T>]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| Arc::ptr_eq(one, other))
}

/// Adds doubts that were found before, as if they were found now.
pub(super) fn repeat(doubts: &RefCell<Vec<Problem>>, found: &[Problem]) {
    let mut doubts = doubts.borrow_mut();
    let room = MAX_PROBLEMS.saturating_sub(doubts.len());
    doubts.extend(found.iter().take(room).cloned());
}

impl Results {
    /// Begins a compilation: forgets results that depend on something that has changed. `names` and
    /// `externals`: indices of functions and external services.
    pub(super) fn begin(
        &mut self,
        documents: &Documents,
        (names, externals): (&BTreeMap<FunctionId, usize>, &BTreeMap<FunctionId, usize>),
        (asking, issuers): (&BTreeSet<FunctionId>, &Issuers<'_>),
    ) {
        self.keeps = documents.cache.is_some() && is_of_cluster(documents);
        if !self.keeps {
            *self = Self::default();
            return;
        }
        self.turn += 1;
        let Common { meshes, quotas, .. } = &self.common;
        if !are_same(meshes, &documents.meshes) || !are_same(quotas, &documents.namespace_quotas) {
            self.functions.clear();
            self.policies.clear();
            self.common.meshes.clone_from(&documents.meshes);
            self.common.quotas.clone_from(&documents.namespace_quotas);
        }
        if self.common.asking != *asking {
            self.policies.clear();
            self.common.asking.clone_from(asking);
        }
        if !issuers.are(&self.common.issuers) {
            self.policies.retain(|_, cached| !cached.lookups.issuers);
            self.common.issuers = issuers.to_owned();
        }
        let functions = names.iter().map(|(id, index)| (id, address(&documents.functions[*index])));
        let externals = externals.iter().map(|(id, index)| (id, address(&documents.externals[*index])));
        let all = functions.chain(externals);
        if !all.clone().map(|(_, address)| address).eq(self.order.iter().copied()) {
            self.order = all.clone().map(|(_, address)| address).collect();
            self.forget_dependents(documents, all.map(|(id, address)| (id.clone(), address)).collect());
        }
        self.common.externals.clone_from(&documents.externals);
    }

    /// Forgets the results that depend on functions and external services that differ from before.
    fn forget_dependents(&mut self, documents: &Documents, known: BTreeMap<FunctionId, usize>) {
        let present: ByAddress<_> = documents.functions.iter().map(|placed| (address(placed), placed)).collect();
        let differs = |before: Option<&usize>, now: Option<&usize>| match (before, now) {
            (Some(before), Some(now)) if before == now => false,
            // A function with other ports or in another mode is the same for others.
            (Some(before), Some(now)) => match (self.functions.get(before), present.get(now)) {
                (Some(before), Some(now)) => !is_known_alike(&before.document.document, &now.document),
                _ => true,
            },
            _ => true,
        };
        let ids: BTreeSet<&FunctionId> = self.known.keys().chain(known.keys()).collect();
        let changed = ids.into_iter().filter(|id| differs(self.known.get(*id), known.get(*id)));
        let changed: Vec<FunctionId> = changed.cloned().collect();
        if !changed.is_empty() {
            self.policies
                .retain(|_, cached| !cached.lookups.all && !changed.iter().any(|id| cached.lookups.ids.contains(id)));
        }
        self.known = known;
    }

    /// Ends a compilation: forgets documents that are gone.
    pub(super) fn end(&mut self) {
        let turn = self.turn;
        self.functions.retain(|_, cached| cached.turn == turn);
        self.policies.retain(|_, cached| cached.turn == turn);
    }

    /// The identity of a function's pods.
    pub(super) fn identity(
        &mut self,
        placed: &Shared<document::Function>,
        find: impl FnOnce() -> Option<SpiffeId>,
    ) -> Option<SpiffeId> {
        if !self.keeps {
            return find();
        }
        self.function_entry(placed, find).identity.clone()
    }

    fn function_entry(
        &mut self,
        placed: &Shared<document::Function>,
        find: impl FnOnce() -> Option<SpiffeId>,
    ) -> &mut CachedFunction {
        let turn = self.turn;
        let entry = self.functions.entry(address(placed)).or_insert_with(|| CachedFunction {
            document: placed.clone(),
            identity: find(),
            function: None,
            turn,
        });
        entry.turn = turn;
        entry
    }

    /// Whether the last compilation had this document.
    pub(super) fn has(&self, placed: &Shared<document::Function>) -> bool {
        self.functions.contains_key(&address(placed))
    }

    /// The checked function of a document.
    pub(super) fn function(&self, placed: &Shared<document::Function>) -> Option<Function> {
        self.functions.get(&address(placed))?.function.clone()
    }

    /// Keeps a function whose document alone decides on it.
    pub(super) fn keep_function(&mut self, placed: &Shared<document::Function>, function: &Function) {
        let spec = &placed.document.spec;
        if let Some(entry) = self.functions.get_mut(&address(placed))
            && spec.pods.is_some()
            && spec.callees.is_empty()
        {
            entry.function = Some(function.clone());
        }
    }

    /// The checked policy of a document, and the doubts about it.
    pub(super) fn policy(&mut self, placed: &Shared<document::Policy>) -> Option<(&Arc<Policy>, &[Problem])> {
        let cached = self.policies.get_mut(&address(placed))?;
        cached.turn = self.turn;
        Some((&cached.policy, &cached.doubts))
    }

    /// Keeps a policy that was checked without problems.
    pub(super) fn keep_policy(
        &mut self,
        placed: &Shared<document::Policy>,
        policy: &Arc<Policy>,
        doubts: &[Problem],
        lookups: Lookups,
    ) {
        let spec = &placed.document.spec;
        // Faults end with time, and modules are files.
        if !self.keeps || !spec.faults.is_empty() || !spec.extensions.is_empty() {
            return;
        }
        let cached = CachedPolicy {
            _document: placed.clone(),
            policy: policy.clone(),
            fingerprint: fingerprint(&placed.document),
            doubts: doubts.to_vec(),
            lookups,
            selected: None,
            sharing: None,
            warnings: None,
            turn: self.turn,
        };
        self.policies.insert(address(placed), cached);
    }

    /// The fingerprint of a policy.
    pub(super) fn fingerprint(&self, placed: &Shared<document::Policy>) -> Fingerprint {
        let cached = self.policies.get(&address(placed)).map(|cached| cached.fingerprint);
        cached.unwrap_or_else(|| fingerprint(&placed.document))
    }

    /// The functions that a policy selects, and the doubts about them.
    pub(super) fn selected(&self, placed: &Shared<document::Policy>) -> Option<&(BTreeSet<FunctionId>, Vec<Problem>)> {
        self.policies.get(&address(placed))?.selected.as_ref()
    }

    /// Keeps the functions that a policy selects.
    pub(super) fn keep_selected(
        &mut self,
        placed: &Shared<document::Policy>,
        selected: &BTreeSet<FunctionId>,
        doubts: &[Problem],
        lookups: Lookups,
    ) {
        if let Some(cached) = self.policies.get_mut(&address(placed)) {
            cached.selected = Some((selected.clone(), doubts.to_vec()));
            cached.lookups.ids.extend(lookups.ids);
            cached.lookups.all |= lookups.all;
        }
    }

    /// Replaces the functions that share service accounts, on which doubts about callers depend.
    pub(super) fn set_sharers(&mut self, now: &BTreeMap<SpiffeId, Vec<&FunctionId>>) {
        let is_same = self.sharers.len() == now.len()
            && self
                .sharers
                .iter()
                .zip(now)
                .all(|((one, before), (other, ids))| one == other && before.iter().eq(ids.iter().copied()));
        if !is_same {
            self.policies.values_mut().for_each(|cached| cached.sharing = None);
            let owned =
                |(id, ids): (&SpiffeId, &Vec<&FunctionId>)| (id.clone(), ids.iter().copied().cloned().collect());
            self.sharers = now.iter().map(owned).collect();
        }
    }

    /// The doubts about callers of a policy that share accounts. `is_refused`: such callers are
    /// refused.
    pub(super) fn sharing(&self, placed: &Shared<document::Policy>, is_refused: bool) -> Option<&[Problem]> {
        let (refused, doubts) = self.policies.get(&address(placed))?.sharing.as_ref()?;
        (*refused == is_refused).then_some(doubts)
    }

    /// Keeps those doubts.
    pub(super) fn keep_sharing(&mut self, placed: &Shared<document::Policy>, is_refused: bool, doubts: &[Problem]) {
        if let Some(cached) = self.policies.get_mut(&address(placed)) {
            cached.sharing = Some((is_refused, doubts.to_vec()));
        }
    }

    /// The warnings of a policy.
    pub(super) fn warnings(&self, placed: &Shared<document::Policy>) -> Option<&PolicyWarnings> {
        self.policies.get(&address(placed))?.warnings.as_ref()
    }

    /// Keeps the warnings of a policy. `warnings` is only called if the policy is kept.
    pub(super) fn keep_warnings(
        &mut self,
        placed: &Shared<document::Policy>,
        warnings: impl FnOnce() -> PolicyWarnings,
    ) {
        if let Some(cached) = self.policies.get_mut(&address(placed)) {
            cached.warnings = Some(warnings());
        }
    }
}

/// Whether the documents are those of a cluster alone, whose results are kept.
fn is_of_cluster(documents: &Documents) -> bool {
    let Documents { jobs, chains, stored_secrets, namespaces, gateway_api, foreign, .. } = documents;
    documents.kubernetes
        && !documents.incomplete
        && !documents.unstored
        && documents.stored.is_none()
        && jobs.is_empty()
        && chains.is_empty()
        && stored_secrets.is_empty()
        && namespaces.is_empty()
        && gateway_api.is_empty()
        && foreign.is_empty()
}

/// Whether other documents see no difference between two versions of a function.
fn is_known_alike(before: &document::Function, now: &document::Function) -> bool {
    fn accounts(function: &document::Function) -> Option<(&String, &Vec<String>)> {
        function.spec.pods.as_ref().map(|pods| (&pods.service_account, &pods.other_accounts))
    }
    before.metadata.labels == now.metadata.labels && accounts(before) == accounts(now)
}
