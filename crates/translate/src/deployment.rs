//! Deployments, StatefulSets and Jobs of Kubernetes as documents of the mesh, with the Services,
//! Ingresses and ConfigMaps of the same files.

use crate::workload::{Import, Notes, Workload, at, elements, entries, label, port_of_image, size, text, texts};
use leno_config::{Mark, Node, Problem, foreign_documents};
use std::path::Path;

/// Translates manifests of Kubernetes. `namespace`: of the documents, instead of their own.
///
/// # Errors
/// The text is no YAML, or has no workload.
pub fn manifests(file: &Path, text_of_file: &str, namespace: Option<&str>) -> Result<Import, Vec<Problem>> {
    let documents = foreign_documents(file, text_of_file)?;
    let mut notes = Notes::of(file);
    let all = Manifests { documents: documents.iter().flat_map(listed).collect(), namespace };
    let mut workloads = Vec::new();
    for manifest in &all.documents {
        match kind(manifest) {
            "Deployment" | "StatefulSet" | "ReplicaSet" | "Pod" => {
                workloads.push(all.workload(manifest, false, &mut notes))
            }
            "Job" => workloads.push(all.workload(manifest, true, &mut notes)),
            "Service" | "Ingress" | "ConfigMap" => {}
            "Secret" => notes.manual_step(
                manifest.mark,
                "Secret",
                "write `secrets` of the function, from a StoredSecret or a file of the node",
            ),
            "HorizontalPodAutoscaler" => {
                notes.manual_step(manifest.mark, "HorizontalPodAutoscaler", "see `scale` of a Function")
            }
            "NetworkPolicy" => {
                notes.manual_step(
                    manifest.mark,
                    "NetworkPolicy",
                    "keep it among the documents: `leno check` translates it",
                );
            }
            "PersistentVolumeClaim" => {
                notes.dropped(manifest.mark, "PersistentVolumeClaim", "see the workloads that mount it")
            }
            other => notes.dropped(manifest.mark, other, "this kind has no counterpart"),
        }
    }
    if workloads.is_empty() {
        let message = "there is no Deployment, StatefulSet, Pod or Job in this file";
        notes.problem(Mark { line: 1, column: 1 }, "", message, "expected manifests of Kubernetes, or a compose file");
    }
    all.versions(&mut workloads, &mut notes);
    for manifest in &all.documents {
        match kind(manifest) {
            "Ingress" if is_canary(manifest) => {}
            "Service" => all.service(manifest, &mut workloads, &mut notes),
            "Ingress" => all.ingress(manifest, &mut workloads, &mut notes),
            _ => {}
        }
    }
    all.calls(&mut workloads, &mut notes);
    let documents = text(workloads, &mut notes);
    if notes.problems.is_empty() { Ok(Import { documents, notes: notes.notes }) } else { Err(notes.problems) }
}

/// The elements of a `List`, or the document itself.
fn listed(document: &Node) -> Vec<&Node> {
    match (kind(document), document.get("items")) {
        ("List", Some(items)) => elements(items).iter().collect(),
        _ => vec![document],
    }
}

/// Annotations of nginx's Ingress controller.
const CANARY: &str = "nginx.ingress.kubernetes.io/canary";

/// Whether an Ingress is for a share of the requests to another one.
pub(super) fn is_canary(ingress: &Node) -> bool {
    annotation(ingress, "") == Some("true")
}

pub(super) fn annotation<'n>(ingress: &'n Node, suffix: &str) -> Option<&'n str> {
    at(ingress, &["metadata", "annotations"])?.get(&format!("{CANARY}{suffix}")).and_then(Node::text)
}

pub(super) fn kind(manifest: &Node) -> &str {
    manifest.get("kind").and_then(Node::text).unwrap_or("document without a kind")
}

pub(super) fn name(manifest: &Node) -> &str {
    at(manifest, &["metadata", "name"]).and_then(Node::text).unwrap_or_default()
}

/// Whether a Service selects a workload by its labels.
pub(super) fn selects(service: &Node, workload: &Workload) -> bool {
    let selector = at(service, &["spec", "selector"]).into_iter().flat_map(entries);
    let mut selector = selector.filter_map(|(label, value)| Some((label, value.text()?))).peekable();
    let own = |label: &str| workload.labels.get(label).and_then(|value| value.as_str());
    selector.peek().is_some() && selector.all(|(label, value)| own(label) == Some(value))
}

/// The namespace that it names.
pub(super) fn namespace(manifest: &Node) -> &str {
    at(manifest, &["metadata", "namespace"]).and_then(Node::text).unwrap_or("default")
}

pub(super) struct Manifests<'m> {
    pub documents: Vec<&'m Node>,
    pub namespace: Option<&'m str>,
}

impl Manifests<'_> {
    fn workload(&self, manifest: &Node, is_job: bool, notes: &mut Notes<'_>) -> Workload {
        let path = format!("{} {}", kind(manifest), name(manifest));
        let namespace = self.namespace.unwrap_or(namespace(manifest));
        let mut workload = Workload::new(&label(name(manifest)), namespace, manifest.mark, path.clone());
        workload.is_job = is_job;
        let (template, prefix) = match (kind(manifest), at(manifest, &["spec", "template"])) {
            ("Pod", _) => (Some(manifest), path.clone()),
            (_, template) => (template, format!("{path} spec.template")),
        };
        let Some(pod) = template.and_then(|template| template.get("spec")) else {
            notes.problem(manifest.mark, &path, "there is no `spec.template.spec`", "");
            return workload;
        };
        let labels = template.and_then(|template| at(template, &["metadata", "labels"]));
        for (label, value) in labels.into_iter().flat_map(entries) {
            workload.labels.insert(label.to_owned(), value.text().unwrap_or_default().into());
        }
        if kind(manifest) != "Pod" {
            self.controller(manifest, &mut workload, &path, notes);
        }
        for (field, node) in entries(pod) {
            let path = format!("{prefix}.spec.{field}");
            match (field, node.text()) {
                ("containers", _) => match elements(node) {
                    [] => notes.problem(node.mark, &path, "there is no container", ""),
                    [first, others @ ..] => {
                        self.container(first, pod, &mut workload, &format!("{path}[0]"), notes);
                        for other in others {
                            let name = other.get("name").and_then(Node::text).unwrap_or_default();
                            notes.manual_step(
                                other.mark,
                                &path,
                                format!(
                                    "the container `{name}`: an instance is one container; \
                                give it a function of its own"
                                ),
                            );
                        }
                    }
                },
                ("volumes", _) | ("restartPolicy", _) => {}
                ("terminationGracePeriodSeconds", Some(seconds)) => {
                    workload.set_in("timeouts", "grace", format!("{seconds}s"));
                }
                ("securityContext", _) => security(node, &mut workload, &path, notes),
                ("initContainers", _) => {
                    notes.manual_step(node.mark, &path, "write a Job, and apply it before the function")
                }
                ("serviceAccountName" | "serviceAccount", _) => {
                    notes.adapted(node.mark, &path, format!("the identity is ns/{namespace}/sa/{}", workload.name));
                }
                ("imagePullSecrets", _) => {
                    notes.manual_step(node.mark, &path, "see `images.registries` of the Mesh document")
                }
                ("nodeSelector" | "affinity" | "tolerations" | "topologySpreadConstraints", _) => {
                    notes.dropped(node.mark, &path, "the control plane places functions by capacity, zone and images");
                }
                _ => notes.dropped(node.mark, &path, "it has no counterpart"),
            }
        }
        workload
    }

    /// The fields around the template.
    fn controller(&self, manifest: &Node, workload: &mut Workload, path: &str, notes: &mut Notes<'_>) {
        for (field, node) in manifest.get("spec").into_iter().flat_map(entries) {
            let path = format!("{path} spec.{field}");
            let number = node.text().and_then(|text| text.parse::<u32>().ok());
            match (field, number) {
                ("template" | "selector" | "serviceName", _) => {}
                ("replicas", Some(count)) => {
                    workload.set_in("scale", "min", count);
                    let text = format!("{count} at least; more as the load asks for, unless `scale.max` says less");
                    notes.adapted(node.mark, &path, text);
                }
                ("revisionHistoryLimit", Some(count)) if !workload.is_job => {
                    workload.set("revisionHistory", count.max(1))
                }
                ("backoffLimit" | "completions" | "parallelism", Some(count)) if workload.is_job => {
                    workload.set(field, count)
                }
                ("activeDeadlineSeconds", Some(count)) if workload.is_job => {
                    workload.set("activeDeadline", format!("{count}s"));
                }
                ("strategy" | "updateStrategy", _) => notes.adapted(
                    node.mark,
                    &path,
                    "a revision takes over when its first instances are ready; `rollout` does it step by step",
                ),
                ("volumeClaimTemplates", _) => notes.manual_step(node.mark, &path, "see the volumes that are mounted"),
                _ => notes.dropped(node.mark, &path, "it has no counterpart"),
            }
        }
    }

    fn container(&self, node: &Node, pod: &Node, workload: &mut Workload, path: &str, notes: &mut Notes<'_>) {
        for (field, node) in entries(node) {
            let path = format!("{path}.{field}");
            match (field, node.text()) {
                ("name" | "imagePullPolicy", _) => {}
                ("image", Some(image)) => workload.set_image(image),
                ("command" | "args", _) => workload.set(field, texts(node)),
                ("workingDir", Some(folder)) => workload.set("workingDirectory", folder),
                ("ports", _) => {
                    let ports: Vec<_> =
                        elements(node).iter().filter_map(|port| self.port(port, &path, notes)).collect();
                    workload.listen(&ports, &path, notes);
                }
                ("env", _) => {
                    elements(node).iter().for_each(|variable| self.variable(variable, workload, &path, notes))
                }
                ("envFrom", _) => {
                    for source in elements(node) {
                        let prefix = source.get("prefix").and_then(Node::text).unwrap_or_default();
                        let map = at(source, &["configMapRef", "name"]).and_then(Node::text);
                        match map.and_then(|map| self.config_map(map)) {
                            Some(data) => {
                                for (name, value) in entries(data) {
                                    workload.set_env(&format!("{prefix}{name}"), value.text().unwrap_or_default());
                                }
                            }
                            None => notes.manual_step(
                                source.mark,
                                &path,
                                "it is not in these files: write `env` or `secrets`",
                            ),
                        }
                    }
                }
                ("resources", _) => resources(node, workload, &path, notes),
                ("readinessProbe", _) => probe(node, workload, true, &path, notes),
                ("livenessProbe", _) => probe(node, workload, false, &path, notes),
                ("startupProbe", _) => notes.adapted(node.mark, &path, "`timeouts.startup` bounds the start: 10s"),
                ("volumeMounts", _) => {
                    elements(node).iter().for_each(|mounted| mount(mounted, pod, workload, &path, notes))
                }
                ("securityContext", _) => security(node, workload, &path, notes),
                ("lifecycle", _) => {
                    notes.dropped(node.mark, &path, "open requests end before SIGTERM; no hook is needed for that");
                }
                _ => notes.dropped(node.mark, &path, "it has no counterpart"),
            }
        }
        if workload.tcp.is_empty() && !workload.spec.contains_key("port") {
            let port = node.get("image").and_then(Node::text).and_then(port_of_image);
            workload.listen(&port.map(|port| (port, node.mark)).into_iter().collect::<Vec<_>>(), path, notes);
        }
    }

    fn port(&self, node: &Node, path: &str, notes: &mut Notes<'_>) -> Option<(u16, Mark)> {
        if node.get("protocol").and_then(Node::text).is_some_and(|protocol| protocol != "TCP") {
            notes.dropped(node.mark, path, "the mesh carries TCP only");
            return None;
        }
        Some((node.get("containerPort")?.text()?.parse().ok()?, node.mark))
    }

    fn config_map(&self, wanted: &str) -> Option<&Node> {
        let found = self.documents.iter().find(|manifest| kind(manifest) == "ConfigMap" && name(manifest) == wanted);
        found.and_then(|manifest| manifest.get("data"))
    }

    fn variable(&self, node: &Node, workload: &mut Workload, path: &str, notes: &mut Notes<'_>) {
        let Some(name) = node.get("name").and_then(Node::text) else { return };
        let path = format!("{path}.{name}");
        if let Some(value) = node.get("value") {
            let value = value.text().unwrap_or_default();
            if value.contains("$(") {
                notes.manual_step(node.mark, &path, format!("`{value}` stays as it is: write the value"));
            }
            workload.set_env(name, value);
            return;
        }
        let reference = at(node, &["valueFrom", "configMapKeyRef"]);
        let value = reference.and_then(|reference| {
            let map = self.config_map(reference.get("name")?.text()?)?;
            map.get(reference.get("key")?.text()?)?.text()
        });
        match value {
            Some(value) => workload.set_env(name, value),
            None if at(node, &["valueFrom", "fieldRef"]).is_some() => {
                notes.dropped(node.mark, &path, "instances have no fields of a pod");
            }
            None => notes.manual_step(node.mark, &path, "write `env` or, for a secret, `secrets` of the function"),
        }
    }

    /// The workloads whose labels a Service selects.
    fn selected<'w>(&self, service: &Node, workloads: &'w mut [Workload]) -> Vec<&'w mut Workload> {
        workloads.iter_mut().filter(|workload| selects(service, workload)).collect()
    }

    fn service(&self, service: &Node, workloads: &mut [Workload], notes: &mut Notes<'_>) {
        let path = format!("Service {}", name(service));
        let kind = at(service, &["spec", "type"]).and_then(Node::text).unwrap_or("ClusterIP");
        let selected = self.selected(service, workloads);
        if selected.is_empty() {
            let text = "it selects no workload of this file, or one revision of a function alone, which a `tag` in \
                        `traffic` selects; for another machine write an External";
            notes.manual_step(service.mark, &path, text);
        }
        for workload in selected {
            if label(name(service)) != workload.name {
                let text = format!("callers use the function's name, `{}`, in place of the service's", workload.name);
                notes.manual_step(service.mark, &path, text);
            }
            for port in at(service, &["spec", "ports"]).map(elements).unwrap_or_default() {
                let target = port.get("targetPort").or_else(|| port.get("port")).and_then(Node::text);
                if let Some(target) = target.and_then(|target| target.parse().ok())
                    && workload.tcp.is_empty()
                    && !workload.has_port()
                {
                    workload.listen(&[(target, port.mark)], &path, notes);
                }
                let asked = port.get("port").and_then(Node::text).unwrap_or_default();
                if asked != "80" && workload.tcp.is_empty() {
                    notes.adapted(port.mark, &path, format!("callers use http://{}/, with any port", workload.name));
                }
            }
            if kind == "LoadBalancer" || kind == "NodePort" {
                let host = format!("{}.localhost", workload.name);
                if workload.tcp.is_empty() {
                    notes.adapted(service.mark, &path, format!("{kind}: offered by the gateway for the host `{host}`"));
                    workload.exposed.push((host, "/".to_owned()));
                } else {
                    notes.dropped(service.mark, &path, format!("{kind}: the gateway carries HTTP only"));
                }
            }
        }
    }

    fn ingress(&self, ingress: &Node, workloads: &mut [Workload], notes: &mut Notes<'_>) {
        let path = format!("Ingress {}", name(ingress));
        if let Some(tls) = at(ingress, &["spec", "tls"]) {
            notes.manual_step(tls.mark, &path, "see `gateway.https` of the Mesh document");
        }
        for rule in at(ingress, &["spec", "rules"]).map(elements).unwrap_or_default() {
            let host = rule.get("host").and_then(Node::text).unwrap_or("*");
            for target in at(rule, &["http", "paths"]).map(elements).unwrap_or_default() {
                let prefix = target.get("path").and_then(Node::text).unwrap_or("/");
                let wanted = at(target, &["backend", "service", "name"]).and_then(Node::text).unwrap_or_default();
                let service = self.documents.iter().find(|other| kind(other) == "Service" && name(other) == wanted);
                let selected = service.map(|service| self.selected(service, workloads)).unwrap_or_default();
                if selected.is_empty() {
                    notes.manual_step(
                        target.mark,
                        &path,
                        format!("the service `{wanted}` selects no workload of this file"),
                    );
                }
                for workload in selected {
                    workload.exposed.push((host.to_owned(), prefix.to_owned()));
                }
            }
        }
    }

    /// Callees: the workloads whose names the environment holds. Kubernetes permits all calls.
    fn calls(&self, workloads: &mut [Workload], notes: &mut Notes<'_>) {
        let names: Vec<String> =
            workloads.iter().filter(|other| !other.is_job).map(|other| other.name.clone()).collect();
        for workload in workloads {
            let specs = workload.revisions.iter().map(|(_, fields)| fields).chain([&workload.spec]);
            let values = specs.filter_map(|fields| fields.get("env")?.as_object());
            let values: Vec<String> =
                values.flat_map(|env| env.values()).filter_map(|value| value.as_str().map(str::to_owned)).collect();
            let parts = |value: &str| {
                value.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').map(str::to_owned).collect::<Vec<_>>()
            };
            let named: Vec<&String> = names
                .iter()
                .filter(|name| **name != workload.name && values.iter().any(|value| parts(value).contains(name)))
                .collect();
            for name in named {
                workload.callees.insert(name.clone());
                notes.adapted(
                    workload.mark,
                    &workload.field,
                    format!("its environment names `{name}`, which becomes a callee"),
                );
            }
        }
    }
}

fn resources(node: &Node, workload: &mut Workload, path: &str, notes: &mut Notes<'_>) {
    for (field, node) in entries(node) {
        if field != "limits" {
            notes.dropped(node.mark, &format!("{path}.{field}"), "the scheduler places by `limits`");
            continue;
        }
        for (field, node) in entries(node) {
            let text = node.text().unwrap_or_default();
            let cpu = match text.strip_suffix('m') {
                Some(millis) => millis.parse().map(|millis: f64| millis / 1000.0),
                None => text.parse(),
            };
            match (field, cpu, size(text)) {
                ("cpu", Ok(cpu), _) => workload.set_in("resources", "cpu", cpu),
                ("memory", _, Some(size)) => workload.set_in("resources", "memory", size),
                _ => notes.dropped(node.mark, &format!("{path}.limits.{field}"), "it has no counterpart"),
            }
        }
    }
}

fn probe(node: &Node, workload: &mut Workload, is_readiness: bool, path: &str, notes: &mut Notes<'_>) {
    let url = at(node, &["httpGet", "path"]).and_then(Node::text);
    match url {
        Some(url) if is_readiness || !workload.spec.contains_key("readiness") => {
            workload.set_in("readiness", "http", url)
        }
        Some(_) => notes.adapted(node.mark, path, "instances are watched by the probe of `readiness`"),
        None if node.get("tcpSocket").is_some() => {}
        None => notes.adapted(node.mark, path, "no command is run: an instance is ready when it accepts a connection"),
    }
    if !is_readiness {
        if let Some(seconds) = node.get("periodSeconds").and_then(Node::text) {
            workload.set_in("liveness", "interval", format!("{seconds}s"));
        }
        if let Some(Ok(count)) = node.get("failureThreshold").and_then(Node::text).map(str::parse::<u32>) {
            workload.set_in("liveness", "failures", count);
        }
    }
}

fn mount(mounted: &Node, pod: &Node, workload: &mut Workload, path: &str, notes: &mut Notes<'_>) {
    let text = |field: &str| mounted.get(field).and_then(Node::text).unwrap_or_default();
    let (wanted, target) = (text("name"), text("mountPath"));
    let volumes = pod.get("volumes").map(elements).unwrap_or_default();
    let volume = volumes.iter().find(|volume| volume.get("name").and_then(Node::text) == Some(wanted));
    if let Some(empty) = volume.and_then(|volume| volume.get("emptyDir")) {
        let mut added = serde_json::json!({ "path": target });
        if let Some(size) = empty.get("sizeLimit").and_then(Node::text).and_then(size) {
            added["size"] = size.into();
        }
        let volumes = workload.spec.entry("volumes").or_insert_with(|| serde_json::json!([]));
        if let serde_json::Value::Array(volumes) = volumes {
            volumes.push(added);
        }
    } else if volume.is_some_and(|volume| volume.get("secret").is_some()) {
        notes.manual_step(
            mounted.mark,
            path,
            format!("{target}: write `secrets` of the function, from a StoredSecret or a file of the node"),
        );
    } else {
        notes.manual_step(
            mounted.mark,
            path,
            format!(
                "{target}: the volume `{wanted}` is not in memory: put its files into the image, or into a folder of the \
                 nodes that `readOnlyPaths` names"
            ),
        );
    }
}

fn security(node: &Node, workload: &mut Workload, path: &str, notes: &mut Notes<'_>) {
    let text = |field: &str| node.get(field).and_then(Node::text);
    if let Some(user) = text("runAsUser") {
        let group = text("runAsGroup").map(|group| format!(":{group}")).unwrap_or_default();
        workload.set("user", format!("{user}{group}"));
    }
    if let Some(read_only) = text("readOnlyRootFilesystem") {
        workload.set("readOnlyRoot", read_only == "true");
    }
    let known = [
        "runAsUser",
        "runAsGroup",
        "readOnlyRootFilesystem",
        "runAsNonRoot",
        "allowPrivilegeEscalation",
        "seccompProfile",
    ];
    for (field, node) in entries(node).filter(|(field, _)| !known.contains(field)) {
        notes.dropped(node.mark, &format!("{path}.{field}"), "instances run in jails, without capabilities");
    }
}
