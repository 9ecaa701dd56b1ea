//! Services and endpoints in the form in which nodes get them.

use crate::api::ObjectKey;
use crate::index::endpoint::{Endpoint, EndpointPort};
use crate::index::service::{Protocol, Service, ServiceKind};
use crate::index::services::ServiceChanges;
use leno_control::DestinationChanges;
use leno_model::ServiceName;
use std::net::IpAddr;

impl ServiceChanges {
    /// The changes for callers. They call TCP ports of Services with an address; headless ones and names
    /// outside of the cluster have none.
    pub fn destinations(self) -> DestinationChanges {
        let mut changes = DestinationChanges::default();
        for (key, service) in self.services {
            let Some(name) = name(&key) else { continue };
            let called = service.and_then(|service| called(&name, &service));
            changes.services.insert(name, called);
        }
        for (key, endpoints) in self.endpoints {
            let Some(name) = name(&key) else { continue };
            for ((address, ports), endpoint) in endpoints {
                let endpoint = endpoint.filter(|endpoint| endpoint.takes_connections());
                let model = endpoint.map(|endpoint| endpoint.for_callers());
                changes.endpoints.insert((name.clone(), address, tcp(&ports)), model);
            }
        }
        changes
    }
}

/// `None`: the API server took a name that is no DNS label, by which no pod can call it.
fn name(key: &ObjectKey) -> Option<ServiceName> {
    format!("{}/{}", key.namespace, key.name).parse().ok()
}

fn called(name: &ServiceName, service: &Service) -> Option<(leno_model::Service, Vec<IpAddr>)> {
    let ServiceKind::Cluster(addresses) = &service.kind else { return None };
    let ports = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    let model = leno_model::Service {
        name: name.clone(),
        ports: ports
            .map(|port| leno_model::ServicePort {
                name: port.name.to_string(),
                number: port.number,
                app_protocol: port.app_protocol.as_deref().map(str::to_owned),
            })
            .collect(),
        affinity: service.affinity,
        node_local: service.is_node_local,
        distribution: service.distribution,
    };
    Some((model, addresses.to_vec()))
}

fn tcp(ports: &[EndpointPort]) -> Vec<leno_model::EndpointPort> {
    let ports = ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    ports.map(|port| leno_model::EndpointPort { name: port.name.to_string(), number: port.number }).collect()
}

impl Endpoint {
    /// Whether it is ready, or ends and serves until then.
    fn takes_connections(&self) -> bool {
        self.conditions.is_ready || self.conditions.is_serving && !self.conditions.stays
    }

    fn for_callers(&self) -> leno_model::ServiceEndpoint {
        let owned = |names: &[Box<str>]| names.iter().map(|name| name.to_string()).collect();
        leno_model::ServiceEndpoint {
            ports: tcp(&self.ports),
            is_terminating: !self.conditions.is_ready,
            node: self.place.node.as_deref().map(str::to_owned),
            zone: self.place.zone.as_deref().map(str::to_owned),
            for_zones: owned(&self.place.for_zones),
            for_nodes: owned(&self.place.for_nodes),
            pod: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::api::Change;
    use crate::index::endpoint::EndpointSliceObject;
    use crate::index::service::ServiceObject;
    use crate::index::services::ServiceIndex;
    use leno_model::EndpointPort;
    use serde_json::{Value, json};

    fn all<K: serde::de::DeserializeOwned>(objects: Value) -> Change<K> {
        Change::Replaced { objects: serde_json::from_value(objects).unwrap(), broken: Vec::new() }
    }

    #[test]
    fn callers_get_services_with_an_address_and_endpoints_that_take_connections() {
        let mut index = ServiceIndex::default();
        let named =
            |name: &str, spec: Value| json!({ "metadata": { "namespace": "shop", "name": name }, "spec": spec });
        let ports = json!([
            { "name": "http", "port": 80, "appProtocol": "http" },
            { "name": "dns", "port": 53, "protocol": "UDP" },
        ]);
        index.change_services(all::<ServiceObject>(json!([
            named(
                "web",
                json!({ "clusterIPs": ["10.96.0.1", "fd00::1"], "ports": ports, "sessionAffinity": "ClientIP" })
            ),
            named("headless", json!({ "clusterIPs": ["None"] })),
            named("outside", json!({ "type": "ExternalName", "externalName": "a.example" })),
            named("No Label", json!({ "clusterIPs": ["10.96.0.2"] })),
        ])));
        let conditions =
            |ready, serving, terminating| json!({ "ready": ready, "serving": serving, "terminating": terminating });
        let endpoint = |address: &str, conditions: Value| json!({ "addresses": [address], "conditions": conditions, "nodeName": "one", "hints": { "forZones": [{ "name": "a" }] } });
        index.change_slices(all::<EndpointSliceObject>(json!([{
            "metadata": { "namespace": "shop", "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
            "ports": [{ "name": "http", "port": 8080 }, { "name": "dns", "port": 53, "protocol": "UDP" }],
            "endpoints": [
                endpoint("10.244.0.1", conditions(true, true, false)),
                endpoint("10.244.0.2", conditions(false, true, true)),
                endpoint("10.244.0.3", conditions(false, false, true)),
                endpoint("10.244.0.4", conditions(false, false, false)),
            ],
        }])));
        let changes = index.take().unwrap().destinations();
        let called: Vec<_> = changes.services.iter().map(|(name, of)| (name.to_string(), of.is_some())).collect();
        let expected = [("shop/headless", false), ("shop/outside", false), ("shop/web", true)];
        assert_eq!(called, expected.map(|(name, is_called)| (name.to_owned(), is_called)));
        let (web, addresses) = changes.services[&"shop/web".parse().unwrap()].as_ref().unwrap();
        assert_eq!((web.ports.len(), web.ports[0].number, addresses.len()), (1, 80, 2));
        assert_eq!(
            (web.ports[0].app_protocol.as_deref(), web.affinity.map(|time| time.as_secs())),
            (Some("http"), Some(10_800))
        );
        let states: Vec<_> = changes.endpoints.values().map(|of| of.as_ref().map(|of| of.is_terminating)).collect();
        assert_eq!(states, [Some(false), Some(true), None, None]);
        let first = changes.endpoints.values().flatten().next().unwrap();
        assert_eq!(first.ports, [EndpointPort { name: "http".to_owned(), number: 8080 }]);
        assert_eq!((first.node.as_deref(), &first.for_zones[..]), (Some("one"), &["a".to_owned()][..]));
        assert_eq!(index.take(), None);
    }
}
