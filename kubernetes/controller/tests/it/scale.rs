//! Memory and processor time of the index beside a cluster of many pods.

use leno_controller::api::{ApiServer, Change};
use leno_controller::index::{self, ClusterCounts, Event, Index};
use serde_json::{Value, json};
use std::fs;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The memory of this process in MiB, and its processor time in milliseconds.
fn usage() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // In ticks of 10 ms: `utime` and `stime`.
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    (resident / 1024, ticks * 10)
}

#[tokio::test]
async fn measure() {
    let Ok(seconds) = std::env::var("LENO_MEASURE_SECONDS") else {
        eprintln!("SKIPPED: with LENO_MEASURE_SECONDS it measures beside the cluster of KUBECONFIG");
        return;
    };
    let seconds = seconds.parse().unwrap();
    let api = ApiServer::new(kube::Client::try_default().await.unwrap());
    let (index, counts) = (Arc::new(Mutex::new(Index::default())), Arc::new(ClusterCounts::default()));
    let (sender, mut batches) = mpsc::unbounded_channel();
    let (shared, counted) = (index.clone(), counts.clone());
    let (begun, start) = (Instant::now(), usage());
    tokio::spawn(async move {
        let sink = |changes: index::Changes| {
            let _ = sender.send((changes.put.len(), changes.gone.len()));
        };
        match index::follow(&api, &counted, &shared, sink).await {}
    });
    let (put, _) = batches.recv().await.unwrap();
    let listed = usage();
    println!(
        "{} pods, {put} of them enrolled: {} MiB (before: {} MiB), {} ms of processor, {} ms",
        index.lock().unwrap().pods(),
        listed.0,
        start.0,
        listed.1 - start.1,
        begun.elapsed().as_millis(),
    );
    let events = || counts.pods.events.load(Ordering::Relaxed);
    let (before, mut batch_count, mut changed) = (events(), 0, 0);
    let end = tokio::time::sleep(Duration::from_secs(seconds));
    tokio::pin!(end);
    loop {
        tokio::select! {
            () = &mut end => break,
            batch = batches.recv() => {
                let (put, gone) = batch.unwrap();
                (batch_count, changed) = (batch_count + 1, changed + put + gone);
            }
        }
    }
    let (resident, processor) = usage();
    println!(
        "{} events of pods, {changed} changes in {batch_count} batches: {} ms of processor, {resident} MiB, {} lists anew",
        events() - before,
        processor - listed.1,
        counts.pods.relists.load(Ordering::Relaxed),
    );
}

/// The memory of endpoints: `LENO_MEASURE_ENDPOINTS=10000` makes so many, ten in each slice.
#[test]
fn measure_endpoints() {
    let Ok(count) = std::env::var("LENO_MEASURE_ENDPOINTS") else {
        eprintln!("SKIPPED: with LENO_MEASURE_ENDPOINTS it measures so many endpoints");
        return;
    };
    let count: usize = count.parse().unwrap();
    let mut index = Index::default();
    index.apply(Event::Namespaces(Change::Replaced { objects: vec![], broken: vec![] }));
    index.apply(Event::Nodes(Change::Replaced { objects: vec![], broken: vec![] }));
    index.apply(Event::Pods(Change::Replaced { objects: vec![], broken: vec![] }));
    index.apply(Event::Services(Change::Replaced { objects: vec![], broken: vec![] }));
    index.apply(Event::EndpointSlices(Change::Replaced { objects: vec![], broken: vec![] }));
    let mut put = |slices: std::ops::Range<usize>| {
        for slice in slices {
            let name = format!("service-{slice}");
            let metadata = |name: &str| json!({ "namespace": format!("ns-{}", slice % 20), "name": name });
            let ports = json!([{ "name": "http", "port": 8080, "protocol": "TCP" }]);
            let service = json!({
                "metadata": metadata(&name),
                "spec": { "clusterIPs": [format!("10.96.{}.{}", slice / 250, slice % 250)], "ports": ports },
            });
            let endpoint = |number: usize| {
                let pod = json!({ "kind": "Pod", "name": format!("{name}-6d4cf56db6-{number:05}") });
                json!({
                    "addresses": [format!("10.{}.{}.{number}", 64 + slice / 250, slice % 250)],
                    "conditions": { "ready": true, "serving": true, "terminating": false },
                    "nodeName": format!("node-{}", (slice + number) % 100), "zone": format!("zone-{}", number % 3),
                    "targetRef": pod,
                })
            };
            let mut slice_metadata = metadata(&format!("{name}-abcde"));
            slice_metadata["labels"] = json!({ "kubernetes.io/service-name": name });
            let endpoints: Vec<Value> = (0..10).map(endpoint).collect();
            let object = json!({ "metadata": slice_metadata, "ports": ports, "endpoints": endpoints });
            index.apply(Event::Services(Change::Put(serde_json::from_value(service).unwrap())));
            index.apply(Event::EndpointSlices(Change::Put(serde_json::from_value(object).unwrap())));
            index.take().unwrap();
        }
    };
    // The first ones fill what the allocator keeps.
    put(0..100);
    let before = resident();
    put(100..100 + count / 10);
    let bytes = (resident() - before) / count as u64;
    println!("{:?}: {bytes} bytes for each endpoint, with a tenth of its Service", index.services());
}

/// The memory of this process in bytes.
fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
