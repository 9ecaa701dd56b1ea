//! Whether nodes drain a removed function or close its open exchanges, and which nodes are behind.

use super::*;
use crate::state::nodes::BEHIND;
use leno_config::{Document, Snapshot};
use std::path::Path;

const NODE: &str = "one";

struct Mesh {
    state: State,
    bundle: TrustBundle,
    session: u64,
}

fn function(name: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: a, labels: {{open: \"yes\"}}}}\nspec: {{external: {{addresses: [\"127.0.0.1:1\"]}}}}\n"
    )
}

fn policy(name: &str, whose: &str, rule: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: {name}, namespace: a}}\nspec:\n  {whose}\n  authorization: {{rules: [{{name: {rule}}}]}}\n"
    )
}

const OF_ALL: &str = "selector: {open: \"yes\"}";

impl Mesh {
    fn new(documents: &str) -> Self {
        let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
        let mut state = State::new(CompiledDefinitions::nothing(&bundle).unwrap(), Histories::default());
        let (placement, locality) = (Placement::Everything, Default::default());
        state.admit(NODE, Admission { placement, gateway: false, locality, egress: false });
        let mut mesh = Self { state, bundle, session: 0 };
        mesh.publish(documents);
        mesh.connect(Vec::new());
        mesh.read();
        mesh
    }

    fn connect(&mut self, held: Vec<(Subject, Version)>) {
        let greeting = Hello { subscribe: vec![Subject::Hosted], held, ..Hello::default() };
        self.session = self.state.connect(NODE, greeting, Arc::default()).unwrap();
    }

    fn publish(&mut self, documents: &str) {
        let mesh = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {{name: m}}\nspec: {{trustDomain: {}}}\n",
            configs::DOMAIN
        );
        let documents = Document::read(Path::new("a.yaml"), &(mesh + documents)).unwrap();
        let snapshot = Snapshot::of_documents(&documents).unwrap();
        let configs = snapshot.functions().map(|id| (id.clone(), snapshot.function_config(id).unwrap())).collect();
        let definitions = Definitions {
            mesh: snapshot.mesh_config().clone(),
            configs,
            routes: snapshot.gateway_routes().clone(),
            modules: BTreeMap::new(),
            permissions: snapshot.permissions(),
            secrets: None,
        };
        let histories = self.state.histories().record_publication(&definitions.configs, 0).unwrap();
        let compiled = CompiledDefinitions::new(&definitions, &definitions.modules, &histories, &self.bundle).unwrap();
        self.state.publish(compiled, histories);
    }

    fn next(&mut self) -> Option<v1::Delta> {
        match self.state.next_delta(NODE, self.session) {
            Next::Send(v1::ToNode { message: Some(v1::to_node::Message::Delta(delta)) }) => Some(delta),
            Next::Send(_) => self.next(),
            Next::Wait | Next::Ended => None,
        }
    }

    /// Reads and acknowledges all deltas. Returns the functions that are removed, and those that
    /// are withdrawn.
    fn read(&mut self) -> (Vec<String>, Vec<String>) {
        let (mut removed, mut withdrawn) = (Vec::new(), Vec::new());
        while let Some(delta) = self.next() {
            let configs = delta.removed.iter().filter(|subject| subject.kind() == v1::Kind::Slice);
            removed.extend(configs.map(|subject| subject.name.clone()));
            withdrawn.extend(delta.withdrawn);
            self.state.acknowledge(NODE, self.session, delta.nonce, Vec::new());
        }
        (removed, withdrawn)
    }
}

fn told(removed: &[&str], withdrawn: &[&str]) -> (Vec<String>, Vec<String>) {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    (owned(removed), owned(withdrawn))
}

#[test]
fn a_function_drains_as_long_as_its_policies_are_there() {
    let (one, two) = (function("one"), function("two"));
    let all = policy("all", OF_ALL, "everything");
    let mut mesh = Mesh::new(&format!("{one}{two}{all}"));
    mesh.publish(&format!("{two}{all}"));
    assert_eq!(mesh.read(), told(&["a/one"], &[]));
    // Later its policy changes.
    mesh.publish(&format!("{two}{}", policy("all", OF_ALL, "another")));
    assert_eq!(mesh.read(), told(&[], &["a/one"]));
    assert_eq!(mesh.read(), told(&[], &[]), "once");
}

#[test]
fn a_function_that_goes_with_its_policy_is_withdrawn() {
    let (one, two) = (function("one"), function("two"));
    let (first, second) = (policy("first", "functions: [one]", "one"), policy("second", "functions: [two]", "two"));
    let mut mesh = Mesh::new(&format!("{one}{two}{first}{second}"));
    mesh.publish(&format!("{two}{second}"));
    assert_eq!(mesh.read(), told(&["a/one"], &["a/one"]));
    // A policy whose name of a function had to go with the function withdraws no permission.
    let both = policy("both", "functions: [one, two]", "one");
    mesh.publish(&format!("{one}{two}{both}"));
    mesh.read();
    mesh.publish(&format!("{two}{}", both.replace("[one, two]", "[two]")));
    assert_eq!(mesh.read(), told(&["a/one"], &[]));
}

/// The node sees only the removal.
#[test]
fn a_permission_that_went_before_the_function_is_withdrawn() {
    let (one, two) = (function("one"), function("two"));
    let (all, more) = (policy("all", OF_ALL, "everything"), policy("more", "functions: [one]", "more"));
    let mut mesh = Mesh::new(&format!("{one}{two}{all}{more}"));
    mesh.publish(&format!("{one}{two}{all}"));
    mesh.publish(&format!("{two}{all}"));
    assert_eq!(mesh.read(), told(&["a/one"], &["a/one"]));
}

/// Another control plane has taken over, and does not know the earlier functions.
#[test]
fn a_function_that_nobody_knows_any_more_is_withdrawn() {
    let (one, all) = (function("one"), policy("all", OF_ALL, "everything"));
    let mut mesh = Mesh::new(&format!("{one}{all}"));
    let unknown = Subject::FunctionConfig("a/gone".parse().unwrap());
    mesh.connect(vec![(unknown, Version::of(b"of another time"))]);
    assert_eq!(mesh.read(), told(&["a/gone"], &["a/gone"]));
}

#[test]
fn a_withdrawal_is_said_again_on_a_new_stream() {
    let (one, two) = (function("one"), function("two"));
    let all = policy("all", OF_ALL, "everything");
    let mut mesh = Mesh::new(&format!("{one}{two}{all}"));
    mesh.publish(&format!("{two}{all}"));
    mesh.read();
    mesh.publish(&format!("{two}{}", policy("all", OF_ALL, "another")));
    // The delta is sent, and its answer is lost.
    assert_eq!(mesh.next().unwrap().withdrawn, ["a/one"]);
    mesh.connect(Vec::new());
    assert_eq!(mesh.read().1, ["a/one"]);
}

#[test]
fn a_node_that_does_not_answer_is_behind_and_still_gets_changes() {
    let one = function("one") + &policy("all", OF_ALL, "everything");
    let mut mesh = Mesh::new(&one);
    let mut now = Duration::from_secs(100);
    let mut pass = |mesh: &mut Mesh, time: Duration| {
        for _ in 0..time.as_millis() / 500 {
            now += Duration::from_millis(500);
            mesh.state.watch_acknowledgements(now);
        }
    };
    pass(&mut mesh, 2 * BEHIND);
    let status = |mesh: &Mesh| mesh.state.status().nodes.into_iter().find(|node| node.name == NODE).unwrap();
    assert!(!status(&mesh).behind, "it has answered everything");
    mesh.publish(&(one.clone() + &function("two")));
    let unanswered = mesh.next().unwrap();
    pass(&mut mesh, BEHIND / 2);
    assert!(!status(&mesh).behind);
    pass(&mut mesh, BEHIND);
    assert!(status(&mesh).behind && status(&mesh).unacknowledged_seconds >= BEHIND.as_secs());
    // More deltas than another node may leave unanswered.
    let mut others = Vec::new();
    for number in 0..20 {
        mesh.publish(&(one.clone() + &function("two") + &function(&format!("other-{number}"))));
        others.push(mesh.next().unwrap().nonce);
    }
    mesh.publish(&one);
    let next = mesh.next().unwrap();
    assert!(!next.removed.is_empty(), "it gets what is withdrawn: {next:?}");
    others.into_iter().for_each(|nonce| mesh.state.acknowledge(NODE, mesh.session, nonce, Vec::new()));
    // Updates are answered in any order.
    mesh.state.acknowledge(NODE, mesh.session, next.nonce, Vec::new());
    pass(&mut mesh, BEHIND);
    assert!(status(&mesh).behind);
    mesh.state.acknowledge(NODE, mesh.session, unanswered.nonce, Vec::new());
    pass(&mut mesh, Duration::from_secs(1));
    assert!(!status(&mesh).behind);
}
