//! Documents of the Gateway API, as documents of the mesh.

use leno_config::{Document, DocumentId, Reach, load_text};
use std::collections::BTreeSet;
use std::path::Path;

const ALL: &str = include_str!("../gateway-api/all-kinds.yaml");

#[test]
fn each_kind_is_a_document_of_its_namespace() {
    let documents = Document::read(Path::new("a.yaml"), ALL).unwrap_or_else(|problems| panic!("{problems:?}"));
    let names: Vec<String> = documents.iter().map(|document| document.id().to_string()).collect();
    let expected = [
        "GatewayClass leno",
        "Gateway shop/edge",
        "HTTPRoute shop/shop.v2",
        "GRPCRoute shop/stock",
        "TLSRoute shop/broker",
        "TCPRoute shop/broker",
        "ReferenceGrant shop/from-edge",
        "BackendTLSPolicy shop/bank",
    ];
    assert_eq!(names, expected);
    for document in &documents {
        let id = document.id();
        assert!(DocumentId::KINDS.contains(&&*id.kind));
        let reach = match DocumentId::is_of_the_mesh(&id.kind) {
            true => Reach::Mesh,
            false => Reach::Namespaces(BTreeSet::from(["shop".to_owned()])),
        };
        assert_eq!(document.reach(), reach, "{id}");
        let again = Document::restore(id, document.text()).unwrap();
        assert_eq!((again.id(), again.text()), (id, document.text()));
    }
    let missing = DocumentId::KINDS.iter().filter(|kind| leno_gateway_api::KIND_NAMES.contains(kind));
    assert_eq!(missing.count(), leno_gateway_api::KIND_NAMES.len());
}

#[test]
fn json_and_long_names_are_accepted() {
    let name = "a".repeat(253);
    let text = format!(
        r#"{{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {{"name": "{name}"}}, "spec": {{}}}}"#
    );
    let documents = Document::read(Path::new("a.json"), &text).unwrap();
    assert_eq!((&*documents[0].id().namespace, &*documents[0].id().name), ("default", &*name));
}

#[test]
fn documents_of_files_count_for_their_namespace() {
    let snapshot = load_text(Path::new("a.yaml"), ALL).unwrap_or_else(|problems| panic!("{problems:?}"));
    let used = snapshot.namespaces()["shop"];
    // HTTPRoute: 4 matches, 1 host, 3 parents; GRPCRoute: 2 matches; TLSRoute: 1; TCPRoute: 2.
    assert_eq!((used.routes, used.route_matches), (7, 4 * 3 + 2 + 1 + 2));
    assert!(snapshot.read().contains("1 HTTPRoute, 1 GRPCRoute"), "{}", snapshot.read());
}
