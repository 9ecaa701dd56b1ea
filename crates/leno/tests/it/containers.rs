//! Functions and jobs that are images, from the view of a user of `leno up`: a real registry, real
//! containers, real sockets. They need root and the packages `busybox-static` and
//! `docker-registry`.

use crate::images::{DockerRegistry, busybox, image_of};
use leno_oci::Digest;
use leno_oci::layout::Layer;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo, echo_function, policy, public_folder};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const EXPOSE: &str = "  expose: [{hosts: [\"*\"], path: /}]";
/// A longer deadline, so that a busy machine does not make sidecars refuse.
const PATIENT: &str = "  sidecar: {deadline: 100ms}";

/// The settings of the Mesh document about jails and images.
fn settings(registry: &DockerRegistry, more: &str) -> String {
    format!(
        "  instances: {{isolation: auto, accounts: node}}\n  images:\n    folder: .images\n    registries:\n    - {{host: \"{}\", insecure: true}}\n{more}",
        registry.host
    )
}

/// A function from an image, which admits all callers.
fn function(name: &str, image: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  image: \"{image}\"\n  timeouts: \
         {{startup: 60s}}\n{spec}\n"
    ) + &policy(&format!("{name}-open"), name, &format!("{ALLOW_ALL}\n{PATIENT}"))
}

/// The rows of `leno get revisions` of a function.
fn revisions(mesh: &Mesh, function: &str) -> Vec<Value> {
    let rows = mesh.admin("/revisions").json();
    rows.as_array().unwrap().iter().filter(|row| row["function"] == function).cloned().collect()
}

fn version(mesh: &Mesh) -> String {
    let answer = mesh.get("/");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["environment"]["VERSION"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_function_from_a_tag_serves_calls_and_is_judged() {
    let registry = DockerRegistry::start();
    let digest = registry.push(&image_of(&echo()), "team/echo:1");
    let image = format!("{}/team/echo:1", registry.host);
    let documents = function("front", &image, &format!("{EXPOSE}\n  callees: [back]\n  env: {{GREETING: hello}}"))
        + &format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: back, namespace: test}}\nspec: {{image: \"{image}\"}}\n"
        )
        + &policy(
            "back",
            "back",
            "  sidecar: {deadline: 100ms}\n  authorization: {rules: [{name: ok, from: [{identities: [front]}], to: [{paths: [/ok]}]}]}",
        );
    let mesh = Mesh::start_with(&settings(&registry, ""), &documents);
    // No request has needed the function yet.
    mesh.line("the image is here");
    assert!(mesh.instances("test/front").is_empty());
    let answer = mesh.get("/somewhere");
    assert_eq!(answer.status, 200, "{answer:?}");
    let told = answer.json();
    assert_eq!((&told["path"], &told["environment"]["GREETING"]), (&"/somewhere".into(), &"hello".into()), "{told}");
    assert!(told["environment"]["HTTP_PROXY"].is_null(), "{told}");
    let called = mesh.get("/call/back/ok");
    assert_eq!((called.status, &called.json()["path"]), (200, &Value::from("/ok")), "{called:?}");
    assert_eq!(mesh.get("/call/back/secret").status, 403);
    let instances = mesh.instances("test/front");
    assert_eq!((&instances[0]["isolation"], &instances[0]["state"]), (&"strict".into(), &"ready".into()));
    let revision = &revisions(&mesh, "test/front")[0];
    assert_eq!((&revision["image"], &revision["digest"]), (&image.into(), &digest.to_string().into()));
    let wide = mesh.leno(&["get", "revisions", "-o", "wide"]);
    assert!(String::from_utf8_lossy(&wide.stdout).contains(&digest.to_string()), "{wide:?}");
}

/// A proxy of a registry that first answers each request with 429 or 503. Returns its host.
fn busy_at_first(registry: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (at, client) in listener.incoming().enumerate() {
            let mut client = client.unwrap();
            if at < 4 {
                let status = if at % 2 == 0 { "503 Service Unavailable" } else { "429 Too Many Requests" };
                let mut head = [0; 4096];
                let _ = client.read(&mut head);
                let _ = write!(
                    client,
                    "HTTP/1.1 {status}\r\nretry-after: 0\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
                continue;
            }
            let server = TcpStream::connect(&registry).unwrap();
            let copies = [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
            for (mut from, mut to) in copies {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    host
}

#[test]
fn a_registry_that_is_busy_at_the_start_is_asked_again() {
    let mut registry = DockerRegistry::start();
    registry.push(&busybox("echo here > /www/index.html"), "web:1");
    registry.host = busy_at_first(registry.host.clone());
    let image = format!("{}/web:1", registry.host);
    let mesh = Mesh::start_with(&settings(&registry, ""), &function("web", &image, EXPOSE));
    assert_eq!(mesh.get("/").body, "here\n");
    mesh.line("the registry is asked again");
}

#[test]
fn a_revision_keeps_its_digest_though_the_tag_moves() {
    let mut registry = DockerRegistry::start();
    let of = |version: &str| image_of(&echo()).env("VERSION", version);
    let first = registry.push(&of("1"), "echo:latest");
    let image = format!("{}/echo", registry.host);
    let documents = |more: &str| function("echo", &image, &format!("{EXPOSE}\n{more}"));
    let mut mesh = Mesh::start_with(&settings(&registry, ""), &documents(""));
    mesh.restart(&["--store", "store"]);
    assert_eq!(version(&mesh), "1");

    let second = registry.push(&of("2"), "echo:latest");
    assert_ne!(first, second);
    // The permitted callers are no part of the revision.
    mesh.write(&(documents("") + &policy("log", "echo", "  accessLog: {enabled: false}")));
    mesh.line("the documents have changed");
    assert_eq!((version(&mesh).as_str(), revisions(&mesh, "test/echo").len()), ("1", 1));
    mesh.restart(&["--store", "store"]);
    assert_eq!((version(&mesh).as_str(), revisions(&mesh, "test/echo").len()), ("1", 1));

    // A change of its environment makes a new revision.
    mesh.write(&documents("  env: {RELEASE: \"2\"}"));
    mesh.wait_for("the second", |mesh| version(mesh) == "2");
    let digests: Vec<Value> = revisions(&mesh, "test/echo").iter().map(|row| row["digest"].clone()).collect();
    assert_eq!(digests, [first, second].map(|digest| Value::from(digest.to_string())));

    // A change with a tag that does not exist is refused, at its place in the document.
    let wrong = documents("").replace("/echo\"", "/echo:missing\"");
    mesh.write(&wrong);
    mesh.line("the change is refused (1 problem)");
    let told = mesh.line("cannot be found out");
    assert!(told.contains("app.yaml:6:") && told.contains("spec.image") && told.contains("MANIFEST_UNKNOWN"), "{told}");
    assert_eq!(version(&mesh), "2");

    // An image that cannot be pulled does not replace a running one.
    let missing = Digest::of(b"no such image");
    mesh.write(&documents("  scale: {min: 1}").replace("/echo\"", &format!("/echo@{missing}\"")));
    mesh.line("its image is not here");
    assert_eq!((version(&mesh).as_str(), revisions(&mesh, "test/echo").len()), ("2", 3));

    // The node does not ask the registry about an unchanged tag: after a return to the last
    // document it starts without the registry.
    mesh.write(&documents("  env: {RELEASE: \"2\"}"));
    mesh.wait_for("the fourth", |mesh| revisions(mesh, "test/echo").len() == 4);
    registry.stop();
    mesh.restart(&["--store", "store"]);
    assert_eq!(version(&mesh), "2");
}

#[test]
fn a_registry_may_be_private_and_a_layout_is_none() {
    let registry = DockerRegistry::start_private();
    registry.push(&image_of(&echo()), "private:1");
    let folder = registry.folder.path();
    fs::write(folder.join("right"), "secret\n").unwrap();
    fs::write(folder.join("wrong"), "guess\n").unwrap();
    let with = |file: &str| {
        let credentials = format!("username: user, passwordFile: {}", folder.join(file).display());
        settings(&registry, "").replace("insecure: true", &format!("insecure: true, {credentials}"))
    };
    let documents = function("echo", &format!("{}/private:1", registry.host), EXPOSE);
    let mut mesh = Mesh::start_with(&with("right"), &documents);
    assert_eq!(mesh.get("/").status, 200);
    mesh.write_mesh(&with("wrong"));
    mesh.line("spec.images: needs a restart");
    mesh.terminate();
    mesh.wait();
    let documents = mesh.folder.path().to_str().unwrap().to_owned();
    let checked = mesh.leno(&["check", &documents]);
    assert!(checked.status.success(), "nobody is asked: {checked:?}");
    let refused = mesh.leno(&["up", &documents]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("spec.image: ") && told.contains("check the credentials for this registry"), "{told}");

    let layout = folder.join("layout");
    busybox("id -u > /www/index.html").write(&layout, "1").unwrap();
    let image = format!("oci:{}:1", layout.display());
    let mesh = Mesh::start_with(&settings(&registry, ""), &function("web", &image, EXPOSE));
    assert_eq!(mesh.get("/").body, "0\n");
}

#[test]
fn a_container_has_the_user_the_volumes_and_the_root_that_its_function_says() {
    let registry = DockerRegistry::start();
    let script = "{ id -u; echo $0 $1; touch /new && echo root; touch /data/new && echo data; touch /tmp/new && echo tmp; \
                  echo in $PWD; } > /tmp/told 2>/dev/null; cat /tmp/told > /www/index.html";
    registry.push(&busybox(script).layer(Layer::new().device("dev/null", 1, 3)), "web:1");
    let image = format!("{}/web:1", registry.host);
    let spec = format!(
        "{EXPOSE}\n  user: web\n  readOnlyRoot: true\n  volumes: [{{path: /data, size: 1Mi}}, {{path: /www}}]\n  workingDirectory: /tmp\n  \
         env: {{KIND: extra}}\n  args: [$(KIND)]"
    );
    let mesh = Mesh::start_with(&settings(&registry, ""), &function("web", &image, &spec));
    assert_eq!(mesh.get("/").body, "33\n/serve extra\ndata\ntmp\nin /tmp\n");

    // Without these settings, and with another command.
    let spec = format!("{EXPOSE}\n  command: [/bin/sh, /serve, other]\n  writable: 1Mi");
    let mesh = Mesh::start_with(&settings(&registry, ""), &function("web", &image, &spec));
    assert_eq!(mesh.get("/").body, "0\n/serve other\nroot\ntmp\nin /\n");
    let reason = "left out of the image: 1 device nodes and 0 extended attributes (dev/null)";
    assert_eq!(mesh.instances("test/web")[0]["reason"], reason);
    mesh.line(reason);
}

#[test]
fn what_cannot_be_pulled_is_told_and_harms_nobody_else() {
    let registry = DockerRegistry::start();
    registry.push(&busybox(""), "web:1");
    // This registry accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let stalls = silent.local_addr().unwrap().to_string();
    let missing = Digest::of(b"no such image");
    let at = |host: &str| format!("  expose: [{{hosts: [{host}], path: /}}]\n  pull: onDemand");
    let mut slow = function("slow", &format!("{stalls}/x@{missing}"), &at("slow.example"));
    slow = slow.replace("startup: 60s", "startup: 1s");
    let documents = function("missing", &format!("{}/web@{missing}", registry.host), &at("missing.example"))
        + &slow
        + &echo_function("fine", "  expose: [{hosts: [fine.example], path: /}]")
        + &policy("fine", "fine", &format!("{ALLOW_ALL}\n{PATIENT}"));
    let more = format!("    - {{host: \"{stalls}\", insecure: true}}\n");
    let mut mesh = Mesh::start_with(&settings(&registry, &more), &documents);
    let get = |mesh: &Mesh, host: &str| mesh.curl("/", &["-H", &format!("host: {host}")]);

    let answer = get(&mesh, "missing.example");
    assert_eq!(answer.status, 503, "{answer:?}");
    let told = mesh.explain(answer.header("x-request-id").unwrap());
    assert!(told.contains("its image is not here") && told.contains("MANIFEST_UNKNOWN"), "{told}");
    mesh.wait_for("the failure to be listed", |mesh| {
        mesh.instances("test/missing").iter().any(|row| {
            row["state"] == "no image" && row["reason"].as_str().is_some_and(|reason| reason.contains("404"))
        })
    });

    let answer = get(&mesh, "slow.example");
    assert_eq!(answer.status, 503, "{answer:?}");
    let told = mesh.explain(answer.header("x-request-id").unwrap());
    assert!(told.contains("it is on its way (asking the registry)"), "{told}");
    let rows = mesh.instances("test/slow");
    assert!(rows.iter().any(|row| row["state"] == "pulling asking the registry"), "{rows:?}");

    // A change with a tag of that registry is refused after a timeout. Nothing else waits for that.
    mesh.write(&documents.replace(&format!("{stalls}/x@{missing}"), &format!("{stalls}/x:1")));
    assert_eq!(get(&mesh, "fine.example").status, 200);
    mesh.line("no answer within");
    mesh.line("the change is refused (1 problem)");
    assert_eq!(get(&mesh, "fine.example").status, 200);

    // The node asks the registry again, and uses an image that was pushed later.
    mesh.write(&documents.replace(&format!("web@{missing}"), "web:later"));
    mesh.wait_for("another refusal", |mesh| {
        mesh.output().iter().any(|line| line.contains("cannot be found out") && line.contains("MANIFEST_UNKNOWN"))
    });
    registry.push(&busybox("echo later > /www/index.html"), "web:later");
    mesh.wait_for("the image", |mesh| get(mesh, "missing.example").body == "later\n");
}

#[test]
fn an_image_writes_to_a_folder_of_the_node_as_its_owner() {
    let registry = DockerRegistry::start();
    registry.push(&busybox(""), "tool:1");
    let machine = tempfile::tempdir().unwrap();
    let [data, shown] = ["data", "shown"].map(|name| machine.path().join(name));
    for folder in [&data, &shown] {
        fs::create_dir(folder).unwrap();
        std::os::unix::fs::chown(folder, Some(4321), Some(4321)).unwrap();
    }
    let job = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {{name: report, namespace: test}}\nspec:\n  image: {}/tool:1\n  \
         command: [/bin/sh, -c, \"echo sum > /data/report && touch /shown/x || echo closed\"]\n  \
         volumes: [{{path: /data, hostPath: \"{}\", readOnly: false}}, {{path: /shown, hostPath: \"{}\"}}]\n",
        registry.host,
        data.display(),
        shown.display()
    );
    let mesh = Mesh::start_with(&settings(&registry, ""), &(echo_function("echo", "") + &job));
    mesh.line("closed");
    let made = fs::metadata(data.join("report")).unwrap();
    assert_eq!((std::os::unix::fs::MetadataExt::uid(&made), fs::read_dir(&shown).unwrap().count()), (4321, 0));
}

#[test]
fn a_job_is_an_image_that_calls_a_function() {
    let registry = DockerRegistry::start();
    registry.push(&busybox(""), "tool:1");
    let job = |script: &str| {
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {{name: report, namespace: test}}\nspec:\n  image: {}/tool:1\n  command: [/bin/sh, -c, \
             \"{script}\"]\n  callees: [echo]\n  backoffLimit: 0\n",
            registry.host
        )
    };
    let echo = echo_function("echo", "")
        + &policy(
            "echo",
            "echo",
            "  sidecar: {deadline: 100ms}\n  authorization: {rules: [{name: r, from: [{identities: [report]}], to: [{paths: [/ok]}]}]}",
        );
    let ended = |mesh: &mut Mesh, exit: i64| {
        mesh.wait_for("the job", |mesh| {
            let rows = mesh.admin("/jobs").json();
            let row = rows.as_array().unwrap().iter().find(|row| row["job"] == "test/report").cloned();
            row.is_some_and(|row| row["exit_code"] == exit && !row["end"].is_null())
        });
    };
    let call = |path: &str| job(&format!("wget -q -O /dev/null http://echo/{path} || exit 7"));
    let mut mesh = Mesh::start_with(&settings(&registry, ""), &(echo.clone() + &call("ok")));
    ended(&mut mesh, 0);
    mesh.write(&(echo + &call("no")));
    ended(&mut mesh, 7);
}

#[test]
fn an_image_on_demand_comes_with_the_first_request_and_stays_for_the_next_start() {
    let mut registry = DockerRegistry::start();
    registry.push(&image_of(&echo()), "echo:1");
    let spec = format!("{EXPOSE}\n  pull: onDemand\n  scale: {{window: 6s, scaleToZeroGracePeriod: 0s}}");
    let image = format!("{}/echo:1", registry.host);
    let mut mesh = Mesh::start_with(&settings(&registry, ""), &function("echo", &image, &spec));
    let store = mesh.folder.path().join(".images");
    assert!(!store.exists(), "nothing is pulled before it is asked for");
    assert_eq!(mesh.get("/").status, 200);
    assert_eq!(fs::read_dir(store.join("images")).unwrap().count(), 1);
    mesh.wait_for("the last instance to go", |mesh| mesh.instances("test/echo").is_empty());
    registry.stop();
    assert_eq!(mesh.get("/").status, 200, "it is still here");
}

#[test]
fn an_image_makes_room_when_nothing_uses_it_any_more() {
    let registry = DockerRegistry::start();
    let noise = |seed: u32| -> Vec<u8> {
        (0..1_500_000u32).flat_map(|i| (i ^ seed).wrapping_mul(2_654_435_761).to_le_bytes()).collect()
    };
    let large =
        |seed| busybox(&format!("echo {seed} > /www/index.html")).layer(Layer::new().file("noise", noise(seed), 0o644));
    registry.push(&large(1), "large:1");
    let second = registry.push(&large(2), "large:2");
    let of = |name: &str, tag: u32, more: &str| {
        let spec = format!("  expose: [{{hosts: [{name}.example], path: /}}]\n  pull: onDemand\n{more}");
        function(name, &format!("{}/large:{tag}", registry.host), &spec)
    };
    let settings = settings(&registry, "").replace("folder: .images\n", "folder: .images\n    size: 12Mi\n");
    let (one, two) = (of("one", 1, ""), of("two", 2, ""));
    let mut mesh = Mesh::start_with(&settings, &(one.clone() + &two));
    let get = |mesh: &Mesh, host: &str| mesh.curl("/", &["-H", &format!("host: {host}")]);
    assert_eq!(get(&mesh, "one.example").body, "1\n");
    let full = get(&mesh, "two.example");
    assert_eq!(full.status, 503, "{full:?}");
    let told = mesh.explain(full.header("x-request-id").unwrap());
    assert!(told.contains("is full: its limit is 12582912 bytes"), "{told}");

    // The first definition is in force until it is removed, though it may have no instance.
    mesh.write(&two);
    mesh.wait_for("room for the second", |mesh| get(mesh, "two.example").body == "2\n");
    let images = fs::read_dir(mesh.folder.path().join(".images/images")).unwrap();
    let images: Vec<String> = images.map(|image| image.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(images, [second.hex()]);
}

#[test]
fn a_namespace_is_held_to_its_share_of_the_store() {
    let registry = DockerRegistry::start();
    registry.push(&busybox("echo small > /www/index.html"), "small:1");
    let many = (0..300).fold(Layer::new(), |layer, number| layer.file(&number.to_string(), "", 0o644));
    registry.push(&busybox("").layer(many), "many:1");
    let of = |name: &str| {
        let spec = format!("  expose: [{{hosts: [{name}.example], path: /}}]\n  pull: onDemand");
        function(name, &format!("{}/{name}:1", registry.host), &spec)
    };
    let quota = "---\napiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {name: test}\nspec: {imageFiles: 250, imageBytes: 1Gi}\n";
    let mesh = Mesh::start_with(&settings(&registry, ""), &(of("small") + &of("many") + quota));
    let get = |host: &str| mesh.curl("/", &["-H", &format!("host: {host}")]);
    assert_eq!(get("small.example").body, "small\n");
    let refused = get("many.example");
    assert_eq!(refused.status, 503, "{refused:?}");
    let explained = mesh.explain(refused.header("x-request-id").unwrap());
    assert!(
        explained.contains("namespace test has all that its bound `imageFiles` allows on this node: 250"),
        "{explained}"
    );
    let rows: Value = serde_json::from_slice(&mesh.leno(&["get", "namespaces", "-o", "json"]).stdout).unwrap();
    let of_row = |field: &str| rows[0][field].as_str().and_then(|text| text.split_once('/')).unwrap();
    let ((bytes, of_bytes), (files, of_files)) = (of_row("image_bytes"), of_row("image_files"));
    assert_eq!((of_bytes, of_files), ("1073741824", "250"));
    assert!(bytes.parse::<u64>().unwrap() > 1 << 19 && files.parse::<u64>().unwrap() > 4, "{rows}");
}

#[test]
fn a_node_that_cannot_run_containers_says_so_and_runs_the_rest() {
    let registry = DockerRegistry::start();
    registry.push(&busybox(""), "web:1");
    let programs = tempfile::tempdir().unwrap();
    fs::set_permissions(programs.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = |from: &Path| {
        let to = programs.path().join(from.file_name().unwrap());
        fs::copy(from, &to).unwrap();
        to
    };
    let (leno, program) = (copy(Path::new(env!("CARGO_BIN_EXE_leno"))), copy(&echo()));
    let fine = echo_function("fine", "  workingDirectory: public\n  expose: [{hosts: [fine.example], path: /}]")
        .replace(&echo().display().to_string(), &program.display().to_string());
    let documents = function("web", &format!("{}/web:1", registry.host), "  expose: [{hosts: [web.example], path: /}]")
        + &fine
        + &policy("fine", "fine", &format!("{ALLOW_ALL}\n{PATIENT}"));
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&leno);
    let reason = "containers need a node that runs as root";
    let mut mesh = Mesh::start_with_command(nobody, &settings(&registry, ""), &documents, |folder| {
        public_folder(folder);
        let status = Command::new("chown").args(["-R", "65534:65534"]).arg(folder).status().unwrap();
        assert!(status.success());
    });
    let get = |mesh: &Mesh, host: &str| mesh.curl("/", &["-H", &format!("host: {host}")]);
    let answer = get(&mesh, "web.example");
    assert_eq!(answer.status, 503, "{answer:?}");
    // `leno explain` would refuse to query a node of another account, so this uses curl.
    let explanation = format!("/explain/{}", answer.header("x-request-id").unwrap());
    mesh.wait_for("the explanation", |mesh| mesh.admin(&explanation).body.contains(reason));
    mesh.line(reason);
    assert_eq!(get(&mesh, "fine.example").status, 200);
}
