//! The cost of publications of a large mesh.

use leno_control::{Authorities, Control, Store};
use leno_controller::api::{Change, Metadata};
use leno_controller::crds::ObjectKind;
use leno_controller::documents::{DocumentObject, ObjectStatus};
use leno_controller::index::Workload;
use leno_controller::publication::{Counts, Inbox, Publication, Publisher};
use leno_identity::{Authority, TrustDomain};
use leno_intake::Intake;
use leno_model::{FunctionId, Pod, PodMode, PodPort};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

const WORKLOADS: usize = 1_000;
const NODES: usize = 100;

fn id(number: usize) -> FunctionId {
    FunctionId { namespace: format!("ns{}", number % 20), name: format!("w{number}") }
}

fn workload(number: usize, port: u16) -> Workload {
    Workload {
        service_account: format!("w{number}"),
        other_accounts: Vec::new(),
        mode: PodMode::Enforced,
        ports: vec![PodPort { name: Some("http".to_owned()), number: port }],
        labels: BTreeMap::from([("app".to_owned(), format!("w{number}"))]),
    }
}

/// A policy of a function that lets another one call it.
fn policy(number: usize, generation: i64, path: &str) -> DocumentObject {
    let (FunctionId { namespace, name }, caller) = (id(number), id((number + 1) % WORKLOADS));
    let metadata = Metadata { namespace, name: name.clone(), generation: Some(generation), ..Metadata::default() };
    let rule = json!({"name": "read", "from": [{"identities": [caller.to_string()]}], "to": [{"paths": [path]}]});
    let spec = json!({"functions": [name], "authorization": {"rules": [rule]}});
    DocumentObject { metadata, spec, status: ObjectStatus::default() }
}

fn pod(number: usize, function: usize) -> (String, Pod) {
    let function = id(function);
    let pod = Pod {
        uid: format!("uid-{number}").parse().unwrap(),
        namespace: function.namespace.clone(),
        name: format!("pod-{number}"),
        service_account: Some(format!("{}-account", function.name)),
        function,
        addresses: vec![[10, 78, (number / 250) as u8, (number % 250) as u8].into()],
        mode: PodMode::Enforced,
        ports: Vec::new(),
        probes: Vec::new(),
        refused: None,
    };
    (format!("node-{}", number % NODES), pod)
}

/// Milliseconds of this process's threads.
fn processor() -> f64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let of = |task: std::io::Result<fs::DirEntry>| -> f64 {
        let text = fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap_or_default();
        text.split_whitespace().next().map_or(0.0, |time| time.parse().unwrap())
    };
    tasks.map(of).sum::<f64>() / 1e6
}

async fn published(
    inbox: &Inbox,
    publications: &mut watch::Receiver<Arc<Publication>>,
    change: impl FnOnce(&Inbox),
) -> f64 {
    publications.borrow_and_update();
    let begin = Instant::now();
    change(inbox);
    publications.changed().await.unwrap();
    let elapsed = begin.elapsed().as_secs_f64() * 1e3;
    assert_eq!(publications.borrow().failure, None);
    elapsed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measure() {
    let Ok(rounds) = std::env::var("LENO_MEASURE_PUBLICATIONS") else {
        eprintln!("SKIPPED: with LENO_MEASURE_PUBLICATIONS it measures so many publications of each kind");
        return;
    };
    let rounds: usize = rounds.parse().unwrap();
    let domain: TrustDomain = "leno.local".parse().unwrap();
    let authorities = Authorities::in_memory(Authority::new(&domain).unwrap());
    let control = Control::with_authorities(authorities, Store::memory(), leno_control::Options::default()).unwrap();
    let inbox = Arc::new(Inbox::default());
    let policies = ObjectKind::named("Policy").unwrap();
    inbox.change_workloads((0..WORKLOADS).map(|number| (id(number), Some(workload(number, 80)))).collect());
    let objects = (0..WORKLOADS).map(|number| policy(number, 1, "/")).collect();
    inbox.change_objects(policies, Change::Replaced { objects, broken: Vec::new() });
    control.change_pods((0..10 * WORKLOADS).map(|number| pod(number, number % WORKLOADS)).collect(), &[]);
    let (sender, mut publications) = watch::channel(Arc::default());
    let publisher = Publisher {
        inbox: inbox.clone(),
        control: control.clone(),
        publications: sender,
        counts: Arc::new(Counts::default()),
        intake: Intake::default(),
    };
    let begin = Instant::now();
    let task = tokio::spawn(publisher.run());
    publications.changed().await.unwrap();
    assert_eq!(publications.borrow().failure, None);
    println!("first publication: {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    type Event<'a> = (&'a str, &'a dyn Fn(&Inbox, usize));
    let kinds: [Event<'_>; 4] = [
        ("a policy changes", &|inbox, round| {
            inbox.change_objects(policies, Change::Put(policy(round, 2, "/changed")));
        }),
        ("a workload changes", &|inbox, round| {
            inbox.change_workloads([(id(round), Some(workload(round, 81)))].into());
        }),
        ("a workload is new", &|inbox, round| {
            let number = WORKLOADS + round;
            inbox.change_workloads([(id(number), Some(workload(number, 80)))].into());
        }),
        ("a workload goes", &|inbox, round| inbox.change_workloads([(id(WORKLOADS + round), None)].into())),
    ];
    for (kind, change) in kinds {
        let (mut times, before) = (Vec::new(), processor());
        for round in 0..rounds {
            times.push(published(&inbox, &mut publications, |inbox| change(inbox, round)).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let processor = (processor() - before) / rounds as f64;
        times.sort_by(f64::total_cmp);
        println!(
            "{kind}: p50 {:.1} ms, most {:.1} ms, {processor:.1} ms of processor",
            times[rounds / 2],
            times[rounds - 1]
        );
    }
    let before = processor();
    for _ in 0..rounds {
        leno_controller::status::Programming::of(&control);
    }
    println!("progress of nodes: {:.2} ms of processor", (processor() - before) / rounds as f64);
    task.abort();
}
