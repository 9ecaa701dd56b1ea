//! The documents of the mesh.

use std::path::Path;

#[test]
fn they_are_accepted_without_a_warning() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("mesh");
    let snapshot = leno_config::load(&folder).unwrap_or_else(|problems| panic!("{problems:#?}"));
    assert!(snapshot.warnings().is_empty(), "{:#?}", snapshot.warnings());
    assert_eq!(snapshot.functions().count(), boutique::function::NAMES.len());
}
