//! What comes out of good documents.

use leno_config::{FunctionId, Snapshot, load_text};
use std::path::Path;

fn orders() -> Snapshot {
    let text = include_str!("documents/orders.yaml");
    load_text(Path::new("app/orders.yaml"), text).unwrap_or_else(|problems| {
        panic!("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    })
}

fn id(text: &str) -> FunctionId {
    text.parse().unwrap()
}

#[test]
fn a_function_gets_its_own_edges_and_nothing_else() {
    let slice = orders().slice(&id("orders/order-service")).unwrap();
    println!("{slice:#?}");
    let callees: Vec<String> = slice.callees.iter().map(|callee| callee.id.to_string()).collect();
    assert_eq!(callees, ["orders/inventory-service", "stock/ledger"]);
}
