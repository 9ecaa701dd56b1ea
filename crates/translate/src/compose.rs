//! Compose files (`compose.yaml`, `docker-compose.yml`) as documents of the mesh.

use crate::interpolation::{Surroundings, interpolate, variables};
use crate::workload::{
    Import, Notes, Workload, at, elements, entries, label, own_port, own_url, port_of_command, port_of_image, size,
    text, texts,
};
use leno_config::{Mark, Node, Problem, foreign_documents};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Translates a compose file. `namespace`: of the documents; without it the file's `name`, or
/// `default`.
///
/// # Errors
/// The file is no compose file, or misses a variable that it requires.
pub fn compose(
    file: &Path,
    text_of_file: &str,
    namespace: Option<&str>,
    around: &dyn Surroundings,
) -> Result<Import, Vec<Problem>> {
    let mut documents = foreign_documents(file, text_of_file)?;
    let mut notes = Notes::of(file);
    let Some(mut root) = documents.pop().filter(|_| documents.is_empty()) else {
        notes.problem(Mark { line: 1, column: 1 }, "", "a compose file is one YAML document", "");
        return Err(notes.problems);
    };
    interpolate(&mut root, "", around, &mut notes);
    let namespace = match (namespace, root.get("name").and_then(Node::text)) {
        (Some(namespace), _) => namespace.to_owned(),
        (None, Some(name)) => label(name),
        (None, None) => "default".to_owned(),
    };
    let Some(services) = root.get("services") else {
        notes.problem(root.mark, "services", "there are no services in this file", "expected a compose file");
        return Err(notes.problems);
    };
    let services: Vec<(&str, &Node)> = entries(services).collect();
    let mut file = Compose { names: services.iter().map(|(name, _)| *name).collect(), once: BTreeSet::new(), around };
    file.once = services
        .iter()
        .flat_map(|(_, service)| dependencies(service))
        .filter(|d| d.completes)
        .map(|d| d.name)
        .collect();
    let mut workloads: Vec<Workload> =
        services.iter().map(|(name, service)| file.service(name, &namespace, service, &mut notes)).collect();
    offer(&mut workloads, &services, &mut notes);
    for (field, node) in entries(&root) {
        match field {
            "services" | "name" | "version" => {}
            "volumes" | "networks" | "configs" | "secrets" => {
                for (name, node) in entries(node) {
                    let text = match field {
                        "networks" => "functions reach their callees, on whichever network",
                        "volumes" => "see the services that mount it",
                        _ => "write `secrets` of the function, from a StoredSecret or a file of the node",
                    };
                    notes.dropped(node.mark, &format!("{field}.{name}"), text);
                }
            }
            _ if field.starts_with("x-") => {}
            "include" => notes.manual_step(node.mark, field, "import the output of `docker compose config` instead"),
            _ => notes.dropped(node.mark, field, "it has no counterpart"),
        }
    }
    let documents = text(workloads, &mut notes);
    if notes.problems.is_empty() { Ok(Import { documents, notes: notes.notes }) } else { Err(notes.problems) }
}

struct Compose<'c> {
    names: BTreeSet<&'c str>,
    /// Services that others expect to complete.
    once: BTreeSet<&'c str>,
    around: &'c dyn Surroundings,
}

/// A service on which another one depends.
struct Dependency<'n> {
    name: &'n str,
    mark: Mark,
    completes: bool,
    condition: Option<&'n str>,
}

fn dependencies<'n>(service: &'n Node) -> Vec<Dependency<'n>> {
    let Some(node) = service.get("depends_on") else { return Vec::new() };
    let listed = elements(node)
        .iter()
        .filter_map(|node| Some(Dependency { name: node.text()?, mark: node.mark, completes: false, condition: None }));
    let mapped = entries(node).map(|(name, node)| {
        let condition = node.get("condition").and_then(Node::text);
        let completes = condition == Some("service_completed_successfully");
        Dependency { name, mark: node.mark, completes, condition }
    });
    listed.chain(mapped).collect()
}

impl<'c> Compose<'c> {
    fn service(&self, name: &'c str, namespace: &str, service: &Node, notes: &mut Notes<'_>) -> Workload {
        let path = format!("services.{name}");
        let mut workload = Workload::new(&label(name), namespace, service.mark, path.clone());
        workload.is_job = self.once.contains(name);
        if workload.name != name {
            notes.adapted(service.mark, &path, format!("it is called `{}`: names are DNS labels", workload.name));
        }
        let mut environment = BTreeMap::new();
        for (field, node) in entries(service) {
            let path = format!("{path}.{field}");
            match field {
                "env_file" => self.env_files(node, &path, &mut environment, notes),
                "environment" => {}
                "depends_on" => self.depends_on(&mut workload, service, &path, notes),
                _ => self.field(&mut workload, field, node, &path, notes),
            }
        }
        // The environment of the service wins over its files.
        if let Some(node) = service.get("environment") {
            self.environment(node, &format!("{path}.environment"), &mut environment, notes);
        }
        for (variable, (value, mark)) in &environment {
            workload.set_env(variable, value);
            let path = format!("{path}.environment.{variable}");
            self.named_in(value, name, &mut workload, (*mark, &path), notes);
            let secret = ["PASSWORD", "SECRET", "TOKEN", "PRIVATE_KEY", "API_KEY"];
            let in_url = value.split_once("://").and_then(|(_, rest)| rest.split('/').next()?.rsplit_once('@'));
            let in_url = in_url.is_some_and(|(user, _)| user.split_once(':').is_some_and(|(_, word)| !word.is_empty()));
            if in_url || secret.iter().any(|word| variable.to_ascii_uppercase().contains(word)) {
                notes.manual_step(
                    *mark,
                    &path,
                    "a secret in plain text: keep it in a StoredSecret or a file of the node, with `secrets`",
                );
            }
        }
        if service.get("ports").is_none_or(|ports| elements(ports).is_empty())
            && service.get("expose").is_none()
            && !workload.is_job
        {
            let test = at(service, &["healthcheck", "test"]);
            let words: Vec<&str> = ["command", "args"]
                .iter()
                .filter_map(|field| workload.spec.get(*field)?.as_array())
                .flatten()
                .filter_map(serde_json::Value::as_str)
                .collect();
            let own = test.and_then(|node| Some((own_port(&texts(node).join(" "))?, node.mark, "`healthcheck`")));
            let own = own.or_else(|| Some((port_of_command(&words)?, service.mark, "`command`")));
            let image = || service.get("image").and_then(Node::text).and_then(port_of_image);
            if let Some((port, mark, source)) = own {
                notes.adapted(mark, &path, format!("port {port}, by its {source}"));
                workload.listen(&[(port, mark)], &path, notes);
            } else if let Some(port) = image() {
                workload.listen(&[(port, service.mark)], &path, notes);
            }
        }
        if workload.spec.get("image").is_none() && service.get("build").is_none() {
            notes.problem(service.mark, &path, "the service has neither `image` nor `build`", "give it an image");
        }
        workload
    }

    fn field(&self, workload: &mut Workload, field: &str, node: &Node, path: &str, notes: &mut Notes<'_>) {
        match (field, node.text()) {
            ("image", Some(image)) => workload.set_image(image),
            ("build", _) => {
                let image = format!("localhost/{}:latest", workload.name);
                notes.manual_step(
                    node.mark,
                    path,
                    format!("Leno builds no images: build it, push it, and replace `{image}`"),
                );
                workload.spec.entry("image").or_insert(image.into());
            }
            ("command" | "entrypoint", _) => {
                let words = match node.text() {
                    Some(line) => words(line),
                    None => Some(texts(node).into_iter().map(str::to_owned).collect()),
                };
                match words {
                    Some(words) => workload.set(if field == "command" { "args" } else { "command" }, words),
                    None => notes.manual_step(node.mark, path, "a quote is not closed; write it as a list"),
                }
            }
            ("ports" | "expose", _) => {
                let ports: Vec<_> =
                    elements(node).iter().filter_map(|port| container_port(port, path, notes)).collect();
                workload.listen(&ports, path, notes);
            }
            ("links", _) => {
                for link in elements(node) {
                    let name = link.text().and_then(|text| text.split(':').next()).unwrap_or_default();
                    self.call(workload, name, link.mark, path, notes);
                    if link.text().is_some_and(|text| text.contains(':')) {
                        notes.manual_step(
                            link.mark,
                            path,
                            "an alias is no name here: call the function by its own name",
                        );
                    }
                }
            }
            ("volumes", _) => {
                elements(node).iter().for_each(|volume| mount(workload, volume, path, notes));
            }
            ("tmpfs", _) => {
                for folder in texts(node) {
                    let folder = folder.split(':').next().unwrap_or(folder);
                    add_volume(workload, serde_json::json!({ "path": folder }));
                }
            }
            ("healthcheck", _) => healthcheck(workload, node, path, notes),
            ("deploy", _) => deploy(workload, node, path, notes),
            ("scale", Some(count)) => replicas(workload, count, node.mark, path, notes),
            ("mem_limit", Some(text)) => memory(workload, text, node.mark, path, notes),
            ("cpus", Some(text)) => cpus(workload, text, node.mark, path, notes),
            ("pids_limit", Some(text)) => pids(workload, text, node.mark, path, notes),
            ("user", Some(user)) => workload.set("user", user),
            ("working_dir", Some(folder)) => workload.set("workingDirectory", folder),
            ("read_only", Some(text)) => workload.set("readOnlyRoot", text == "true"),
            ("stop_grace_period", Some(text)) => workload.set_in("timeouts", "grace", text),
            ("restart", _) => {
                notes.adapted(node.mark, path, "the mesh starts instances again as long as they are needed")
            }
            ("container_name" | "hostname" | "domainname", _) => {
                notes.dropped(node.mark, path, format!("callers use the function's name, `{}`", workload.name));
            }
            ("networks" | "network_mode", _) => {
                notes.dropped(node.mark, path, "a function reaches its `callees`, and nothing else");
            }
            ("extra_hosts" | "dns" | "external_links", _) => {
                notes.dropped(node.mark, path, "write an External document for a service outside of the mesh");
            }
            ("extends", _) => {
                notes.manual_step(node.mark, path, "import the output of `docker compose config` instead")
            }
            ("secrets" | "configs", _) => {
                notes.manual_step(
                    node.mark,
                    path,
                    "write `secrets` of the function, from a StoredSecret or a file of the node",
                );
            }
            ("logging", _) => {
                notes.dropped(node.mark, path, "`leno logs` has the output; a collector reads the node's log")
            }
            ("labels", _) => {
                notes.dropped(node.mark, path, "labels of containers; policies select by `metadata.labels`")
            }
            ("privileged" | "cap_add" | "cap_drop" | "security_opt" | "devices" | "userns_mode" | "pid" | "ipc", _) => {
                notes.dropped(node.mark, path, "instances run in jails, without capabilities and devices");
            }
            ("pull_policy", _) => notes.dropped(node.mark, path, "a tag is resolved once for each revision"),
            _ if field.starts_with("x-") => {}
            _ => notes.dropped(node.mark, path, "it has no counterpart"),
        }
    }

    fn depends_on(&self, workload: &mut Workload, service: &Node, path: &str, notes: &mut Notes<'_>) {
        for Dependency { name, mark, completes, condition } in dependencies(service) {
            let path = format!("{path}.{name}");
            if completes {
                let text = "the mesh does not wait for a job: apply the function after it has succeeded";
                notes.manual_step(mark, &path, text);
                continue;
            }
            self.call(workload, name, mark, &path, notes);
            if condition == Some("service_healthy") {
                notes.adapted(mark, &path, "calls wait until an instance is ready; nothing is started in order");
            }
        }
    }

    /// Lets a service call another one.
    fn call(&self, workload: &mut Workload, name: &str, mark: Mark, path: &str, notes: &mut Notes<'_>) {
        if !self.names.contains(name) {
            notes.problem(mark, path, format!("there is no service `{name}`"), "");
        } else if self.once.contains(name) {
            notes.dropped(mark, path, format!("`{name}` runs once, as a job, and cannot be called"));
        } else {
            workload.callees.insert(label(name));
        }
    }

    /// Adds a callee that only the value of a variable names.
    fn named_in(
        &self,
        value: &str,
        own: &str,
        workload: &mut Workload,
        (mark, path): (Mark, &str),
        notes: &mut Notes<'_>,
    ) {
        let is_name = |character: char| character.is_ascii_alphanumeric() || "-_".contains(character);
        let is_host = |name: &str| {
            value.match_indices(name).any(|(start, _)| {
                let (before, after) = (&value[..start], &value[start + name.len()..]);
                let begins = before.is_empty() || before.ends_with("//") || before.ends_with(['@', ',', ' ', '=']);
                let ends = after.is_empty() || after.starts_with([':', '/', ',', ' ', '?']);
                begins && ends && !before.ends_with(is_name)
            })
        };
        for name in self.names.iter().filter(|name| **name != own && is_host(name)) {
            if !self.once.contains(name) && workload.callees.insert(label(name)) {
                notes.adapted(mark, path, format!("it names the service `{name}`, which becomes a callee"));
            }
            if label(name) != **name {
                notes.manual_step(mark, path, format!("`{name}` is called `{}` here: change the value", label(name)));
            }
        }
    }

    fn environment(
        &self,
        node: &Node,
        path: &str,
        environment: &mut BTreeMap<String, (String, Mark)>,
        notes: &mut Notes<'_>,
    ) {
        let listed = elements(node).iter().filter_map(|node| {
            let text = node.text()?;
            let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
            Some((name, value, node.mark))
        });
        for (name, value, mark) in listed.chain(entries(node).map(|(name, node)| (name, node.text(), node.mark))) {
            match value.map(str::to_owned).or_else(|| self.around.variable(name)) {
                Some(value) => drop(environment.insert(name.to_owned(), (value, mark))),
                None => notes.dropped(mark, &format!("{path}.{name}"), "it has no value here and in the environment"),
            }
        }
    }

    fn env_files(
        &self,
        node: &Node,
        path: &str,
        environment: &mut BTreeMap<String, (String, Mark)>,
        notes: &mut Notes<'_>,
    ) {
        let files = if elements(node).is_empty() { std::slice::from_ref(node) } else { elements(node) };
        for entry in files {
            let file = entry.text().or_else(|| entry.get("path").and_then(Node::text));
            let Some(file) = file else { continue };
            let optional = entry.get("required").and_then(Node::text) == Some("false");
            match self.around.read(file) {
                Ok(content) => {
                    for (name, value) in variables(&content) {
                        environment.insert(name, (value, entry.mark));
                    }
                    notes.adapted(entry.mark, path, format!("the variables of {file} are in the document"));
                }
                Err(_) if optional => notes.dropped(entry.mark, path, format!("{file} is not there")),
                Err(reason) => notes.problem(entry.mark, path, format!("{file} cannot be read: {reason}"), ""),
            }
        }
    }
}

/// Offers the services with published ports at the gateway.
fn offer(workloads: &mut [Workload], services: &[(&str, &Node)], notes: &mut Notes<'_>) {
    let published = |service: &Node| {
        let ports = service.get("ports")?;
        elements(ports).first().map(|port| (port.mark, port.text().map(str::to_owned)))
    };
    let is_http = |workload: &Workload| !workload.is_job && workload.spec.contains_key("port");
    let count = workloads
        .iter()
        .zip(services)
        .filter(|(workload, (_, service))| is_http(workload) && published(service).is_some())
        .count();
    for (workload, (name, service)) in workloads.iter_mut().zip(services) {
        let Some((mark, port)) = published(service) else { continue };
        let path = format!("services.{name}.ports");
        if !is_http(workload) {
            notes.dropped(mark, &path, "the gateway carries HTTP: only functions reach this port");
            continue;
        }
        let host = if count == 1 { "*".to_owned() } else { format!("{}.localhost", workload.name) };
        let port = port.map(|port| format!("{port}: ")).unwrap_or_default();
        notes.adapted(mark, &path, format!("{port}offered by the gateway, at its own port, for the host `{host}`"));
        workload.exposed.push((host, "/".to_owned()));
    }
}

/// The port of the container in an element of `ports` or `expose`.
fn container_port(node: &Node, path: &str, notes: &mut Notes<'_>) -> Option<(u16, Mark)> {
    let protocol = node.get("protocol").and_then(Node::text);
    let text = node.get("target").unwrap_or(node).text()?;
    let (text, suffix) = text.split_once('/').map_or((text, protocol), |(text, protocol)| (text, Some(protocol)));
    if suffix.is_some_and(|protocol| protocol != "tcp") {
        notes.dropped(node.mark, path, format!("port {text}: the mesh carries TCP only"));
        return None;
    }
    let port = text.rsplit(':').next().unwrap_or(text);
    match port.parse() {
        Ok(port) => Some((port, node.mark)),
        Err(_) => {
            notes.manual_step(node.mark, path, format!("`{port}` is not one port; name the port of the program"));
            None
        }
    }
}

fn mount(workload: &mut Workload, node: &Node, path: &str, notes: &mut Notes<'_>) {
    let text = node.text().unwrap_or_default();
    let field = |name: &str| node.get(name).and_then(Node::text);
    let (source, target) = match (field("target"), text.split_once(':')) {
        (Some(target), _) => (field("source"), target),
        (None, Some((source, rest))) => (Some(source), rest.split(':').next().unwrap_or(rest)),
        (None, None) => (None, text),
    };
    match source {
        None => add_volume(workload, serde_json::json!({ "path": target })),
        Some(source) if source.starts_with(['.', '/', '~']) || field("type") == Some("bind") => {
            notes.manual_step(
                node.mark,
                path,
                format!("{target}: the folder {source} of the machine is not shown; put it into the image"),
            );
        }
        Some(source) => {
            add_volume(workload, serde_json::json!({ "path": target, "name": label(source), "size": "1Gi" }));
            let text = format!("{target}: on the disk of a node, empty at first and of at most 1Gi: change `size`");
            notes.adapted(node.mark, path, text);
        }
    }
}

fn add_volume(workload: &mut Workload, volume: serde_json::Value) {
    let volumes = workload.spec.entry("volumes").or_insert_with(|| serde_json::json!([]));
    if let serde_json::Value::Array(volumes) = volumes {
        volumes.push(volume);
    }
}

fn healthcheck(workload: &mut Workload, node: &Node, path: &str, notes: &mut Notes<'_>) {
    for (field, node) in entries(node) {
        let path = format!("{path}.{field}");
        match (field, node.text()) {
            ("test", _) => match own_url(&texts(node).join(" ")) {
                Some(url) => workload.set_in("readiness", "http", url),
                None => notes.adapted(
                    node.mark,
                    &path,
                    "no command is run: an instance is ready when it accepts a connection",
                ),
            },
            ("disable", Some("true")) => workload.set_in("liveness", "interval", "0s"),
            ("interval", Some(text)) => workload.set_in("liveness", "interval", text),
            ("retries", Some(text)) if text.parse::<u32>().is_ok() => {
                workload.set_in("liveness", "failures", text.parse::<u32>().unwrap_or(3));
            }
            ("start_period", Some(text)) => workload.set_in("timeouts", "startup", text),
            _ => notes.dropped(node.mark, &path, "it has no counterpart"),
        }
    }
}

fn deploy(workload: &mut Workload, node: &Node, path: &str, notes: &mut Notes<'_>) {
    for (field, node) in entries(node) {
        let path = format!("{path}.{field}");
        match (field, node.text()) {
            ("replicas", Some(count)) => replicas(workload, count, node.mark, &path, notes),
            ("resources", _) => {
                for (field, node) in entries(node).filter(|(field, _)| *field != "limits") {
                    notes.dropped(node.mark, &format!("{path}.{field}"), "the scheduler places by `limits`");
                }
                for (field, node) in at(node, &["limits"]).into_iter().flat_map(entries) {
                    let path = format!("{path}.limits.{field}");
                    match (field, node.text()) {
                        ("cpus", Some(text)) => cpus(workload, text, node.mark, &path, notes),
                        ("memory", Some(text)) => memory(workload, text, node.mark, &path, notes),
                        ("pids", Some(text)) => pids(workload, text, node.mark, &path, notes),
                        _ => notes.dropped(node.mark, &path, "it has no counterpart"),
                    }
                }
            }
            ("restart_policy", _) => {
                notes.adapted(node.mark, &path, "the mesh starts instances again as long as they are needed");
            }
            ("update_config" | "rollback_config", _) => {
                notes.manual_step(node.mark, &path, "see `rollout` of a Function")
            }
            ("mode" | "endpoint_mode" | "placement", _) => {
                notes.dropped(node.mark, &path, "the control plane places functions")
            }
            _ => notes.dropped(node.mark, &path, "it has no counterpart"),
        }
    }
}

fn replicas(workload: &mut Workload, count: &str, mark: Mark, path: &str, notes: &mut Notes<'_>) {
    match count.parse::<u32>() {
        Ok(count) => {
            workload.set_in("scale", "min", count);
            notes.adapted(
                mark,
                path,
                format!("{count} at least; more as the load asks for, unless `scale.max` says less"),
            );
        }
        Err(_) => notes.manual_step(mark, path, format!("`{count}` is no number of instances")),
    }
}

fn memory(workload: &mut Workload, text: &str, mark: Mark, path: &str, notes: &mut Notes<'_>) {
    match size(text) {
        Some(size) => workload.set_in("resources", "memory", size),
        None => notes.manual_step(mark, path, format!("`{text}` is no amount of memory")),
    }
}

fn cpus(workload: &mut Workload, text: &str, mark: Mark, path: &str, notes: &mut Notes<'_>) {
    match text.parse::<f64>() {
        Ok(cpus) => workload.set_in("resources", "cpu", cpus),
        Err(_) => notes.manual_step(mark, path, format!("`{text}` is no number of processors")),
    }
}

fn pids(workload: &mut Workload, text: &str, mark: Mark, path: &str, notes: &mut Notes<'_>) {
    match text.parse::<u32>() {
        Ok(pids) => workload.set_in("resources", "pids", pids),
        Err(_) => notes.manual_step(mark, path, format!("`{text}` is no number of processes")),
    }
}

/// A command line in words, as a shell divides it; `None`: a quote is not closed.
fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().push(characters.next()?),
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}
