//! The manifests of the examples: their policies fit their Deployments.

use crate::definitions::{repository, value};
use crate::objects::{compile, kind};
use leno_config::{DocumentId, foreign_documents};
use leno_controller::api::{Change, Metadata};
use leno_controller::documents::{DocumentObject, Functions, InForce, ObjectStatus, Objects};
use leno_controller::index::Workload;
use leno_model::{FunctionId, PodMode};
use serde_json::Value;

fn objects(path: &str) -> Vec<Value> {
    let path = repository().join("examples").join(path);
    let text = std::fs::read_to_string(&path).unwrap();
    foreign_documents(&path, &text).unwrap().iter().map(value).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The functions of a namespace's Deployments.
fn functions(namespace: &str, manifests: &[Value]) -> Functions {
    let deployments = manifests.iter().filter(|object| object["kind"] == "Deployment");
    let function = |deployment: &Value| {
        let template = &deployment["spec"]["template"];
        let labels = template["metadata"]["labels"].as_object().unwrap().iter();
        let workload = Workload {
            service_account: text(&template["spec"]["serviceAccountName"]),
            other_accounts: Vec::new(),
            mode: PodMode::Enforced,
            ports: Vec::new(),
            labels: labels.map(|(name, value)| (name.clone(), text(value))).collect(),
        };
        let id = FunctionId { namespace: namespace.to_owned(), name: text(&deployment["metadata"]["name"]) };
        (id, Some(workload))
    };
    let mut functions = Functions::default();
    functions.apply(deployments.map(function).collect());
    functions
}

#[test]
fn documents_of_examples_are_accepted_without_a_warning() {
    for (namespace, manifests, documents) in [
        ("shop", "boutique/kubernetes/shop.yaml", &["boutique/mesh/shop/policies.yaml"][..]),
        (
            "orders",
            "orders/kubernetes/orders.yaml",
            &["orders/kubernetes/policies.yaml", "orders/kubernetes/mesh.yaml"],
        ),
    ] {
        let manifests = objects(manifests);
        let mut all = Objects::default();
        for object in documents.iter().flat_map(|path| objects(path)) {
            let metadata = Metadata {
                namespace: text(&object["metadata"]["namespace"]),
                name: text(&object["metadata"]["name"]),
                generation: Some(1),
                ..Metadata::default()
            };
            let spec = object["spec"].clone();
            let document = DocumentObject { metadata, spec, status: ObjectStatus::default() };
            assert!(all.apply(kind(&text(&object["kind"])), Change::Put(document)), "{object}");
        }
        let functions = functions(namespace, &manifests);
        let selection = all.select(functions.documents(), compile).unwrap_or_else(|problems| panic!("{problems:?}"));
        let refused = |(id, verdict): (&DocumentId, _)| format!("{id:?}: {verdict:?}");
        let all = selection.verdicts.iter().filter(|(_, verdict)| verdict.in_force != InForce::Present);
        assert_eq!(all.map(refused).collect::<Vec<_>>(), [""; 0]);
        assert!(selection.snapshot.warnings().is_empty(), "{namespace}: {:#?}", selection.snapshot.warnings());
        // Every function has a Service of its name.
        for deployment in manifests.iter().filter(|object| object["kind"] == "Deployment") {
            let has = |kind: &str| {
                manifests.iter().any(|object| object["kind"] == kind && object["metadata"] == deployment["metadata"])
            };
            assert!(has("Service") && has("ServiceAccount"), "{}", deployment["metadata"]);
        }
    }
}
