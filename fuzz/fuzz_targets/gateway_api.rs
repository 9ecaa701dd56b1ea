//! Any YAML value is the content of a document of the Gateway API, or has faults. Each kind and
//! version reads it. An accepted document stays accepted with a status, and means the same.
#![no_main]

use leno_config::{Key, Mark, Node, Value, foreign_documents};
use leno_gateway_api::{GROUP, KIND_NAMES, duration, read};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

const VERSIONS: [&str; 4] = ["v1", "v1beta1", "v1alpha2", "v1alpha3"];

fuzz_target!(|text: &str| {
    let _ = duration(text);
    let Ok(values) = foreign_documents(Path::new("fuzz.yaml"), text) else { return };
    let Some(spec) = values.into_iter().next() else { return };
    for (kind, version) in KIND_NAMES.into_iter().flat_map(|kind| VERSIONS.map(|version| (kind, version))) {
        let fields = vec![
            field("apiVersion", scalar(&format!("{GROUP}/{version}"))),
            field("kind", scalar(kind)),
            field("metadata", map(vec![field("name", scalar("a"))])),
            field("spec", spec.clone()),
        ];
        match read(&map(fields.clone())) {
            Ok(resource) => {
                assert_eq!(resource.kind(), kind);
                let with_status = fields.into_iter().chain([field("status", spec.clone())]).collect();
                assert_eq!(read(&map(with_status)).as_ref(), Ok(&resource));
            }
            Err(faults) => {
                assert!(!faults.is_empty());
                assert!(faults.iter().all(|fault| !fault.path.is_empty() && !fault.message.is_empty()));
            }
        }
    }
});

const MARK: Mark = Mark { line: 1, column: 1 };

fn scalar(text: &str) -> Node {
    Node { mark: MARK, value: Value::Scalar { text: text.to_owned(), plain: true } }
}

fn map(fields: Vec<(Key, Node)>) -> Node {
    Node { mark: MARK, value: Value::Map(fields) }
}

fn field(name: &str, node: Node) -> (Key, Node) {
    (Key { mark: MARK, text: name.to_owned() }, node)
}
