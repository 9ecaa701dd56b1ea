//! Decides which of a function's revisions gets a request.

use super::component::Component;
use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::revision::{self, Split, TAG_HEADER, Target};
use leno_model::{AppProtocol, Run};
use leno_model::{FunctionConfig, FunctionId};
use leno_telemetry::stats::RevisionLabel;
use std::sync::{Arc, OnceLock};

/// The revisions of a function that get requests.
#[derive(Debug)]
pub struct Revisions {
    own: Arc<Revision>,
    /// Empty if the configuration has no split.
    others: Box<[Arc<Revision>]>,
    /// `None`: there is only one revision, and nothing to decide.
    split: Option<Choice>,
}

/// A revision, as far as requests depend on it.
#[derive(Debug)]
pub struct Revision {
    /// The revision's name in records.
    pub label: Arc<RevisionLabel>,
    /// The protocol that the revision's instances speak.
    pub protocol: AppProtocol,
    /// `None`: the revision is not a component.
    pub component: Option<Component>,
}

/// Headers that a request must have, all of them.
type RequiredHeaders = Vec<(HeaderName, HeaderValue)>;

#[derive(Debug)]
struct Choice {
    tags: Vec<(Box<str>, Arc<Revision>)>,
    headers: Vec<(RequiredHeaders, Arc<Revision>)>,
    /// Cumulative percentages. A revision gets the points from its predecessor's number up to but
    /// excluding its own.
    shares: Vec<(u8, Arc<Revision>)>,
    /// Differs between functions, so that no two of them divide requests in the same way.
    salt: u64,
}

impl Revisions {
    /// The revisions of a function's configuration. `load` prepares the component of a revision
    /// that is one.
    pub fn new(config: &FunctionConfig, load: impl Fn(&Run) -> Option<Component>) -> Self {
        let revision = |number: u32, run: &Run, protocol: AppProtocol| {
            let name = revision::label(&config.id, number, config.revisions.name(number)).into();
            let label = Arc::new(RevisionLabel { number, name, stats: OnceLock::new() });
            Arc::new(Revision { label, protocol, component: load(run) })
        };
        let own = revision(config.revisions.number, &config.run, config.protocol);
        let Some(split) = &config.revisions.split else {
            return Self { own, others: Box::default(), split: None };
        };
        let others = split.others.iter().map(|of| revision(of.number, &of.template.run, of.template.protocol));
        let others: Box<[_]> = others.collect();
        let choice = Choice::new(&config.id, split, |target| {
            others.iter().find(|revision| revision.label.number == target.revision).unwrap_or(&own).clone()
        });
        Self { own, others, split: Some(choice) }
    }

    /// All revisions, the configuration's own first.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Revision>> {
        std::iter::once(&self.own).chain(&self.others)
    }

    /// The revision with this tag or name.
    pub fn named(&self, name: &str) -> Option<&Arc<Revision>> {
        let tagged = self.split.iter().flat_map(|choice| &choice.tags).find(|(tag, _)| **tag == *name);
        let is_named = |revision: &&Arc<Revision>| {
            // `checkout-00003`, or `checkout-00003 (stable)`.
            let mut words = revision.label.name.split(' ');
            let declared = |word: &str| word.strip_prefix('(').and_then(|word| word.strip_suffix(')')) == Some(name);
            words.next() == Some(name) || words.next().is_some_and(declared)
        };
        tagged.map(|(_, revision)| revision).or_else(|| self.all().find(is_named))
    }

    /// The revision for a request with these headers. Percentages divide requests by request id, so
    /// all attempts of a request, and all calls that are made for it, get the same revision.
    pub fn pick(&self, headers: &HeaderMap, request_id: &HeaderValue) -> &Arc<Revision> {
        match &self.split {
            None => &self.own,
            Some(choice) => choice.pick(headers, request_id).unwrap_or(&self.own),
        }
    }
}

impl Choice {
    fn new(function: &FunctionId, split: &Split, revision: impl Fn(&Target) -> Arc<Revision>) -> Self {
        let (mut tags, mut headers, mut shares, mut below) = (Vec::new(), Vec::new(), Vec::new(), 0_u8);
        for target in &split.targets {
            if let Some(tag) = &target.tag {
                tags.push((tag.as_str().into(), revision(target)));
            }
            if !target.headers.is_empty() {
                // No request can have such a header, and the configuration refuses it.
                let parsed = target.headers.iter().map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)));
                if let Some(wanted) = parsed.collect::<Option<RequiredHeaders>>() {
                    headers.push((wanted, revision(target)));
                }
            }
            if target.percent > 0 {
                below = below.saturating_add(target.percent);
                shares.push((below, revision(target)));
            }
        }
        let salt = function.namespace.bytes().chain([b'/']).chain(function.name.bytes()).fold(FNV, fnv);
        Self { tags, headers, shares, salt }
    }

    fn pick(&self, headers: &HeaderMap, request_id: &HeaderValue) -> Option<&Arc<Revision>> {
        if !self.tags.is_empty()
            && let Some(asked) = headers.get(TAG_HEADER)
            && let Some((_, revision)) = self.tags.iter().find(|(tag, _)| tag.as_bytes() == asked.as_bytes())
        {
            return Some(revision);
        }
        let has = |(name, value): &(HeaderName, HeaderValue)| headers.get_all(name).iter().any(|sent| sent == value);
        if let Some((_, revision)) = self.headers.iter().find(|(wanted, _)| wanted.iter().all(has)) {
            return Some(revision);
        }
        let point = mix(request_id.as_bytes().iter().copied().fold(self.salt, fnv)) % 100;
        self.shares.iter().find(|(below, _)| point < u64::from(*below)).map(|(_, revision)| revision)
    }
}

/// Offset basis of FNV-1a.
const FNV: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
}

/// Spreads FNV's hash over all bits (the finalizer of MurmurHash3), so that ids which differ in one
/// digit are not neighbours.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::config;

    fn revisions(name: &str, targets: Vec<Target>, others: &[u32]) -> Revisions {
        let mut config = config(name);
        config.revisions.number = 1;
        let template = config.template();
        let others =
            others.iter().map(|number| revision::Revision { number: *number, template: template.clone() }).collect();
        config.revisions.split = Some(Box::new(Split { targets, others }));
        Revisions::new(&config, |_| None)
    }

    fn share(revision: u32, percent: u8) -> Target {
        Target { revision, percent, ..Target::default() }
    }

    fn picked(revisions: &Revisions, headers: &[(&'static str, &'static str)], id: &str) -> u32 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        revisions.pick(&map, &HeaderValue::from_str(id).unwrap()).label.number
    }

    #[test]
    fn shares_are_kept_and_a_request_meets_the_same_revision_again() {
        let revisions = revisions("shop/checkout", vec![share(1, 70), share(2, 25), share(3, 5)], &[2, 3]);
        let mut counts = [0_u32; 4];
        for number in 0..20_000 {
            let id = format!("request-{number}");
            let revision = picked(&revisions, &[], &id);
            assert_eq!(revision, picked(&revisions, &[], &id));
            counts[revision as usize] += 1;
        }
        for (revision, percent) in [(1, 70), (2, 25), (3, 5)] {
            let share = f64::from(counts[revision]) / 200.0;
            assert!((share - f64::from(percent)).abs() < 1.0, "{counts:?}");
        }
    }

    #[test]
    fn two_functions_divide_requests_independently() {
        let halves = || vec![share(1, 50), share(2, 50)];
        let (one, two) = (revisions("shop/one", halves(), &[2]), revisions("shop/two", halves(), &[2]));
        let ids = (0..10_000).map(|number| format!("request-{number}"));
        let alike = ids.filter(|id| picked(&one, &[], id) == picked(&two, &[], id)).count();
        assert!((4_700..5_300).contains(&alike), "{alike}");
    }

    #[test]
    fn tags_come_before_headers_and_headers_before_shares() {
        let tagged = Target { tag: Some("new".to_owned()), ..share(3, 0) };
        let wanted = vec![("x-group".to_owned(), "staff".to_owned()), ("x-try".to_owned(), "1".to_owned())];
        let headed = Target { headers: wanted, ..share(2, 0) };
        let revisions = revisions("shop/checkout", vec![share(1, 100), headed, tagged], &[2, 3]);
        let staff = [("x-group", "staff"), ("x-try", "1")];
        assert_eq!(picked(&revisions, &staff, "a"), 2);
        assert_eq!(picked(&revisions, &staff[..1], "a"), 1, "one of the two headers is not enough");
        assert_eq!(picked(&revisions, &[("x-group", "entry"), staff[0], staff[1]], "a"), 2, "one value of several");
        assert_eq!(picked(&revisions, &[staff[0], staff[1], ("leno-tag", "new")], "a"), 3);
        assert_eq!(picked(&revisions, &[("leno-tag", "unknown")], "a"), 1);
    }

    #[test]
    fn a_revision_has_the_names_of_its_tag_its_number_and_the_document() {
        let mut config = config("shop/checkout");
        (config.revisions.number, config.revisions.names) = (1, vec![(1, "stable".into()), (2, "next".into())]);
        let template = config.template();
        let targets = vec![share(1, 100), Target { tag: Some("try".to_owned()), ..share(2, 0) }];
        let others = vec![revision::Revision { number: 2, template }];
        config.revisions.split = Some(Box::new(Split { targets, others }));
        let revisions = Revisions::new(&config, |_| None);
        let number = |name| revisions.named(name).map(|revision| revision.label.number);
        assert_eq!(["try", "next", "checkout-00002"].map(number), [Some(2); 3]);
        assert_eq!(["stable", "checkout-00001"].map(number), [Some(1); 2]);
        assert_eq!(["", "(next)", "checkout", "checkout-00003"].map(number), [None; 4]);
    }

    #[test]
    fn one_revision_is_no_choice() {
        let mut config = config("shop/checkout");
        config.revisions.number = 7;
        let revisions = Revisions::new(&config, |_| None);
        assert_eq!(picked(&revisions, &[("leno-tag", "new")], "a"), 7);
        assert_eq!(&*revisions.own.label.name, "checkout-00007");
    }
}
