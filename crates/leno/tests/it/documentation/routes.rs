//! The example of docs/routes.md.

use super::{Machine, block, example};
use leno_testkit::documentation::repository;
use std::fs;

#[test]
fn routes_of_the_example_lead_where_the_page_says() {
    let read = |file: &str| fs::read_to_string(repository().join(file)).unwrap();
    let (page, documents) = (read("docs/routes.md"), read("examples/routes/routes.yaml"));
    assert!(page.contains(&format!("```yaml\n{documents}```")), "the page has another routes.yaml");

    let (machine, folder) = (Machine::start("routes"), example("routes"));
    let run = |line: &str| machine.run(line, folder.path());
    let lines = block("docs/routes.md", "leno check");
    assert!(run(&lines[0]).contains("3 functions, all fine"));
    let _up = machine.begin(&lines[1], folder.path(), "ready: 3 functions");

    let lines = block("docs/routes.md", "curl");
    assert_eq!(run(&lines[0]), "shop: /orders/7\n");
    let answer = run(&lines[1]);
    assert!(answer.starts_with("HTTP/1.1 301"), "{answer}");
    assert!(answer.contains("location: http://shop.example:8080/api/orders/7\r\n"), "{answer}");
    assert_eq!(run(&lines[2]), "shop: /stock/7\nstock-next: /stock/7\n");
    let status = run(&lines[3]);
    assert!(status.contains("demo/shop") && status.contains("demo/stock"), "{status}");
}
