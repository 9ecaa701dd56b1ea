//! Which endpoint of a Service gets a connection. The order of preferences is that of kube-proxy.

use leno_model::{Service, ServiceEndpoint, TrafficDistribution};

/// Where a node is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePlace {
    /// Its name.
    pub node: String,
    /// Its zone; `None`: unknown.
    pub zone: Option<String>,
}

/// The endpoints of which a caller may use any. `all` have the called port.
pub(crate) fn preferred<'a, T>(
    service: &Service,
    here: &NodePlace,
    mut all: Vec<T>,
    of: impl Fn(&T) -> &'a ServiceEndpoint,
) -> Vec<T> {
    let is_on_node = |endpoint: &ServiceEndpoint| endpoint.node.as_deref() == Some(here.node.as_str());
    if service.node_local {
        all.retain(|it| is_on_node(of(it)));
    }
    let (terminating, ready): (Vec<T>, Vec<T>) = all.into_iter().partition(|it| of(it).is_terminating);
    if ready.is_empty() {
        return terminating;
    }
    if service.node_local {
        return ready;
    }
    let is_in_zone = |endpoint: &ServiceEndpoint| here.zone.is_some() && endpoint.zone == here.zone;
    let is_for_zone = |endpoint: &ServiceEndpoint| here.zone.iter().any(|zone| endpoint.for_zones.contains(zone));
    let have_hints = |hints: fn(&ServiceEndpoint) -> &[String]| ready.iter().all(|it| !hints(of(it)).is_empty());
    let mut preferences: Vec<&dyn Fn(&ServiceEndpoint) -> bool> = Vec::new();
    let is_for_node = |endpoint: &ServiceEndpoint| endpoint.for_nodes.contains(&here.node);
    // Hints count if each endpoint has one.
    if have_hints(|endpoint| &endpoint.for_nodes) {
        preferences.push(&is_for_node);
    }
    if have_hints(|endpoint| &endpoint.for_zones) {
        preferences.push(&is_for_zone);
    }
    match service.distribution {
        Some(TrafficDistribution::SameNode) => preferences.extend([&is_on_node as &dyn Fn(&_) -> bool, &is_in_zone]),
        Some(TrafficDistribution::SameZone) => preferences.push(&is_in_zone),
        None => {}
    }
    match preferences.into_iter().find(|preference| ready.iter().any(|it| preference(of(it)))) {
        Some(preference) => ready.into_iter().filter(|it| preference(of(it))).collect(),
        None => ready,
    }
}

/// The place of one of these in their list: of two at random, the one with fewer open connections.
/// `open`: the open connections of each; `below`: a random number below another one.
pub(crate) fn less_busy(open: &[usize], mut below: impl FnMut(u64) -> u64) -> Option<usize> {
    if open.is_empty() {
        return None;
    }
    let mut draw = |count: usize| usize::try_from(below(count as u64)).unwrap_or_default().min(count - 1);
    let one = draw(open.len());
    let other = match open.len() {
        1 => one,
        count => (one + 1 + draw(count - 1)) % count,
    };
    Some(if open.get(other) < open.get(one) { other } else { one })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn service(node_local: bool, distribution: Option<TrafficDistribution>) -> Service {
        let (ports, affinity) = (Vec::new(), None);
        Service { name: "shop/cart".parse().unwrap(), ports, affinity, node_local, distribution }
    }

    fn endpoint() -> impl Strategy<Value = ServiceEndpoint> {
        let name = || prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned);
        let names = move || prop::collection::vec(name(), 0..2);
        let place = (any::<bool>(), prop::option::of(name()), prop::option::of(name()));
        (place, names(), names()).prop_map(|((is_terminating, node, zone), for_zones, for_nodes)| ServiceEndpoint {
            ports: Vec::new(),
            is_terminating,
            node,
            zone,
            for_zones,
            for_nodes,
            pod: None,
        })
    }

    fn here() -> NodePlace {
        NodePlace { node: "a".to_owned(), zone: Some("a".to_owned()) }
    }

    proptest! {
        #[test]
        fn a_caller_uses_what_it_may_and_finds_an_endpoint_if_there_is_one(
            all in prop::collection::vec(endpoint(), 0..6),
            node_local in any::<bool>(),
            distribution in prop::sample::select(vec![
                None, Some(TrafficDistribution::SameNode), Some(TrafficDistribution::SameZone),
            ]),
        ) {
            let service = service(node_local, distribution);
            let found = preferred(&service, &here(), all.iter().collect(), |it: &&ServiceEndpoint| *it);
            let is_local = |it: &&ServiceEndpoint| it.node.as_deref() == Some("a");
            let usable: Vec<_> = all.iter().filter(|it| !node_local || is_local(it)).collect();
            prop_assert!(found.iter().all(|it| usable.contains(it)));
            prop_assert_eq!(found.is_empty(), usable.is_empty());
            let has_ready = usable.iter().any(|it| !it.is_terminating);
            prop_assert!(found.iter().all(|it| it.is_terminating != has_ready));
            let ready: Vec<_> = usable.iter().filter(|it| !it.is_terminating).collect();
            let hinted = ready.iter().all(|it| !it.for_nodes.is_empty()) || ready.iter().all(|it| !it.for_zones.is_empty());
            if !node_local && has_ready && !hinted {
                let near = |it: &&ServiceEndpoint| match distribution {
                    Some(TrafficDistribution::SameNode) if ready.iter().any(|it| is_local(it)) => is_local(it),
                    Some(_) if ready.iter().any(|it| it.zone.as_deref() == Some("a")) => it.zone.as_deref() == Some("a"),
                    _ => true,
                };
                let wanted: Vec<_> = ready.iter().map(|it| **it).filter(|it| near(it)).collect();
                prop_assert_eq!(found, wanted);
            }
        }

        #[test]
        fn the_busiest_of_several_never_gets_a_connection(open in prop::collection::vec(0_usize..9, 2..6), seed in any::<u64>()) {
            let mut state = seed;
            let chosen = less_busy(&open, |below| { state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1); (state >> 33) % below }).unwrap();
            let most = open.iter().max().unwrap();
            prop_assert!(open[chosen] < *most || open.iter().filter(|count| *count == most).count() > 1);
        }
    }

    #[test]
    fn hints_count_if_each_endpoint_has_one() {
        let with = |for_zones: &[&str]| ServiceEndpoint {
            for_zones: for_zones.iter().map(|zone| (*zone).to_owned()).collect(),
            ..plain()
        };
        let found = |all: &[ServiceEndpoint]| {
            preferred(&service(false, None), &here(), all.iter().collect(), |it: &&ServiceEndpoint| *it).len()
        };
        assert_eq!(found(&[with(&["a"]), with(&["b"])]), 1);
        assert_eq!(found(&[with(&["a"]), with(&[])]), 2, "one has no hint");
        assert_eq!(found(&[with(&["b"]), with(&["c"])]), 2, "none is for this zone");
        assert_eq!(less_busy(&[], |_| 0), None);
    }

    fn plain() -> ServiceEndpoint {
        ServiceEndpoint {
            ports: Vec::new(),
            is_terminating: false,
            node: None,
            zone: None,
            for_zones: Vec::new(),
            for_nodes: Vec::new(),
            pod: None,
        }
    }
}
