//! The issuers that a policy can name in short form: those whose tokens functions of its namespace
//! accept.

use super::TypedDocument;
use crate::document;
use crate::problem::Origin;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Issuers of authentication sections.
pub(super) struct Issuers<'a> {
    /// Each with the namespaces that its policies are in or apply to; `*`: all.
    namespaces: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Issuers<'a> {
    pub(super) fn of(policies: &'a [Arc<TypedDocument<document::Policy>>]) -> Self {
        let mut namespaces: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for placed in policies {
            let document::Policy { metadata, spec, .. } = &placed.document;
            let Some(section) = &spec.authentication else { continue };
            let named = spec.functions.iter().filter_map(|name| Some(name.split_once('/')?.0));
            let selected = spec.namespaces.iter().flatten().map(String::as_str);
            let about: Vec<&str> = named.chain(selected).chain([metadata.namespace.as_str()]).collect();
            for issuer in &section.issuers {
                namespaces.entry(issuer.issuer.as_str()).or_default().extend(&about);
            }
        }
        Self { namespaces }
    }

    /// Whether the issuers and their namespaces are these.
    pub(super) fn are(&self, others: &BTreeMap<String, BTreeSet<String>>) -> bool {
        let mut pairs = self.namespaces.iter().zip(others);
        let is_same = pairs
            .all(|((one, about), (other, of))| one == other && about.iter().copied().eq(of.iter().map(String::as_str)));
        self.namespaces.len() == others.len() && is_same
    }

    /// The issuers and their namespaces.
    pub(super) fn to_owned(&self) -> BTreeMap<String, BTreeSet<String>> {
        let owned = |names: &BTreeSet<&str>| names.iter().map(|name| (*name).to_owned()).collect();
        self.namespaces.iter().map(|(issuer, about)| ((*issuer).to_owned(), owned(about))).collect()
    }

    /// The issuers that a document of a namespace can mean. A request may come from a tenant, who
    /// must not learn other namespaces' issuers, and whose documents must not be refused because of
    /// them.
    pub(super) fn known_to(&self, namespace: &str, origin: Origin) -> impl Iterator<Item = &'a str> {
        let known = move |about: &BTreeSet<&str>| about.contains(namespace) || about.contains("*");
        let all = self.namespaces.iter().filter(move |(_, about)| origin == Origin::File || known(about));
        all.map(|(issuer, _)| *issuer)
    }
}
