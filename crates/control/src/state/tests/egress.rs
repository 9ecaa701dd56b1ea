//! Which nodes get the configuration and the certificates of an external service that egress nodes
//! connect to: only the egress nodes.

use super::*;
use crate::admission::Cordon;
use leno_model::{Egress, EgressPort, EgressProtocol, EgressTls, Run};

const CALLER: &str = "a/caller";
const OUTSIDE: &str = "a/payments";

/// A node that accepts all deliveries, and the resources that it has.
struct End {
    name: &'static str,
    session: u64,
    held: BTreeMap<Subject, Resource>,
}

struct Mesh {
    state: State,
    ends: BTreeMap<&'static str, End>,
}

fn outside(by_egress_nodes: bool) -> FunctionConfig {
    let egress = Egress {
        hosts: vec!["api.payments.example".to_owned()],
        addresses: Vec::new(),
        resolves_to: Vec::new(),
        ports: vec![EgressPort { number: 443, protocol: EgressProtocol::Https, http2: false }],
        tls: EgressTls::default(),
        credentials: Vec::new(),
        connect_timeout: Duration::from_secs(5),
        trace_context: false,
        by_egress_nodes,
    };
    FunctionConfig { run: Run::Egress(egress), ..configs::config(OUTSIDE, &[], 1) }
}

impl Mesh {
    /// `home` has the caller, `all` hosts everything but has no role, and `out` and `exit` are
    /// egress nodes.
    fn new() -> Self {
        let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
        let definitions = Definitions {
            mesh: configs::mesh(),
            configs: BTreeMap::new(),
            routes: Default::default(),
            modules: BTreeMap::new(),
            permissions: Default::default(),
            secrets: None,
        };
        let histories = Histories::default();
        let compiled = CompiledDefinitions::new(&definitions, &definitions.modules, &histories, &bundle).unwrap();
        let mut mesh = Self { state: State::new(compiled, histories), ends: BTreeMap::new() };
        let only = Placement::Only(BTreeSet::from([configs::function(CALLER)]));
        let nodes = [
            ("home", only, false),
            ("all", Placement::Everything, false),
            ("exit", Placement::Scheduled, true),
            ("out", Placement::Scheduled, true),
        ];
        for (number, (name, placement, egress)) in nodes.into_iter().enumerate() {
            mesh.admit(name, placement, egress);
            let greeting = Hello {
                subscribe: vec![Subject::Hosted],
                inbound: Some(SocketAddr::from(([10, 0, 0, number as u8 + 1], 15006))),
                ..Hello::default()
            };
            let session = mesh.state.connect(name, greeting, Arc::default()).unwrap();
            mesh.ends.insert(name, End { name, session, held: BTreeMap::new() });
        }
        mesh.put(&configs::config(CALLER, &[OUTSIDE], 1));
        mesh.put(&outside(true));
        mesh
    }

    fn admit(&mut self, name: &'static str, placement: Placement, egress: bool) {
        self.state.admit(name, Admission { placement, gateway: false, locality: Default::default(), egress });
    }

    fn put(&mut self, config: &FunctionConfig) {
        let history = self.state.histories().record_one(config, 0).unwrap();
        let resolved = history.config_for_delivery(config).unwrap();
        let prepared = self.state.prepare_put(&resolved, &configs::DOMAIN.parse().unwrap()).unwrap();
        self.state.put(prepared, history);
    }

    /// All nodes accept all deliveries, except configurations that `refuse` refuses.
    fn settle_but(&mut self, refuse: impl Fn(&str, &Subject) -> bool) {
        let mut quiet = false;
        while !quiet {
            quiet = true;
            for end in self.ends.values_mut() {
                while let Next::Send(v1::ToNode { message: Some(v1::to_node::Message::Delta(delta)) }) =
                    self.state.next_delta(end.name, end.session)
                {
                    quiet = false;
                    let mut rejected = Vec::new();
                    for resource in &delta.resources {
                        let subject = messages::subject(resource.subject.as_ref()).unwrap();
                        if refuse(end.name, &subject) {
                            rejected.push((subject, "no".to_owned()));
                            continue;
                        }
                        end.held.insert(subject.clone(), Resource::decode(&subject, &resource.payload).unwrap());
                    }
                    for subject in messages::subjects(&delta.removed).unwrap() {
                        end.held.remove(&subject);
                    }
                    self.state.acknowledge(end.name, end.session, delta.nonce, rejected);
                }
            }
        }
    }

    fn settle(&mut self) {
        self.settle_but(|_, _| false);
    }

    /// The nodes that have the configuration, and those that get a certificate.
    fn carriers(&self) -> (Vec<&str>, Vec<&str>) {
        let config = Subject::FunctionConfig(configs::function(OUTSIDE));
        let identity = configs::identity(OUTSIDE).parse().unwrap();
        let has = self.ends.values().filter(|end| end.held.contains_key(&config)).map(|end| end.name);
        let signed = self.ends.keys().copied().filter(|name| self.state.may_sign(name, &identity).is_some());
        (has.collect(), signed.collect())
    }

    /// The nodes to which the caller's node sends its calls.
    fn endpoints(&self) -> Vec<String> {
        match self.ends["home"].held.get(&Subject::Endpoints(configs::function(OUTSIDE))) {
            Some(Resource::Endpoints(_, endpoints)) => {
                assert!(endpoints.iter().all(|endpoint| endpoint.ready == 1), "{endpoints:?}");
                endpoints.iter().map(|endpoint| endpoint.node.clone()).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn only_nodes_with_the_role_get_what_egress_nodes_connect_to() {
    let mut mesh = Mesh::new();
    mesh.settle();
    assert_eq!(mesh.carriers(), (vec!["exit", "out"], vec!["exit", "out"]));
    assert_eq!(mesh.endpoints(), ["exit", "out"]);
    // The configuration of the caller names the service, and a node gets no more by subscribing.
    let config = Subject::FunctionConfig(configs::function(OUTSIDE));
    let session = mesh.ends["home"].session;
    mesh.state.subscribe("home", session, vec![config.clone()], &[]);
    mesh.settle();
    assert_eq!(mesh.carriers().0, ["exit", "out"]);
    assert_eq!(mesh.state.counters("home").unwrap().refused, 1);
}

#[test]
fn without_the_role_nobody_carries_it() {
    let mut mesh = Mesh::new();
    for name in ["exit", "out"] {
        mesh.settle();
        mesh.admit(name, Placement::Scheduled, false);
    }
    mesh.settle();
    assert_eq!(mesh.carriers(), (vec![], vec![]));
    assert_eq!(mesh.endpoints(), [""; 0]);
    // A node that hosts everything is no egress node, until it gets the role.
    mesh.admit("all", Placement::Everything, true);
    mesh.settle();
    assert_eq!((mesh.carriers().0, mesh.endpoints()), (vec!["all"], vec!["all".to_owned()]));
    mesh.state.expel("all");
    mesh.ends.remove("all");
    mesh.settle();
    assert_eq!(mesh.endpoints(), [""; 0]);
}

#[test]
fn calls_go_to_nodes_that_have_it_in_force_and_leave_those_that_are_cordoned() {
    let mut mesh = Mesh::new();
    let refuse = |name: &str, subject: &Subject| name == "out" && matches!(subject, Subject::FunctionConfig(_));
    mesh.settle_but(refuse);
    assert_eq!(mesh.endpoints(), ["exit"], "a node that cannot read it is not called");
    mesh.put(&FunctionConfig { queue: 2, ..outside(true) });
    mesh.settle();
    assert_eq!(mesh.endpoints(), ["exit", "out"]);
    mesh.state.cordon("exit", Cordon::Drained);
    mesh.settle();
    assert_eq!(mesh.endpoints(), ["out"]);
    mesh.state.cordon("out", Cordon::Drained);
    mesh.settle();
    assert_eq!(mesh.endpoints(), ["exit", "out"], "there is no other");
    mesh.state.cordon("exit", Cordon::Open);
    mesh.settle();
    assert_eq!(mesh.endpoints(), ["exit"]);
    // The node disconnects.
    let session = mesh.ends["exit"].session;
    mesh.state.disconnect("exit", session);
    assert_eq!(mesh.state.forget("exit", session, Wait::Last), Departure::Settled);
    mesh.ends.remove("exit");
    mesh.settle();
    assert_eq!(mesh.endpoints(), ["out"]);
}

#[test]
fn callers_own_nodes_connect_where_the_mesh_says_so_and_answer_nobody() {
    let mut mesh = Mesh::new();
    mesh.settle();
    mesh.put(&outside(false));
    mesh.settle();
    // The scheduler does not place functions on `home`, and its placement does not name the
    // service.
    assert_eq!(mesh.carriers(), (vec!["all"], vec![]));
    assert_eq!(mesh.endpoints(), [""; 0]);
    mesh.put(&outside(true));
    mesh.settle();
    assert_eq!(mesh.carriers(), (vec!["exit", "out"], vec!["exit", "out"]));
    assert_eq!(mesh.endpoints(), ["exit", "out"]);
}

#[test]
fn gateways_connect_where_their_own_routes_lead() {
    let mut mesh = Mesh::new();
    let admit = |mesh: &mut Mesh, gateway| {
        let placement = Placement::Scheduled;
        mesh.state.admit("out", Admission { placement, gateway, locality: Default::default(), egress: true });
        mesh.settle();
    };
    admit(&mut mesh, true);
    mesh.put(&outside(false));
    mesh.settle();
    assert_eq!(mesh.carriers().0, ["all"], "no route leads there");
    mesh.put(&FunctionConfig { is_routed: true, ..outside(false) });
    mesh.settle();
    assert_eq!(mesh.carriers().0, ["all", "out"]);
    admit(&mut mesh, false);
    assert_eq!(mesh.carriers().0, ["all"]);
    admit(&mut mesh, true);
    assert_eq!(mesh.carriers().0, ["all", "out"]);
}
