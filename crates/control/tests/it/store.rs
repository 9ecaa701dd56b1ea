//! Values that survive a restart, and values that must not.

use crate::support::configs::{config, extended, function};
use crate::support::*;
use leno_agent::Change;
use leno_control::{Definitions, DefinitionsError, PublishError, Store, StoreError};
use leno_identity::{Authority, CertificateDer};
use leno_model::{FunctionConfig, GatewayRoutes};
use leno_testkit::eventually_async;
use leno_wire::{Resource, Subject};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const FRONTEND: &str = "orders/frontend";
const ORDERS: &str = "orders/order-service";

fn control_at(path: &Path) -> leno_control::Control {
    control_with(Store::open(path).unwrap(), leno_control::Options { node_grace: TIMEOUT * 2 })
}

fn functions(control: &leno_control::Control) -> Vec<String> {
    control.status().functions.iter().map(|status| status.function.to_string()).collect()
}

#[test]
fn definitions_survive_and_so_do_their_removals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    let first = control_at(&path);
    assert_eq!(functions(&first), [""; 0]);
    first.publish(&definitions([config(FRONTEND, &[ORDERS], 1), config(ORDERS, &[], 1)])).unwrap();
    let versions = first.status().functions;
    drop(first);

    let second = control_at(&path);
    assert_eq!(second.status().functions, versions);
    assert_eq!(
        second.publish(&definitions([config(FRONTEND, &[ORDERS], 1), config(ORDERS, &[], 1)])).unwrap().changed,
        0
    );
    second.publish(&definitions([config(FRONTEND, &[], 2)])).unwrap();
    drop(second);
    assert_eq!(functions(&control_at(&path)), [FRONTEND]);
}

#[tokio::test]
async fn routes_of_gateways_survive() {
    let routed = FunctionConfig { is_routed: true, ..config(ORDERS, &[], 1) };
    let first = Definitions { routes: gateway_routes(ORDERS), ..definitions([routed]) };
    let others = [gateway_routes(FRONTEND), GatewayRoutes::default()];
    for other in others {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.redb");
        let earlier = control_at(&path);
        earlier.publish(&first).unwrap();
        let changed = Some(&other).filter(|other| **other != first.routes);
        earlier.change_after(&[], &[], changed, &first.permissions, || Ok::<_, PublishError>(())).unwrap();
        drop(earlier);

        let control = control_at(&path);
        let served = TestServer::start(&control).await;
        let admission = leno_control::Admission { gateway: true, ..only(&[]) };
        let (agent, mut updates) = node(&served, &control.admit("edge", admission).unwrap(), 1);
        agent.subscribe([Subject::Routes]);
        let changes = accepted(&mut updates).await;
        assert!(changes.contains(&Change::Set(Resource::Routes(Box::new(other)))), "{changes:?}");
    }
}

#[test]
fn functions_that_were_added_alone_survive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    let first = control_at(&path);
    first.publish(&definitions([config(FRONTEND, &[ORDERS], 1)])).unwrap();
    assert!(first.put(&config(ORDERS, &[], 1)).unwrap());
    let stranger =
        FunctionConfig { identity: "spiffe://elsewhere.example/ns/a/sa/b".parse().unwrap(), ..config("a/b", &[], 1) };
    assert!(matches!(first.put(&stranger), Err(PublishError::Definitions(DefinitionsError::Foreign { .. }))));
    let versions = first.status().functions;
    drop(first);
    assert_eq!(control_at(&path).status().functions, versions);
    assert_eq!(functions(&control_at(&path)), [FRONTEND, ORDERS]);
}

#[test]
fn modules_survive_with_the_configs_that_name_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    let mut definitions = definitions([extended(config(FRONTEND, &[], 1), b"a module")]);
    let error = control_at(&path).publish(&definitions).unwrap_err();
    assert!(matches!(error, PublishError::Definitions(DefinitionsError::Module { .. })), "{error}");
    definitions.modules.insert(leno_wire::module_hash(b"a module"), b"a module"[..].into());
    control_at(&path).publish(&definitions).unwrap();
    // Without its module, the function configuration could not be read again.
    assert_eq!(functions(&control_at(&path)), [FRONTEND]);
    control_at(&path).publish(&crate::support::definitions([])).unwrap();
    assert_eq!(functions(&control_at(&path)), [""; 0]);
}

#[test]
fn the_next_root_overlaps_with_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    let roots =
        |control: &leno_control::Control| control.bundle().roots().cloned().collect::<Vec<CertificateDer<'static>>>();
    let first = roots(&control_at(&path));
    assert_eq!(first.len(), 1);
    let second = roots(&control_at(&path));
    assert_eq!((second.len(), &second[1]), (2, &first[0]));
    let third = roots(&control_at(&path));
    assert_eq!((third.len(), &third[1]), (2, &second[0]), "one predecessor is enough");

    // A control plane of another trust domain does not continue from this store.
    let other = Authority::new(&"other.example".parse().unwrap()).unwrap();
    let other = leno_control::Control::new(other, Store::open(&path).unwrap(), Default::default()).unwrap();
    assert_eq!(roots(&other).len(), 1);
    assert_eq!(functions(&other), [""; 0]);
}

#[test]
fn the_file_is_its_owners_and_holds_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    let control = control_at(&path);
    control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    let root = control.bundle().roots().next().unwrap().to_vec();
    drop(control);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let bytes = std::fs::read(&path).unwrap();
    let holds = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    assert!(holds(&root), "the public root is there");
    // The beginnings of a P-256 key in SEC 1 and in PKCS #8.
    assert!(!holds(&[0x30, 0x77, 0x02, 0x01, 0x01, 0x04, 0x20]));
    assert!(!holds(&[0x02, 0x01, 0x01, 0x04, 0x20]));
    assert!(!holds(b"PRIVATE KEY"));
}

#[tokio::test]
async fn a_control_plane_that_ends_closes_its_file_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    let control = control_at(&path);
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (_agent, _updates) = node(&served, &member, 1);
    eventually_async("the node to be connected", || control.status().nodes[0].connected).await;
    served.stop().await;
    drop(control);
    // The grace of the node that was connected is not waited for: it is longer than the timeout of
    // this test.
    eventually_async("the store to be closed by its last user", || Store::open(&path).is_ok()).await;
}

#[test]
fn what_cannot_be_published_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    let control = control_at(&path);
    control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    let before = control.status();

    let mut other_domain = definitions([config(ORDERS, &[], 1)]);
    other_domain.mesh.trust_domain = "other.example".parse().unwrap();
    let mut misfiled = definitions([config(ORDERS, &[], 1)]);
    misfiled.configs.insert(function(FRONTEND), config(ORDERS, &[], 1));
    let with_identity = |identity: &str| {
        let mut bad = config(ORDERS, &[], 1);
        bad.identity = identity.parse().unwrap();
        definitions([bad])
    };
    let bad = [
        other_domain,
        misfiled,
        with_identity("spiffe://orders.example"),
        with_identity("spiffe://other.example/ns/orders/sa/order-service"),
        with_identity("spiffe://orders.example/ns/leno-system/sa/gateway"),
    ];
    for definitions in bad {
        let error = control.publish(&definitions).unwrap_err();
        assert!(matches!(error, PublishError::Definitions(_)), "{error}");
    }
    assert_eq!(control.status(), before);
    drop(control);
    assert_eq!(functions(&control_at(&path)), [FRONTEND]);
}

#[test]
fn errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = |path: &Path| Store::open(path).map(drop).unwrap_err().to_string();
    assert!(text(folder.path()).starts_with(&folder.path().display().to_string()));
    let garbage = folder.path().join("garbage");
    std::fs::write(&garbage, "apiVersion: leno.dev/v1alpha1").unwrap();
    assert!(text(&garbage).starts_with(&garbage.display().to_string()));

    let path = folder.path().join("control.redb");
    let open = Store::open(&path).unwrap();
    let error = text(&path);
    assert!(error.starts_with(&path.display().to_string()), "{error}");
    drop(open);
    Store::open(&path).unwrap();
}

#[test]
fn a_store_of_another_format_or_with_damage_is_refused() {
    use redb::{Database, TableDefinition};
    const META: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("meta");
    const ENTRIES: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("entries");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    let tamper =
        |path: &Path, table: TableDefinition<'static, &'static str, &'static [u8]>, key: &str, value: &[u8]| {
            let database = Database::create(path).unwrap();
            let writing = database.begin_write().unwrap();
            writing.open_table(table).unwrap().insert(key, value).unwrap();
            writing.commit().unwrap();
        };
    let authority = || Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap();
    let start = || leno_control::Control::new(authority(), Store::open(&path).unwrap(), Default::default());
    start().unwrap().publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    start().unwrap();

    let entry = format!("compiled/slices/{FRONTEND}");
    tamper(&path, ENTRIES, &entry, &[0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3]);
    let error = start().unwrap_err().to_string();
    assert!(error.contains(&format!("the entry {entry} cannot be read")), "{error}");
    tamper(&path, ENTRIES, &entry, &[1, 2, 3]);
    assert!(start().unwrap_err().to_string().contains("it has no version"));
    tamper(&path, META, "format", b"3");
    let error = Store::open(&path).map(drop).unwrap_err();
    assert!(matches!(&error, StoreError::Format { found, .. } if found == "3"), "{error}");

    // The entries of the first format.
    let earlier = folder.path().join("earlier.redb");
    tamper(&earlier, META, "release", b"0.1.0");
    let error = Store::open(&earlier).map(drop).unwrap_err();
    assert!(matches!(&error, StoreError::Format { found, .. } if found == "1"), "{error}");
    assert!(error.to_string().contains("publish the definitions again"));
}

use crate::support::configs;

/// The function configuration with another template.
fn with_content(content: u32) -> FunctionConfig {
    FunctionConfig { concurrency: content, ..config(ORDERS, &[], 1) }
}

fn revisions(control: &leno_control::Control) -> Vec<(String, u8)> {
    let status = control.status();
    let all = status.functions.iter().flat_map(|status| &status.revisions);
    all.map(|revision| (revision.revision.clone(), revision.percent)).collect()
}

#[test]
fn revisions_keep_their_numbers_and_contents_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    let first = control_at(&path);
    first.publish(&definitions([with_content(1)])).unwrap();
    first.put(&with_content(2)).unwrap();
    let before = first.status().functions;
    assert_eq!(revisions(&first), [("order-service-00001".to_owned(), 0), ("order-service-00002".to_owned(), 100)]);
    drop(first);

    let second = control_at(&path);
    assert_eq!(second.status().functions, before);
    assert_eq!(second.publish(&definitions([with_content(2)])).unwrap().changed, 0);
    let mut divided = with_content(1);
    let target = |revision, percent| leno_model::revision::Target { revision, percent, ..Default::default() };
    divided.revisions.plan.traffic = vec![target(1, 30), target(2, 50), target(0, 20)];
    second.publish(&definitions([divided.clone()])).unwrap();
    let shares = ["00001", "00002", "00003"].map(|number| format!("order-service-{number}")).into_iter();
    assert_eq!(revisions(&second), shares.zip([30, 50, 20]).collect::<Vec<_>>());
    let before = second.status().functions;
    drop(second);
    let third = control_at(&path);
    assert_eq!(third.status().functions, before, "the same contents are delivered");

    divided.revisions.plan.traffic = vec![target(9, 100)];
    let error = third.publish(&definitions([divided.clone()])).unwrap_err();
    assert!(matches!(error, PublishError::Definitions(DefinitionsError::Revision { .. })), "{error}");
    assert!(third.put(&divided).is_err());
    assert_eq!(third.status().functions, before, "what is refused changes nothing");
}

#[test]
fn revisions_are_collected_from_the_file_and_go_with_their_function() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    let control = control_at(&path);
    for content in 1..=20 {
        let mut config = with_content(content);
        config.revisions.plan.history = 2;
        control.publish(&definitions([config])).unwrap();
    }
    drop(control);
    let control = control_at(&path);
    assert_eq!(revisions(&control), [("order-service-00019".to_owned(), 0), ("order-service-00020".to_owned(), 100)]);
    control.publish(&definitions([])).unwrap();
    control.publish(&definitions([with_content(20)])).unwrap();
    assert_eq!(revisions(&control), [("order-service-00001".to_owned(), 100)]);
}
