//! `leno import`: compose files and manifests of Kubernetes become documents that pass `leno check`,
//! and each field without a counterpart is named with its line.

use leno_config::{DocumentSet, Snapshot};
use leno_testkit::leno_program;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

const SHOP: &str = r#"name: corner-shop
x-app: &app
  restart: unless-stopped
  environment: &environment
    LOG_LEVEL: ${LOG_LEVEL:-info}
    CACHE_URL: redis://cache:6379/0
services:
  web:
    <<: *app
    image: ghcr.io/corner/web:${TAG}
    ports: ["8080:3000"]
    environment:
      <<: *environment
      API_URL: http://api:8000
    depends_on: [api]
    healthcheck:
      test: ["CMD", "curl", "-f", "http://localhost:3000/healthz"]
      interval: 15s
      retries: 4
      timeout: 3s
    deploy:
      replicas: 2
      resources:
        limits: {cpus: "0.50", memory: 256M}
        reservations: {memory: 64M}
  api:
    <<: *app
    build: ./api
    command: uvicorn main:app --port 8000 --log-config "my log.yaml"
    expose: ["8000"]
    env_file: [api.env]
    depends_on:
      db: {condition: service_healthy}
      migrate: {condition: service_completed_successfully}
    volumes:
      - ./templates:/srv/templates:ro
      - uploads:/srv/uploads
      - /srv/scratch
    networks: [back]
    read_only: true
    user: "1000:1000"
    stop_grace_period: 20s
  migrate:
    image: ghcr.io/corner/api:1
    command: [python, migrate.py]
    environment: [DATABASE_URL=postgres://app@db:5432/shop]
  db:
    image: postgres:17
    environment: {POSTGRES_PASSWORD: example}
    volumes: [data:/var/lib/postgresql/data]
    healthcheck: {test: pg_isready -U app}
  cache:
    image: redis:8
    ports: ["6379:6379"]
    cap_add: [SYS_NICE]
networks: {back: {}}
volumes: {data: {}, uploads: {}}
"#;

const BLOG: &str = r#"services:
  blog_app:
    image: wordpress:6
    ports:
      - {target: 80, published: 8000, protocol: tcp}
    environment:
      WORDPRESS_DB_HOST: db
  admin:
    image: registry.example:5000/tools/admin
    ports: ["127.0.0.1:9000:9000", "53:53/udp"]
    links: ["db:database"]
    privileged: true
  db:
    image: mariadb:11
    scale: 1
    mem_limit: 1g
    logging: {driver: syslog}
"#;

const MANIFESTS: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata: {name: cart, namespace: store, labels: {app: cart}}
spec:
  replicas: 2
  selector: {matchLabels: {app: cart}}
  strategy: {type: RollingUpdate}
  template:
    metadata: {labels: {app: cart, tier: back}}
    spec:
      terminationGracePeriodSeconds: 15
      serviceAccountName: cart
      securityContext: {runAsUser: 1000, fsGroup: 2000}
      containers:
      - name: cart
        image: ghcr.io/store/cart:2
        args: ["--listen", ":8080"]
        ports: [{containerPort: 8080}, {containerPort: 9102, name: metrics}]
        env:
        - {name: STOCK_URL, value: "http://stock:80/"}
        - name: GREETING
          valueFrom: {configMapKeyRef: {name: cart, key: greeting}}
        - name: API_KEY
          valueFrom: {secretKeyRef: {name: cart, key: api}}
        readinessProbe: {httpGet: {path: /ready, port: 8080}}
        livenessProbe: {httpGet: {path: /live, port: 8080}, periodSeconds: 20, failureThreshold: 5}
        resources: {requests: {cpu: 100m}, limits: {cpu: 500m, memory: 128Mi}}
        volumeMounts: [{name: tmp, mountPath: /work}, {name: disk, mountPath: /data}]
      - name: agent
        image: ghcr.io/store/agent:1
      volumes:
      - {name: tmp, emptyDir: {sizeLimit: 32Mi}}
      - {name: disk, persistentVolumeClaim: {claimName: disk}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: stock, namespace: store}
spec:
  selector: {matchLabels: {app: stock}}
  template:
    metadata: {labels: {app: stock}}
    spec:
      containers: [{name: stock, image: "ghcr.io/store/stock:1", ports: [{containerPort: 8000}]}]
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: store}
spec: {selector: {app: cart}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cart, namespace: store}
data: {greeting: hello}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: shop, namespace: store}
spec:
  rules:
  - host: shop.example
    http: {paths: [{path: /cart, pathType: Prefix, backend: {service: {name: cart, port: {number: 80}}}}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: store}
"#;

struct Folder(TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        Self(folder)
    }

    fn leno(&self, arguments: &[&str]) -> Output {
        Command::new(leno_program()).args(arguments).env_remove("TAG").current_dir(self.0.path()).output().unwrap()
    }

    /// Documents and report of a successful import.
    fn imported(&self, arguments: &[&str]) -> (String, String) {
        let output = self.leno(&[&["import"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    }
}

/// Compiles the documents as `leno check` does.
fn compiled(documents: &str) -> Snapshot {
    let loaded = leno_translate::compile(DocumentSet::of_text(Path::new("imported.yaml"), documents));
    loaded.unwrap_or_else(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        panic!("{}\n{documents}", problems.join("\n"))
    })
}

fn document(documents: &str, kind: &str, name: &str) -> serde_json::Value {
    let all = documents.split("---\n").map(|text| serde_saphyr::from_str::<serde_json::Value>(text).unwrap());
    let mut found = all.filter(|document| document["kind"] == kind && document["metadata"]["name"] == name);
    found.next().unwrap_or_else(|| panic!("there is no {kind} {name}:\n{documents}"))["spec"].take()
}

/// Each of these stands in one line of the report.
fn reports(report: &str, lines: &[&[&str]]) {
    for parts in lines {
        let found = report.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(found, "{parts:?} is not in one line of:\n{report}");
    }
}

#[test]
fn a_compose_file_becomes_functions_a_job_and_policies() {
    let folder = Folder::with(&[
        ("compose.yaml", SHOP),
        (".env", "# defaults\nTAG=1.4\n"),
        ("api.env", "DATABASE_URL=postgres://app@db:5432/shop\nSECRET_KEY='a b'\n"),
    ]);
    let (documents, report) = folder.imported(&["compose.yaml"]);
    compiled(&documents);
    let web = document(&documents, "Function", "web");
    assert_eq!(web["image"], "ghcr.io/corner/web:1.4");
    assert_eq!((&web["port"], &web["expose"][0]["hosts"][0]), (&3000.into(), &"*".into()));
    assert_eq!(web["env"]["LOG_LEVEL"], "info");
    assert_eq!(web["callees"], serde_json::json!(["api", "cache"]));
    assert_eq!(web["readiness"]["http"], "/healthz");
    assert_eq!(web["liveness"], serde_json::json!({ "interval": "15s", "failures": 4 }));
    assert_eq!(web["resources"], serde_json::json!({ "cpu": 0.5, "memory": "256Mi" }));
    assert_eq!(web["scale"]["min"], 2);
    let api = document(&documents, "Function", "api");
    assert_eq!(api["image"], "localhost/api:latest");
    let args = ["uvicorn", "main:app", "--port", "8000", "--log-config", "my log.yaml"];
    assert_eq!(api["args"], serde_json::json!(args));
    assert_eq!((&api["env"]["SECRET_KEY"], &api["user"]), (&"a b".into(), &"1000:1000".into()));
    assert_eq!((&api["readOnlyRoot"], &api["timeouts"]["grace"]), (&true.into(), &"20s".into()));
    assert_eq!(api["callees"], serde_json::json!(["cache", "db"]));
    assert_eq!((&api["port"], &api["volumes"][0]["name"]), (&8000.into(), &"uploads".into()));
    assert_eq!(document(&documents, "Job", "migrate")["callees"], serde_json::json!(["db"]));
    let db = document(&documents, "Function", "db");
    assert_eq!((&db["image"], &db["port"]), (&"docker.io/library/postgres:17".into(), &5432.into()));
    let rules = document(&documents, "Policy", "db")["authorization"]["rules"].take();
    assert_eq!(rules[0]["from"][0]["identities"], serde_json::json!(["api", "migrate"]));
    assert_eq!(rules[0]["to"][0]["ports"], serde_json::json!([5432]));
    reports(
        &report,
        &[
            &["compose.yaml:11 ", "services.web.ports", "adapted", "the host `*`"],
            &["services.web.healthcheck.timeout", "dropped"],
            &["services.web.deploy.resources.reservations", "dropped"],
            &["services.api.build", "to do", "replace `localhost/api:latest`"],
            &["services.api.volumes", "to do", "./templates"],
            &["services.api.volumes", "adapted", "on the disk of a node"],
            &["services.api.depends_on.migrate", "to do", "does not wait for a job"],
            &["services.api.environment.SECRET_KEY", "to do", "secret in plain text"],
            &["services.api.networks", "dropped"],
            &["services.db.environment.POSTGRES_PASSWORD", "to do"],
            &["services.db.healthcheck.test", "adapted"],
            &["services.cache.cap_add", "dropped"],
            &["services.cache.ports", "dropped", "the gateway carries HTTP"],
            &["networks.back", "dropped"],
        ],
    );
    for (number, line) in
        SHOP.lines().enumerate().filter(|(_, line)| line.contains("cap_add") || line.contains("build:"))
    {
        let place = format!("compose.yaml:{} ", number + 1);
        assert!(report.contains(&place), "{place} `{line}` is not in:\n{report}");
    }
}

#[test]
fn ports_and_secrets_are_found_where_people_write_them() {
    let text = "services:\n  web:\n    image: r.example/web:1\n    environment: {DATABASE_URL: 'postgres://app:sesame@db/shop'}\n    healthcheck: {test: \
                [CMD, curl, 'http://localhost:8000/']}\n  api:\n    image: r.example/api:1\n    command: gunicorn -b 0.0.0.0:9000 app:app\n  db:\n    \
                image: postgres:17\n    volumes: ['data:/var/lib/postgresql/data']\n";
    let folder = Folder::with(&[("compose.yaml", text)]);
    let (documents, report) = folder.imported(&["compose.yaml"]);
    compiled(&documents);
    let port = |name: &str| document(&documents, "Function", name)["port"].clone();
    assert_eq!((port("web"), port("api"), port("db")), (8000.into(), 9000.into(), 5432.into()));
    let volume = serde_json::json!({ "path": "/var/lib/postgresql/data", "name": "data", "size": "1Gi" });
    assert_eq!(document(&documents, "Function", "db")["volumes"], serde_json::json!([volume]));
    reports(
        &report,
        &[
            &["services.web.environment.DATABASE_URL", "to do", "secret in plain text"],
            &["services.web", "adapted", "port 8000, by its `healthcheck`"],
            &["services.api", "adapted", "port 9000, by its `command`"],
            &["services.db.volumes", "adapted", "on the disk of a node"],
        ],
    );
}

#[test]
fn services_get_hosts_of_their_own_and_names_that_are_labels() {
    let folder = Folder::with(&[("docker-compose.yml", BLOG)]);
    let (documents, report) = folder.imported(&["-f", "docker-compose.yml", "-n", "blog"]);
    compiled(&documents);
    let app = document(&documents, "Function", "blog-app");
    assert_eq!(app["expose"][0]["hosts"][0], "blog-app.localhost");
    assert_eq!((&app["port"], &app["callees"]), (&80.into(), &serde_json::json!(["db"])));
    assert_eq!(document(&documents, "Function", "db")["resources"]["memory"], "1024Mi");
    assert!(documents.contains("namespace: blog"), "{documents}");
    reports(
        &report,
        &[
            &["services.blog_app", "adapted", "`blog-app`"],
            &["services.admin.ports", "dropped", "the mesh carries TCP only"],
            &["services.admin.links", "to do", "an alias is no name here"],
            &["services.admin.privileged", "dropped"],
            &["services.db.logging", "dropped"],
        ],
    );
    let again = folder.leno(&["import", "docker-compose.yml", "-o", "docker-compose.yml"]);
    assert!(!again.status.success(), "an existing file is not overwritten: {again:?}");
    assert_eq!(fs::read_to_string(folder.0.path().join("docker-compose.yml")).unwrap(), BLOG);
}

#[test]
fn manifests_of_kubernetes_become_functions_and_policies() {
    let folder = Folder::with(&[("cart.yaml", MANIFESTS)]);
    let (_, report) = folder.imported(&["cart.yaml", "-o", "mesh.yaml"]);
    let documents = fs::read_to_string(folder.0.path().join("mesh.yaml")).unwrap();
    compiled(&documents);
    let cart = document(&documents, "Function", "cart");
    assert_eq!((&cart["port"], &cart["scale"]["min"], &cart["user"]), (&8080.into(), &2.into(), &"1000".into()));
    assert_eq!(cart["env"], serde_json::json!({ "STOCK_URL": "http://stock:80/", "GREETING": "hello" }));
    assert_eq!(cart["callees"], serde_json::json!(["stock"]));
    assert_eq!(cart["expose"], serde_json::json!([{ "hosts": ["shop.example"], "path": "/cart" }]));
    assert_eq!(cart["readiness"]["http"], "/ready");
    assert_eq!(cart["liveness"], serde_json::json!({ "interval": "20s", "failures": 5 }));
    assert_eq!(cart["resources"], serde_json::json!({ "cpu": 0.5, "memory": "128Mi" }));
    assert_eq!(cart["volumes"], serde_json::json!([{ "path": "/work", "size": "32Mi" }]));
    assert_eq!(cart["timeouts"]["grace"], "15s");
    let rules = document(&documents, "Policy", "stock")["authorization"]["rules"].take();
    assert_eq!(rules[0]["from"][0]["identities"], serde_json::json!(["cart"]));
    reports(
        &report,
        &[
            &["containers[0].ports", "dropped", "port 9102"],
            &["containers[0].env.API_KEY", "to do"],
            &["spec.containers", "to do", "`agent`"],
            &["containers[0].volumeMounts", "to do", "/data"],
            &["securityContext.fsGroup", "dropped"],
            &["CronJob", "dropped"],
        ],
    );
}

#[test]
fn files_that_are_neither_are_refused_with_their_place() {
    let folder = Folder::with(&[
        ("pod.yaml", "kind: ConfigMap\nmetadata: {name: a}\n"),
        ("missing.yaml", "services:\n  a: {image: x, depends_on: [b]}\n"),
        ("required.yaml", "services:\n  a: {image: \"x:${VERSION_OF_X:?give a version}\"}\n"),
        ("nothing.yaml", "services:\n  a: {ports: [80]}\n"),
        ("laughs.yaml", &laughs()),
        ("broken.yaml", "services: [\n"),
    ]);
    for (file, expected) in [
        ("pod.yaml", "there is no Deployment"),
        ("missing.yaml", "missing.yaml:2:30 services.a.depends_on.b: there is no service `b`"),
        ("required.yaml", "VERSION_OF_X is not set: give a version"),
        ("nothing.yaml", "neither `image` nor `build`"),
        ("laughs.yaml", "more than 262144 values"),
        ("broken.yaml", "not valid YAML"),
    ] {
        let refused = folder.leno(&["import", file]);
        let error = String::from_utf8(refused.stderr.clone()).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{file}: {refused:?}");
        assert!(error.contains(expected), "{file}: {error}");
        assert!(refused.stdout.is_empty(), "{file}");
    }
}

/// Aliases of aliases, a billion values in all.
fn laughs() -> String {
    let mut text = "x-0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 8].join(", ");
        text += &format!("x-{level}: &a{level} [{aliases}]\n");
    }
    text + "services:\n  a: {image: x}\n"
}

const VERSIONS: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata: {name: web-v1, namespace: store}
spec:
  replicas: 9
  revisionHistoryLimit: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, version: "1.4"}}
    spec:
      containers:
      - {name: web, image: "ghcr.io/store/web:1.4", ports: [{containerPort: 8080}], env: [{name: LEVEL, value: info}, {name: STOCK, value: "http://stock"}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web-v2, namespace: store}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, version: "2.0"}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - {name: web, image: "ghcr.io/store/web:2.0", ports: [{containerPort: 8080}], env: [{name: LEVEL, value: debug}, {name: STOCK, value: "http://stock"}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: store}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: web-next, namespace: store}
spec: {selector: {app: web, version: "2.0"}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: stock, namespace: store}
spec: {template: {metadata: {labels: {app: stock}}, spec: {containers: [{image: "ghcr.io/store/stock:1", ports: [{containerPort: 8000}]}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: stock-canary, namespace: store}
spec: {template: {metadata: {labels: {app: stock-canary}}, spec: {containers: [{image: "ghcr.io/store/stock:2", ports: [{containerPort: 8001}]}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: stock, namespace: store}, spec: {selector: {app: stock}}}
---
{apiVersion: v1, kind: Service, metadata: {name: stock-canary, namespace: store}, spec: {selector: {app: stock-canary}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: stock, namespace: store}
spec: {rules: [{host: stock.example, http: {paths: [{path: /, backend: {service: {name: stock}}}]}}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: stock-canary
  namespace: store
  annotations: {nginx.ingress.kubernetes.io/canary: "true", nginx.ingress.kubernetes.io/canary-weight: "20", nginx.ingress.kubernetes.io/canary-by-header: X-Canary}
spec: {rules: [{host: stock.example, http: {paths: [{path: /, backend: {service: {name: stock-canary}}}]}}]}
"#;

#[test]
fn workloads_that_share_requests_become_revisions_of_one_function() {
    let folder = Folder::with(&[("store.yaml", VERSIONS)]);
    let (documents, report) = folder.imported(&["store.yaml"]);
    compiled(&documents);
    let web = document(&documents, "Function", "web");
    let revision = |name: &str, tag: &str, level: &str| {
        serde_json::json!({
            "name": name, "image": format!("ghcr.io/store/web:{tag}"), "env": { "LEVEL": level },
        })
    };
    let (mut first, mut second) = (revision("v1-4", "1.4", "info"), revision("v2-0", "2.0", "debug"));
    first["scale"] = serde_json::json!({ "min": 9 });
    second["timeouts"] = serde_json::json!({ "grace": "5s" });
    assert_eq!(web["revisions"], serde_json::json!([first, second]), "{documents}");
    let shares = |name: &str, percent: u8| serde_json::json!({ "revision": name, "percent": percent });
    assert_eq!(web["traffic"], serde_json::json!([shares("v1-4", 90), shares("v2-0", 10)]));
    assert_eq!((&web["port"], &web["env"]), (&8080.into(), &serde_json::json!({ "STOCK": "http://stock" })));
    assert_eq!((&web["callees"], &web["revisionHistory"]), (&serde_json::json!(["stock"]), &3.into()));
    assert_eq!((&web["expose"][0]["hosts"][0], &web["image"]), (&"web.localhost".into(), &serde_json::Value::Null));
    let stock = document(&documents, "Function", "stock");
    let mut canary = shares("canary", 20);
    canary["headers"] = serde_json::json!({ "x-canary": "always" });
    assert_eq!(stock["traffic"], serde_json::json!([shares("stable", 80), canary]), "{documents}");
    assert_eq!((&stock["revisions"][1]["port"], stock["expose"].as_array().unwrap().len()), (&8001.into(), 1));
    reports(
        &report,
        &[
            &["Service web ", "adapted", "v1-4 90 % (Deployment web-v1), v2-0 10 % (Deployment web-v2)"],
            &["Service web-next", "to do", "a `tag` in `traffic`"],
            &["Ingress stock-canary", "adapted", "stable 80 % (Deployment stock), canary 20 %"],
        ],
    );
}
