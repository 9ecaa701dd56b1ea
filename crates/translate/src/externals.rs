//! External documents for the external destinations that translated policies allow.
//!
//! A function calls an external destination by name or address, and each name and address leads to
//! one callee. So there is one External document for each name, and one for all addresses that the
//! same rules cover. It has the ports of all of its rules. A separate policy contains the callers and
//! requests that each rule allows. Functions for which other addresses are denied get separate
//! documents.

use crate::egress::{self, Destination, EgressRule, EgressRules};
use crate::ports::PortRule;
use crate::{blocks, cilium};
use leno_config::document::{
    self, Action, ApiVersion, CalleeRules, ExternalKind, ExternalPort, ExternalSpec, ExternalTimeouts, ExternalTls,
    FunctionSelector, Labels, Metadata, PolicyKind, PolicySpec, Source,
};
use leno_config::{Documents, TypedDocument, check};
use leno_model::EgressProtocol;
use leno_model::FunctionId;
use leno_model::special_address::special_around;
use leno_policy::spec::Cidr;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The part of a translated policy that is about external calls.
pub(super) struct ExternalCalls {
    /// Its index among the documents' policies.
    pub(super) policy: usize,
    /// Selects its functions.
    pub(super) selector: FunctionSelector,
    pub(super) egress: EgressRules,
}

/// A rule: the index of the translation, and the index in it.
type Rule = (usize, usize);

/// The first rule that names a destination, and the index of the destination.
type Origin = (Rule, usize);

/// The content of an External document.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Content {
    hosts: Vec<String>,
    addresses: Vec<String>,
    resolves_to: Vec<String>,
    rules: Vec<Rule>,
}

/// An External document that is to be added.
struct NewExternal {
    content: Content,
    origin: Origin,
    callers: Vec<FunctionId>,
}

/// Adds External documents, policies for them, and the callees of the functions that may call them.
pub(super) fn add(documents: &mut Documents, translations: &[ExternalCalls]) {
    if translations.is_empty() {
        return;
    }
    let written: BTreeMap<FunctionId, ExternalSpec> = documents
        .externals
        .iter()
        .filter_map(|placed| Some((id(&placed.document.metadata)?, placed.document.spec.clone())))
        .collect();
    for ExternalCalls { policy, egress, .. } in translations {
        if let Some(rules) = documents
            .policies
            .get_mut(*policy)
            .and_then(|placed| Arc::make_mut(placed).document.spec.callee_rules.as_mut())
        {
            name_written(rules, egress, &written);
        }
    }
    let mut planned: Vec<NewExternal> = Vec::new();
    for (caller, labels, callees) in callers(documents) {
        let own = |(_, translation): &(usize, &ExternalCalls)| translation.selector.holds(&caller.namespace, labels);
        let applied: Vec<(usize, &ExternalCalls)> = translations.iter().enumerate().filter(own).collect();
        let listed: Vec<&ExternalSpec> = callees.iter().filter_map(|callee| written.get(callee)).collect();
        for (content, origin) in wanted(&applied, &listed) {
            match planned.iter_mut().find(|planned| planned.content == content) {
                Some(planned) => planned.callers.push(caller.clone()),
                None => planned.push(NewExternal { content, origin, callers: vec![caller.clone()] }),
            }
        }
    }
    let mut names = Names::of(documents);
    for planned in planned {
        put(documents, translations, &mut names, planned);
    }
}

fn id(metadata: &Metadata) -> Option<FunctionId> {
    FunctionId::new(&metadata.namespace, &metadata.name).ok()
}

/// Functions and jobs, with their labels and callees.
fn callers(documents: &Documents) -> Vec<(FunctionId, &Labels, Vec<FunctionId>)> {
    let functions = documents.functions.iter().map(|placed| (&placed.document.metadata, &placed.document.spec.callees));
    let jobs = documents.jobs.iter().map(|placed| (&placed.document.metadata, &placed.document.spec.callees));
    let of = |(metadata, callees): (&'_ _, &'_ Vec<String>)| {
        let metadata: &Metadata = metadata;
        let callee = |name: &String| match name.split_once('/') {
            Some((namespace, name)) => FunctionId::new(namespace, name).ok(),
            None => FunctionId::new(&metadata.namespace, name).ok(),
        };
        Some((id(metadata)?, callees.iter().filter_map(callee).collect()))
    };
    let all = functions.chain(jobs);
    all.filter_map(|(metadata, callees)| of((metadata, callees)).map(|(id, callees)| (id, &metadata.labels, callees)))
        .collect()
}

/// Names existing External documents in a policy's rules: an allow rule gets those of which it
/// allows everything, the deny rule those of which it denies something.
fn name_written(rules: &mut CalleeRules, egress: &EgressRules, written: &BTreeMap<FunctionId, ExternalSpec>) {
    for (id, external) in written {
        if egress::leads_to(external, &egress.deny) {
            rules.deny.externals.push(id.clone());
        }
        for rule in egress.allow.iter().filter(|rule| allows_all(rule, external)) {
            rules
                .allow
                .iter_mut()
                .filter(|one| one.name == rule.name)
                .for_each(|one| one.to.externals.push(id.clone()));
        }
    }
}

/// Whether a rule allows all calls to an External document.
fn allows_all(rule: &EgressRule, external: &ExternalSpec) -> bool {
    let at = |port: u16| {
        let has = |one: &PortRule| one.http.is_none() && one.ports.as_ref().is_none_or(|ports| ports.contains(&port));
        rule.ports.is_empty() || rule.ports.iter().any(has)
    };
    let block = |block: &Cidr| rule.to.iter().any(|destination| destination.covers_block(block));
    let host = |host: &String| {
        let Some(host) = check::host_pattern(host) else { return false };
        rule.to.iter().any(|destination| destination.covers_host(&host))
    };
    let (addresses, resolves_to) = (egress::blocks_of(&external.addresses), egress::blocks_of(&external.resolves_to));
    let all_known = addresses.len() == external.addresses.len() && resolves_to.len() == external.resolves_to.len();
    let names = || external.hosts.iter().all(host) || (!resolves_to.is_empty() && resolves_to.iter().all(block));
    all_known && external.ports.iter().all(|port| at(port.port)) && addresses.iter().all(block) && names()
}

/// The External documents that a function needs, and the destination of the first rule of each.
/// `listed` are the documents that it lists itself: their destinations are called through them.
fn wanted(applied: &[(usize, &ExternalCalls)], listed: &[&ExternalSpec]) -> Vec<(Content, Origin)> {
    let denied: Vec<&Destination> = applied.iter().flat_map(|(_, translation)| &translation.egress.deny).collect();
    if denied.iter().any(|destination| matches!(destination, Destination::Anywhere(_))) {
        return Vec::new();
    }
    let denied: Vec<Cidr> = denied.iter().flat_map(|destination| destination.blocks()).copied().collect();
    let rules: Vec<(Rule, &EgressRule)> = applied
        .iter()
        .flat_map(|(index, translation)| {
            (0..).zip(&translation.egress.allow).map(|(number, rule)| ((*index, number), rule))
        })
        .collect();
    let mut contents = hosts(&rules, &denied, listed);
    contents.extend(addresses(&rules, &denied, listed));
    contents
}

fn hosts(rules: &[(Rule, &EgressRule)], denied: &[Cidr], listed: &[&ExternalSpec]) -> Vec<(Content, Origin)> {
    let Some(resolves_to) = resolves_to(denied) else { return Vec::new() };
    let mut seen = BTreeSet::new();
    let mut contents = Vec::new();
    let all = rules.iter().flat_map(|(number, rule)| (0..).zip(&rule.to).map(|(place, one)| ((*number, place), one)));
    for (origin, destination) in all {
        let Some(host) = destination.host().filter(|host| seen.insert((*host).to_owned())) else { continue };
        let wildcard = leno_model::egress::wildcard(host);
        let same = |other: &String| {
            let other = check::host_pattern(other);
            other.as_deref() == Some(host) || (other.is_some() && other == wildcard)
        };
        if listed.iter().any(|external| external.hosts.iter().any(same)) {
            continue;
        }
        let covering = rules.iter().filter(|(_, rule)| rule.to.iter().any(|one| one.covers_host(host)));
        let rules = covering.map(|(rule, _)| *rule).collect();
        let content =
            Content { hosts: vec![host.to_owned()], addresses: Vec::new(), resolves_to: resolves_to.clone(), rules };
        contents.push((content, origin));
    }
    contents
}

/// The addresses to which names may resolve if some are denied. Empty: any; `None`: none.
fn resolves_to(denied: &[Cidr]) -> Option<Vec<String>> {
    let is_public = |block: &&Cidr| special_around(**block).next().is_none();
    let public: Vec<Cidr> = denied.iter().filter(is_public).copied().collect();
    if public.is_empty() {
        return Some(Vec::new());
    }
    let all = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let rest = all.into_iter().flat_map(|address| blocks::without(Cidr { address, prefix: 0 }, &public));
    let rest: Vec<String> = rest.map(text).collect();
    (!rest.is_empty()).then_some(rest)
}

/// Blocks that have no address in common, joined if the same rules apply to them.
fn addresses(rules: &[(Rule, &EgressRule)], denied: &[Cidr], listed: &[&ExternalSpec]) -> Vec<(Content, Origin)> {
    let mut written: Vec<(Cidr, Origin)> = Vec::new();
    for (number, rule) in rules {
        for (place, destination) in rule.to.iter().enumerate() {
            for block in destination.blocks() {
                if !written.iter().any(|(other, _)| other == block) {
                    written.push((*block, (*number, place)));
                }
            }
        }
    }
    let mut order: Vec<usize> = (0..written.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(written[*index].0.prefix));
    let others = listed.iter().flat_map(|external| egress::blocks_of(&external.addresses));
    let mut taken: Vec<Cidr> = denied.iter().copied().chain(others).collect();
    let mut found: BTreeMap<Vec<Rule>, (Origin, Vec<Cidr>)> = BTreeMap::new();
    for index in order {
        let (block, origin) = written[index];
        let covering = rules.iter().filter(|(_, rule)| rule.to.iter().any(|one| one.names_block(&block)));
        let rules: Vec<Rule> = covering.map(|(rule, _)| *rule).collect();
        let within: Vec<Cidr> = taken.iter().filter(|other| blocks::overlap(other, &block)).copied().collect();
        found.entry(rules).or_insert_with(|| (origin, Vec::new())).1.extend(blocks::without(block, &within));
        taken.push(block);
    }
    let content = |(rules, (origin, mut blocks)): (Vec<Rule>, (Origin, Vec<Cidr>))| {
        blocks.sort_by_key(|block| (block.address, block.prefix));
        let addresses = blocks.into_iter().map(text).collect();
        (Content { hosts: Vec::new(), addresses, resolves_to: Vec::new(), rules }, origin)
    };
    found.into_iter().filter(|(_, (_, blocks))| !blocks.is_empty()).map(content).collect()
}

fn text(block: Cidr) -> String {
    format!("{}/{}", block.address, block.prefix)
}

/// Names that are taken.
struct Names {
    callees: BTreeSet<(String, String)>,
    policies: BTreeSet<(String, String)>,
}

impl Names {
    fn of(documents: &Documents) -> Self {
        let of = |metadata: &Metadata| (metadata.namespace.clone(), metadata.name.clone());
        let functions = documents.functions.iter().map(|placed| of(&placed.document.metadata));
        let jobs = documents.jobs.iter().map(|placed| of(&placed.document.metadata));
        let externals = documents.externals.iter().map(|placed| of(&placed.document.metadata));
        let policies = documents.policies.iter().map(|placed| of(&placed.document.metadata));
        Self { callees: functions.chain(jobs).chain(externals).collect(), policies: policies.collect() }
    }

    /// `policy-rule-place`, with a number if that is taken. Names have at most 63 characters.
    fn take(&mut self, namespace: &str, policy: &str, rest: &str) -> String {
        for number in 1_usize.. {
            let end = if number == 1 { rest.to_owned() } else { format!("{rest}-{number}") };
            let start = policy
                .get(..policy.len().min(62_usize.saturating_sub(end.len())))
                .unwrap_or(policy)
                .trim_end_matches('-');
            let name = (namespace.to_owned(), format!("{start}-{end}"));
            if !self.callees.contains(&name) && !self.policies.contains(&name) {
                self.callees.insert(name.clone());
                self.policies.insert(name.clone());
                return name.1;
            }
        }
        unreachable!("there are fewer names than numbers")
    }
}

fn put(documents: &mut Documents, translations: &[ExternalCalls], names: &mut Names, planned: NewExternal) {
    let NewExternal { content: Content { hosts, addresses, resolves_to, rules }, origin, callers } = planned;
    let rule_of = |(translation, number): &Rule| {
        let translation = translations.get(*translation)?;
        Some((translation.policy, translation.egress.allow.get(*number)?))
    };
    let Some((policy, first)) = rule_of(&origin.0) else { return };
    let rules: Vec<(usize, &EgressRule)> = rules.iter().filter_map(rule_of).collect();
    let Some(placed) = documents.policies.get(policy) else { return };
    let TypedDocument { file, node, origin: placed_at, document } = &**placed;
    let placed_at = *placed_at;
    let (file, node, Metadata { name, namespace, .. }) = (file.clone(), node.clone(), document.metadata.clone());
    let name = names.take(&namespace, &name, &format!("{}-{}", first.name, origin.1));
    let id = format!("{namespace}/{name}");

    let from = [Source { identities: Some(callers.iter().map(ToString::to_string).collect()), ..Source::default() }];
    let ports = ports(hosts.first().map(String::as_str), rules.iter().flat_map(|(_, rule)| at(rule)));
    let mut authorization = Vec::new();
    for (policy, rule) in &rules {
        let of = documents.policies.get(*policy).map_or("", |placed| placed.document.metadata.name.as_str());
        let calls = at(rule).iter().flat_map(PortRule::calls).collect();
        authorization.extend(cilium::rules(&format!("{of}-{}", rule.name), Action::Allow, Some(&from), calls));
    }
    for (policy, rule) in &rules {
        let Some(placed) = documents.policies.get_mut(*policy) else { continue };
        let allow = Arc::make_mut(placed).document.spec.callee_rules.iter_mut().flat_map(|rules| &mut rules.allow);
        let external = FunctionId { namespace: namespace.clone(), name: name.clone() };
        allow.filter(|one| one.name == rule.name).for_each(|one| one.to.externals.push(external.clone()));
    }
    let metadata = Metadata { name: name.clone(), namespace, labels: BTreeMap::new() };
    let external = document::External {
        api_version: ApiVersion::V1Alpha1,
        kind: ExternalKind::External,
        metadata: metadata.clone(),
        spec: ExternalSpec {
            hosts,
            addresses,
            resolves_to,
            ports,
            tls: None::<ExternalTls>,
            credentials: Vec::new(),
            timeouts: ExternalTimeouts::default(),
            paths: document::Paths::default(),
            trace_context: false,
        },
    };
    let policy = document::Policy {
        api_version: ApiVersion::V1Alpha1,
        kind: PolicyKind::Policy,
        metadata,
        spec: PolicySpec {
            functions: vec![name],
            authorization: Some(document::Authorization { rules: authorization }),
            ..PolicySpec::default()
        },
    };
    let external = TypedDocument { file: file.clone(), node: node.clone(), origin: placed_at, document: external };
    documents.externals.push(Arc::new(external));
    documents.policies.push(Arc::new(TypedDocument { file, node, origin: placed_at, document: policy }));
    let calls = |metadata: &Metadata| {
        callers.iter().any(|caller| caller.namespace == metadata.namespace && caller.name == metadata.name)
    };
    // Only changed documents are copied.
    for function in documents.functions.iter_mut().filter(|one| calls(&one.document.metadata)) {
        Arc::make_mut(function).document.spec.callees.push(id.clone());
    }
    for job in documents.jobs.iter_mut().filter(|one| calls(&one.document.metadata)) {
        Arc::make_mut(job).document.spec.callees.push(id.clone());
    }
}

/// The ports of a rule. HTTP without a port is at 80.
fn at(rule: &EgressRule) -> Vec<PortRule> {
    if rule.ports.is_empty() {
        return vec![PortRule::default()];
    }
    let of = |one: &PortRule| match (&one.ports, &one.http) {
        (None, Some(_)) => PortRule { ports: Some(vec![80]), ..one.clone() },
        _ => one.clone(),
    };
    rule.ports.iter().map(of).collect()
}

/// The ports of an External document, with the protocol of each. If a rule is about requests, only
/// requests are allowed at its port, as with Cilium.
fn ports(host: Option<&str>, rules: impl Iterator<Item = PortRule>) -> Vec<ExternalPort> {
    let mut ports = BTreeMap::new();
    for PortRule { ports: listed, http } in rules {
        for port in listed.unwrap_or_else(|| vec![80, 443]) {
            let protocol = match (host, port) {
                _ if http.is_some() => EgressProtocol::Http,
                (Some(_), 80) => EgressProtocol::Http,
                (Some(_), 443) => EgressProtocol::Tls,
                // Only TLS shows which of the names is called.
                (Some(host), _) if host.starts_with('*') => EgressProtocol::Tls,
                _ => EgressProtocol::Tcp,
            };
            let known = ports.entry(port).or_insert(protocol);
            if protocol == EgressProtocol::Http {
                *known = protocol;
            }
        }
    }
    ports.into_iter().map(|(port, protocol)| ExternalPort { port, protocol, http2: false }).collect()
}
