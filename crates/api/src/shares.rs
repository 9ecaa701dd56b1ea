//! The shares of requests that the revisions of a function are to get, and those that they serve.

use leno_dashboard::mesh::RevisionShare;
use leno_model::revision::{self, Revisions};
use leno_model::{FunctionId, InstanceState};
use leno_supervisor::{FunctionStatus, ImageState};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A revision has failed if so many of its instances failed and none has been ready.
pub(crate) const FAILURES: u64 = 5;

/// The instances of a revision on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RevisionProgress {
    pub function: String,
    pub revision: u32,
    pub desired: u64,
    /// Instances that get requests for it, those of former revisions included.
    pub ready: u64,
    /// Those among them that are of a former revision, by its number. They serve until the new ones
    /// are ready.
    pub former: BTreeMap<u32, u64>,
    pub starting: u64,
    pub waiting: u64,
    /// Instances that have failed since one was ready.
    pub failing: u64,
    /// Why no instance can start, or why the last one failed.
    pub reason: Option<String>,
    /// Its image cannot be pulled.
    pub no_image: bool,
    /// The node; empty: the process that answers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
}

impl RevisionProgress {
    pub(crate) fn of(status: &FunctionStatus, images: &[(FunctionId, u32, ImageState)]) -> Self {
        let no_image = images.iter().find_map(|(id, revision, image)| match image {
            ImageState::Failed(reason) if (id, *revision) == (&status.function, status.revision) => Some(reason),
            _ => None,
        });
        let failure = status.last_failure.as_ref().filter(|_| status.failing > 0);
        let count = |state| status.count(state) as u64;
        Self {
            function: status.function.to_string(),
            revision: status.revision,
            desired: status.scaling.desired.into(),
            ready: count(InstanceState::Ready),
            former: status.former.iter().map(|(number, ready)| (*number, u64::from(*ready))).collect(),
            starting: count(InstanceState::Starting),
            waiting: status.waiting as u64,
            failing: status.failing.into(),
            reason: no_image.map(|reason| format!("its image cannot be pulled: {reason}")).or_else(|| failure.cloned()),
            no_image: no_image.is_some(),
            node: String::new(),
        }
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.function.split_once('/').map(|(namespace, _)| namespace)
    }

    /// Ready instances of the revision itself.
    pub(crate) fn own(&self) -> u64 {
        self.ready.saturating_sub(self.former.values().sum())
    }

    /// Whether none is ready, and the last one failed.
    fn fails(&self) -> bool {
        self.own() == 0 && (self.failing > 0 || self.no_image)
    }

    /// Whether another try is unlikely to succeed.
    pub(crate) fn is_final(&self) -> bool {
        self.no_image || self.failing >= FAILURES
    }
}

/// The revisions of a function: the percentages of the configuration, and their instances.
pub(crate) struct FunctionShares<'a> {
    id: &'a FunctionId,
    percents: BTreeMap<u32, u64>,
    progress: Vec<&'a RevisionProgress>,
}

impl<'a> FunctionShares<'a> {
    /// Of the progress of any functions, it reads this one's.
    pub(crate) fn new(
        id: &'a FunctionId,
        percents: impl IntoIterator<Item = (u32, u8)>,
        progress: impl IntoIterator<Item = &'a RevisionProgress>,
    ) -> Self {
        let mut shares = Self { id, percents: BTreeMap::new(), progress: progress.into_iter().collect() };
        for (number, percent) in percents {
            *shares.percents.entry(number).or_default() += u64::from(percent);
        }
        shares
    }

    /// The percentages of a configuration.
    pub(crate) fn percents(revisions: &Revisions) -> Vec<(u32, u8)> {
        match &revisions.split {
            Some(split) => split.targets.iter().map(|target| (target.revision, target.percent)).collect(),
            None => vec![(revisions.number, 100)],
        }
    }

    fn of(&self, number: u32) -> impl Iterator<Item = &'a RevisionProgress> {
        self.progress.iter().copied().filter(move |progress| progress.revision == number)
    }

    /// The part of a revision's percentage that instances of a former one serve: as large as their
    /// part of the ready instances.
    fn taken(&self, number: u32, former: u32) -> u64 {
        let ready: u64 = self.of(number).map(|progress| progress.ready).sum();
        let taken: u64 = self.of(number).filter_map(|progress| progress.former.get(&former)).sum();
        let percent = self.percents.get(&number).copied().unwrap_or_default();
        (percent * taken + ready / 2).checked_div(ready).unwrap_or_default()
    }

    /// The former revisions that serve in place of this one, with their percentages.
    fn former(&self, number: u32) -> BTreeMap<u32, u64> {
        let numbers = self.of(number).flat_map(|progress| progress.former.keys());
        numbers.map(|former| (*former, self.taken(number, *former))).collect()
    }

    /// The percentage of requests that instances of a revision serve, or would start to serve.
    pub(crate) fn served(&self, number: u32) -> u64 {
        let for_others: u64 = self.percents.keys().map(|&other| self.taken(other, number)).sum();
        let nothing_starts = self.of(number).any(RevisionProgress::fails) && self.of(number).all(|it| it.ready == 0);
        let own = self.percents.get(&number).copied().filter(|_| !nothing_starts).unwrap_or_default();
        own.saturating_sub(self.former(number).values().sum()) + for_others
    }

    /// The revisions that are to get requests or serve them; empty: it is only one. `declared`
    /// tells the name of a declared revision.
    pub(crate) fn list<'b>(&self, declared: impl Fn(u32) -> Option<&'b str>) -> Vec<RevisionShare> {
        let former = self.progress.iter().flat_map(|progress| progress.former.keys());
        let numbers: BTreeSet<u32> = self.percents.keys().chain(former).copied().collect();
        let share = |number: u32| RevisionShare {
            revision: revision::label(self.id, number, declared(number)),
            percent: self.percents.get(&number).copied().unwrap_or_default(),
            served: self.served(number),
        };
        let shares = numbers.into_iter().map(share).filter(|share| share.percent > 0 || share.served > 0);
        Some(shares.collect()).filter(|shares: &Vec<_>| shares.len() > 1).unwrap_or_default()
    }

    /// Why a revision does not serve its share; `None`: it does, or will soon.
    pub(crate) fn problem(&self, number: u32) -> Option<RevisionProblem> {
        let failing = self.of(number).find(|progress| progress.fails())?;
        let reason = failing.reason.as_deref().unwrap_or("no reason is known");
        let node = if failing.node.is_empty() { String::new() } else { format!(" (node {})", failing.node) };
        let named = |(former, percent)| (revision::name(self.id, former), percent);
        let former = self.former(number).into_iter().map(named).collect();
        Some(RevisionProblem { reason: format!("{reason}{node}"), former, is_final: failing.is_final() })
    }
}

/// The condition of a revision of which no instance is ready, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RevisionProblem {
    pub reason: String,
    /// The revisions that still serve in its place, with their percentages.
    pub former: Vec<(String, u64)>,
    /// Another try is unlikely to succeed.
    pub is_final: bool,
}

impl fmt::Display for RevisionProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.former.is_empty() { "fails" } else { "cannot start" };
        write!(f, "{what}: {}", self.reason)?;
        let former = self.former.iter().map(|(former, percent)| format!("{percent} % still served by {former}"));
        former.into_iter().try_for_each(|former| write!(f, "; {former}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(revision: u32, own: u64, former: &[(u32, u64)], failing: u64) -> RevisionProgress {
        let former: BTreeMap<_, _> = former.iter().copied().collect();
        let ready = own + former.values().sum::<u64>();
        let reason = (failing > 0).then(|| "exit status: 1".to_owned());
        RevisionProgress { revision, ready, former, failing, reason, ..RevisionProgress::default() }
    }

    #[test]
    fn former_revisions_serve_as_much_as_their_part_of_the_ready_instances() {
        let id: FunctionId = "demo/shop".parse().unwrap();
        let of = |percents: &[(u32, u8)], progress: &[RevisionProgress]| {
            let shares = FunctionShares::new(&id, percents.iter().copied(), progress);
            let problem = |number: u32| shares.problem(number).map(|problem| problem.to_string());
            ([1, 2, 3].map(|number| shares.served(number)), [2, 3].map(problem))
        };
        let cannot = |rest: &str| Some(format!("cannot start: exit status: 1; {rest}"));
        for (percents, rows, served, problems) in [
            // One node, and the new revision cannot start.
            (
                &[(2, 100)][..],
                vec![progress(2, 0, &[(1, 3)], 2)],
                [100, 0, 0],
                [cannot("100 % still served by shop-00001"), None],
            ),
            // It starts, and has not failed.
            (&[(2, 100)], vec![progress(2, 0, &[(1, 3)], 0)], [100, 0, 0], [None, None]),
            // A node on which it is ready, and one on which it is not.
            (
                &[(2, 100)],
                vec![progress(2, 1, &[], 0), progress(2, 0, &[(1, 1)], 1)],
                [50, 50, 0],
                [cannot("50 % still served by shop-00001"), None],
            ),
            // Two nodes with different former revisions.
            (
                &[(3, 100)],
                vec![progress(3, 0, &[(1, 1)], 1), progress(3, 0, &[(2, 3)], 1)],
                [25, 75, 0],
                [None, cannot("25 % still served by shop-00001; 75 % still served by shop-00002")],
            ),
            // No other revision serves for a part of a split.
            (
                &[(1, 90), (2, 10)],
                vec![progress(1, 1, &[], 0), progress(2, 0, &[], 4)],
                [90, 0, 0],
                [Some("fails: exit status: 1".to_owned()), None],
            ),
            // Another part has.
            (
                &[(2, 60), (3, 40)],
                vec![progress(2, 0, &[(1, 2)], 1), progress(3, 1, &[], 0)],
                [60, 0, 40],
                [cannot("60 % still served by shop-00001"), None],
            ),
            // Without instances, a request starts one. Without an answer, nothing else is known.
            (&[(2, 100)], vec![progress(2, 0, &[], 0)], [0, 100, 0], [None, None]),
            (&[(2, 100)], vec![], [0, 100, 0], [None, None]),
            // One of several instances has failed.
            (&[(2, 100)], vec![progress(2, 2, &[], 1)], [0, 100, 0], [None, None]),
        ] {
            assert_eq!(of(percents, &rows), (served, problems), "{percents:?} {rows:?}");
        }
    }

    #[test]
    fn shares_are_listed_if_there_are_several() {
        let id: FunctionId = "demo/shop".parse().unwrap();
        let of = |percents: &[(u32, u8)], progress: &[RevisionProgress]| {
            let shares = FunctionShares::new(&id, percents.iter().copied(), progress);
            let list = shares.list(|number| (number == 2).then_some("next"));
            list.into_iter().map(|share| (share.revision, share.percent, share.served)).collect::<Vec<_>>()
        };
        let next = |percent, served| ("shop-00002 (next)".to_owned(), percent, served);
        let first = |percent, served| ("shop-00001".to_owned(), percent, served);
        assert_eq!(of(&[(2, 100)], &[progress(2, 1, &[], 0)]), []);
        assert_eq!(of(&[(1, 0), (2, 100)], &[]), []);
        assert_eq!(of(&[(1, 90), (2, 10)], &[]), [first(90, 90), next(10, 10)]);
        assert_eq!(of(&[(2, 100)], &[progress(2, 0, &[(1, 1)], 3)]), [first(0, 100), next(100, 0)]);
    }

    #[test]
    fn nodes_of_an_earlier_release_have_no_former_revisions() {
        let row = r#"{"function": "demo/shop", "revision": 2, "desired": 1, "ready": 1, "reason": null, "node": "a"}"#;
        let read: RevisionProgress = serde_json::from_str(row).unwrap();
        assert_eq!((read.own(), &*read.node), (1, "a"));
        let sent = progress(2, 0, &[(1, 3)], 2);
        let value = serde_json::json!(sent);
        assert_eq!(serde_json::from_value::<RevisionProgress>(value).unwrap(), sent);
    }
}
