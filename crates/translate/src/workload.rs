//! A program of another system as documents of the mesh, and the notes on the way there.

use leno_config::{Mark, Node, Problem, Value as Written};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What became of a field that has no exact counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The documents have it in another form.
    Adapted,
    /// The documents do not have it.
    Dropped,
    /// The documents need a hand here before they work.
    ToDo,
}

impl Outcome {
    /// For the report.
    pub fn words(self) -> &'static str {
        match self {
            Self::Adapted => "adapted",
            Self::Dropped => "dropped",
            Self::ToDo => "to do",
        }
    }
}

/// A remark about one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// File and line.
    pub place: String,
    /// The line alone.
    pub line: u32,
    /// `services.web.ports`
    pub field: String,
    /// What became of it.
    pub outcome: Outcome,
    /// In words.
    pub text: String,
}

/// Documents made of files of another system.
#[derive(Debug, Default)]
pub struct Import {
    /// YAML documents.
    pub documents: String,
    /// In the order of the files.
    pub notes: Vec<Note>,
}

/// The notes and problems of one file.
pub(super) struct Notes<'f> {
    pub file: &'f Path,
    pub notes: Vec<Note>,
    pub problems: Vec<Problem>,
}

impl<'f> Notes<'f> {
    pub(super) fn of(file: &'f Path) -> Self {
        Self { file, notes: Vec::new(), problems: Vec::new() }
    }

    fn note(&mut self, at: Mark, field: &str, outcome: Outcome, text: impl Into<String>) {
        let place = format!("{}:{}", self.file.display(), at.line);
        self.notes.push(Note { place, line: at.line, field: field.to_owned(), outcome, text: text.into() });
    }

    pub(super) fn adapted(&mut self, at: Mark, field: &str, text: impl Into<String>) {
        self.note(at, field, Outcome::Adapted, text);
    }

    pub(super) fn dropped(&mut self, at: Mark, field: &str, text: impl Into<String>) {
        self.note(at, field, Outcome::Dropped, text);
    }

    pub(super) fn manual_step(&mut self, at: Mark, field: &str, text: impl Into<String>) {
        self.note(at, field, Outcome::ToDo, text);
    }

    pub(super) fn problem(&mut self, at: Mark, field: &str, message: impl Into<String>, fix: impl Into<String>) {
        self.problems.push(Problem {
            file: PathBuf::from(self.file),
            line: at.line,
            column: at.column,
            field: field.to_owned(),
            message: message.into(),
            fix: fix.into(),
        });
    }
}

/// One program.
#[derive(Debug)]
pub(super) struct Workload {
    pub name: String,
    pub namespace: String,
    pub labels: Map<String, Value>,
    /// The `spec` of its document.
    pub spec: Map<String, Value>,
    pub callees: BTreeSet<String>,
    /// Hosts and path prefixes at which the gateway offers it.
    pub exposed: Vec<(String, String)>,
    /// Ports with other protocols than HTTP.
    pub tcp: BTreeSet<u16>,
    pub is_job: bool,
    /// Revisions by name, each with the fields that differ from `spec`.
    pub revisions: Vec<(String, Map<String, Value>)>,
    /// Which revisions get requests.
    pub traffic: Vec<Value>,
    /// Where it is written.
    pub mark: Mark,
    pub field: String,
}

impl Workload {
    pub(super) fn new(name: &str, namespace: &str, mark: Mark, field: String) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            labels: Map::new(),
            spec: Map::new(),
            callees: BTreeSet::new(),
            exposed: Vec::new(),
            tcp: BTreeSet::new(),
            is_job: false,
            revisions: Vec::new(),
            traffic: Vec::new(),
            mark,
            field,
        }
    }

    pub(super) fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.spec.insert(field.to_owned(), value.into());
    }

    /// Sets a field of a section of `spec`.
    pub(super) fn set_in(&mut self, section: &str, field: &str, value: impl Into<Value>) {
        self.spec.entry(section).or_insert_with(|| json!({}))[field] = value.into();
    }

    pub(super) fn set_env(&mut self, name: &str, value: &str) {
        self.set_in("env", name, value);
    }

    /// The image, with the registry that other systems leave out.
    pub(super) fn set_image(&mut self, image: &str) {
        self.set("image", qualified(image));
    }

    /// The ports at which the program listens. The first one without a well-known other protocol is
    /// for HTTP.
    pub(super) fn listen(&mut self, ports: &[(u16, Mark)], field: &str, notes: &mut Notes<'_>) {
        for &(port, mark) in ports {
            if let Some(protocol) = other_protocol(port) {
                if self.tcp.insert(port) {
                    notes.adapted(mark, field, format!("port {port} ({protocol}): TCP between functions only"));
                }
            } else if self.spec.get("port").is_none_or(|known| *known == port) {
                self.set("port", port);
            } else {
                notes.dropped(
                    mark,
                    field,
                    format!("port {port}: a function has one port for HTTP, {}", self.spec["port"]),
                );
            }
        }
    }

    /// Whether the port for HTTP is known, of each revision.
    pub(super) fn has_port(&self) -> bool {
        let mut revisions = self.revisions.iter();
        self.spec.contains_key("port")
            || !self.revisions.is_empty() && revisions.all(|(_, fields)| fields.contains_key("port"))
    }

    /// The documents of the function or job, and of its policy.
    fn documents(mut self, all: &[(String, BTreeSet<String>)], notes: &mut Notes<'_>) -> Vec<Value> {
        if self.is_job {
            for field in ["port", "scale", "readiness", "liveness", "timeouts"] {
                if self.spec.remove(field).is_some() {
                    notes.dropped(self.mark, &self.field, format!("{field}: a job has none"));
                }
            }
            self.tcp.clear();
        } else if self.tcp.is_empty() && !self.has_port() {
            let text = "no port is known: the program has to listen on the port in $PORT, or add `port`";
            notes.manual_step(self.mark, &self.field, text);
        }
        if let (Some(&first), false) = (self.tcp.first(), self.has_port()) {
            self.set("port", first);
        }
        if !self.tcp.is_empty() {
            self.set("ports", self.tcp.iter().map(|port| json!({ "port": port })).collect::<Vec<_>>());
        }
        if !self.exposed.is_empty() {
            let exposed = self.exposed.iter().map(|(host, path)| json!({ "hosts": [host], "path": path }));
            self.spec.insert("expose".to_owned(), exposed.collect());
        }
        if !self.callees.is_empty() {
            self.spec.insert("callees".to_owned(), self.callees.iter().map(String::as_str).collect());
        }
        if !self.revisions.is_empty() {
            let revision = |(name, mut fields): (String, Map<String, Value>)| {
                fields.insert("name".to_owned(), name.into());
                Value::Object(fields)
            };
            let revisions: Vec<Value> = std::mem::take(&mut self.revisions).into_iter().map(revision).collect();
            self.set("revisions", revisions);
            let traffic = std::mem::take(&mut self.traffic);
            self.set("traffic", traffic);
        }
        let mut metadata = json!({ "name": self.name, "namespace": self.namespace });
        if !self.labels.is_empty() {
            metadata["labels"] = self.labels.clone().into();
        }
        let kind = if self.is_job { "Job" } else { "Function" };
        let mut documents = vec![document(kind, metadata, self.spec.clone().into())];
        let callers: Vec<&str> =
            all.iter().filter(|(_, callees)| callees.contains(&self.name)).map(|(caller, _)| caller.as_str()).collect();
        let mut rules = Vec::new();
        if !self.exposed.is_empty() {
            rules.push(json!({ "name": "gateway", "from": [{ "notIdentities": ["*"] }] }));
        }
        if !callers.is_empty() {
            let mut rule = json!({ "name": "callers", "from": [{ "identities": callers }] });
            if !self.tcp.is_empty() && self.spec.get("port") == self.tcp.first().map(|port| json!(port)).as_ref() {
                rule["to"] = json!([{ "ports": self.tcp }]);
            }
            rules.push(rule);
        }
        if self.is_job || rules.is_empty() {
            if !self.is_job {
                let text = "nothing calls it: it has no policy, so the mesh refuses every request to it";
                notes.manual_step(self.mark, &self.field, text);
            }
            return documents;
        }
        let metadata = json!({ "name": self.name, "namespace": self.namespace });
        let spec = json!({ "functions": [self.name], "authorization": { "rules": rules } });
        documents.push(document("Policy", metadata, spec));
        documents
    }
}

fn document(kind: &str, metadata: Value, spec: Value) -> Value {
    json!({ "apiVersion": "leno.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
}

/// The documents of all programs as YAML.
pub(super) fn text(workloads: Vec<Workload>, notes: &mut Notes<'_>) -> String {
    let all: Vec<_> = workloads.iter().map(|workload| (workload.name.clone(), workload.callees.clone())).collect();
    let documents = workloads.into_iter().flat_map(|workload| workload.documents(&all, notes));
    let texts = documents.map(|document| serde_saphyr::to_string(&document).unwrap_or_default());
    let text = texts.collect::<Vec<_>>().join("---\n");
    notes.notes.sort_by_key(|note| note.line);
    text
}

/// The entries of a mapping.
pub(super) fn entries(node: &Node) -> impl Iterator<Item = (&str, &Node)> {
    let entries = match &node.value {
        Written::Map(entries) => entries.as_slice(),
        _ => &[],
    };
    entries.iter().map(|(key, node)| (key.text.as_str(), node))
}

/// The elements of a list.
pub(super) fn elements(node: &Node) -> &[Node] {
    match &node.value {
        Written::List(nodes) => nodes,
        _ => &[],
    }
}

/// The texts of a list, or the one text.
pub(super) fn texts(node: &Node) -> Vec<&str> {
    match node.text() {
        Some(text) => vec![text],
        None => elements(node).iter().filter_map(Node::text).collect(),
    }
}

/// A path of fields below `node`.
pub(super) fn at<'n>(node: &'n Node, path: &[&str]) -> Option<&'n Node> {
    path.iter().try_fold(node, |node, field| node.get(field))
}

/// `name` as a DNS label.
pub(super) fn label(name: &str) -> String {
    let plain = name.to_ascii_lowercase().replace(|character: char| !character.is_ascii_alphanumeric(), "-");
    plain.trim_matches('-').chars().take(63).collect()
}

/// The image's name with registry and repository, as Docker completes it.
fn qualified(image: &str) -> String {
    match image.split_once('/') {
        None => format!("docker.io/library/{image}"),
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => image.to_owned(),
        Some(_) => format!("docker.io/{image}"),
    }
}

/// The protocol of a well-known port that is not HTTP.
fn other_protocol(port: u16) -> Option<&'static str> {
    Some(match port {
        25 | 465 | 587 => "SMTP",
        389 | 636 => "LDAP",
        1433 => "SQL Server",
        1521 => "Oracle",
        1883 | 8883 => "MQTT",
        2181 => "ZooKeeper",
        3306 => "MySQL",
        4222 => "NATS",
        5432 => "PostgreSQL",
        5671 | 5672 => "AMQP",
        6379 => "Redis",
        7687 => "Bolt",
        9042 => "Cassandra",
        9092 => "Kafka",
        11211 => "Memcached",
        27017 => "MongoDB",
        _ => return None,
    })
}

/// The port of well-known images whose files do not state it.
pub(super) fn port_of_image(image: &str) -> Option<u16> {
    let name = image.rsplit('/').next()?.split([':', '@']).next()?;
    Some(match name {
        "redis" | "valkey" | "keydb" => 6379,
        "postgres" | "postgis" | "timescaledb" | "pgvector" => 5432,
        "mysql" | "mariadb" | "percona" => 3306,
        "mongo" => 27017,
        "rabbitmq" => 5672,
        "memcached" => 11211,
        "nats" => 4222,
        "kafka" => 9092,
        "zookeeper" => 2181,
        "nginx" | "httpd" | "caddy" | "traefik" => 80,
        _ => return None,
    })
}

/// A size as Docker or Kubernetes writes it (`512m`, `1GB`, `128Mi`), as documents write it.
pub(super) fn size(text: &str) -> Option<String> {
    let digits = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" | "ki" | "kib" => 1024.0,
        "m" | "mb" | "mi" | "mib" => 1024.0 * 1024.0,
        "g" | "gb" | "gi" | "gib" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let kib = (number.parse::<f64>().ok()? * unit / 1024.0).floor() as u64;
    Some(if kib.is_multiple_of(1024) { format!("{}Mi", kib / 1024) } else { format!("{kib}Ki") }).filter(|_| kib > 0)
}

/// Path and port of a URL of the program itself, such as a health check has it.
pub(super) fn own_url(text: &str) -> Option<String> {
    let rest = after_own_host(text)?;
    let path = rest.find('/').map_or("/", |at| &rest[at..]);
    Some(path.to_owned())
}

/// The port of the URL of a program itself, if the URL names one.
pub(super) fn own_port(text: &str) -> Option<u16> {
    after_own_host(text)?.strip_prefix(':')?.split('/').next()?.parse().ok()
}

/// The port that a command line names.
pub(super) fn port_of_command(words: &[&str]) -> Option<u16> {
    const OPTIONS: [&str; 6] = ["--port", "--bind", "-b", "--listen", "--http-port", "--server.port"];
    let port = |text: &str| text.rsplit(':').next().and_then(|port| port.parse().ok());
    words.iter().enumerate().find_map(|(index, word)| match word.split_once('=') {
        Some((option, value)) if OPTIONS.contains(&option) => port(value),
        None if OPTIONS.contains(word) => words.get(index + 1).and_then(|value| port(value)),
        _ => None,
    })
}

fn after_own_host(text: &str) -> Option<&str> {
    let rest = ["localhost", "127.0.0.1", "0.0.0.0", "[::1]"]
        .iter()
        .find_map(|host| text.split_once(&format!("http://{host}")).map(|(_, rest)| rest))?;
    rest.split([' ', '"', '\'', '|', ';']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_sizes_and_urls_are_written_as_documents_write_them() {
        for (image, expected) in [
            ("redis:7", "docker.io/library/redis:7"),
            ("bitnami/redis", "docker.io/bitnami/redis"),
            ("ghcr.io/me/app:1", "ghcr.io/me/app:1"),
            ("localhost/app", "localhost/app"),
        ] {
            assert_eq!(qualified(image), expected);
        }
        for (text, expected) in [
            ("512m", "512Mi"),
            ("1g", "1024Mi"),
            ("1.5GB", "1536Mi"),
            ("100k", "100Ki"),
            ("128Mi", "128Mi"),
            ("1048576", "1Mi"),
        ] {
            assert_eq!(size(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!([size("much"), size("0"), size("1T")], [None, None, None]);
        assert_eq!(own_url("curl -f http://localhost:8080/health || exit 1").as_deref(), Some("/health"));
        assert_eq!(own_url("wget -qO- http://127.0.0.1").as_deref(), Some("/"));
        assert_eq!(own_url("pg_isready -U app"), None);
        assert_eq!(own_port("curl -f http://localhost:8080/health || exit 1"), Some(8080));
        assert_eq!((own_port("wget -qO- http://127.0.0.1"), own_port("pg_isready")), (None, None));
        for line in ["gunicorn -b 0.0.0.0:8000 a:b", "app --port 8000", "app --port=8000", "app --listen :8000"] {
            assert_eq!(port_of_command(&line.split(' ').collect::<Vec<_>>()), Some(8000), "{line}");
        }
        assert_eq!(port_of_command(&["app", "-b", "main", "--port"]), None);
        assert_eq!(label("My_App.v2"), "my-app-v2");
    }
}
