//! The step before Leno is removed from a cluster: the agents let go of all pods, and the CNI plug-in
//! goes from the nodes. Both DaemonSets get an argument for that, and their new pods replace the old
//! ones as in an update, so that no request fails.

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Error};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Pause between looks at a DaemonSet.
const LOOK: Duration = Duration::from_secs(1);
const NAME: &str = "app.kubernetes.io/name";

/// The options of the step.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The namespace of the DaemonSets.
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", default_value = "leno-system")]
    pub namespace: String,
    /// How long the nodes may take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 240)]
    pub timeout: u64,
}

/// Returns when all nodes have released their pods and have no plug-in.
///
/// # Errors
/// The API server is not known or refuses a change, or nodes are missing at the end of the time. The
/// error names them.
pub async fn run(options: Options) -> Result<()> {
    let client = Client::try_default().await.context("the API server is not known")?;
    let until = Instant::now() + Duration::from_secs(options.timeout);
    let mut changed = Vec::new();
    for (name, argument, strategy) in [
        ("leno-cni", "--remove", json!({"maxUnavailable": "100%", "maxSurge": 0})),
        ("leno-agent", "--release", json!({"maxUnavailable": 0, "maxSurge": "100%"})),
    ] {
        let sets: Api<DaemonSet> = Api::namespaced(client.clone(), &options.namespace);
        let Some(set) = sets.get_opt(name).await.with_context(|| name.to_owned())? else {
            tracing::info!("there is no DaemonSet {name}");
            continue;
        };
        let container = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()?.containers.first());
        let container = container.with_context(|| format!("the DaemonSet {name} has no container"))?;
        let mut arguments = container.args.clone().unwrap_or_default();
        if !arguments.iter().any(|it| it == argument) {
            arguments.push(argument.to_owned());
            let containers = json!([{"name": container.name, "args": arguments}]);
            let strategy = json!({"type": "RollingUpdate", "rollingUpdate": strategy});
            let patch = json!({"spec": {"updateStrategy": strategy, "template": {"spec": {"containers": containers}}}});
            sets.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        }
        changed.push(name);
    }
    for name in changed {
        await_nodes(&client, &options.namespace, name, until).await?;
    }
    Ok(())
}

/// Waits until the newest pods of a DaemonSet are ready on all nodes.
async fn await_nodes(client: &Client, namespace: &str, name: &str, until: Instant) -> Result<()> {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
    let mut shown = String::new();
    loop {
        let set = sets.get(name).await?;
        let status = set.status.unwrap_or_default();
        let all = status.desired_number_scheduled;
        let updated = status.updated_number_scheduled.unwrap_or_default();
        let done = updated.min(status.number_available.unwrap_or_default());
        let is_current = status.observed_generation >= set.metadata.generation;
        if is_current && updated == all && done == all {
            tracing::info!("{name}: done on {all} nodes");
            return Ok(());
        }
        let text = format!("{name}: {done} of {all} nodes");
        if text != shown {
            tracing::info!("{text}");
            shown = text;
        }
        if Instant::now() >= until {
            let missing = missing(client, namespace, name).await.unwrap_or_default();
            let missing: Vec<_> = missing.into_iter().collect();
            bail!("{name}: {done} of {all} nodes are done; missing or not ready: {}", missing.join(", "));
        }
        sleep(LOOK).await;
    }
}

/// The nodes whose newest pod of a DaemonSet is not ready.
async fn missing(client: &Client, namespace: &str, name: &str) -> Result<BTreeSet<String>, Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = pods.list(&ListParams::default().labels(&format!("{NAME}={name}"))).await?;
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True")
    };
    let nodes = pods.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none() && !is_ready(pod));
    Ok(nodes.filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect())
}
