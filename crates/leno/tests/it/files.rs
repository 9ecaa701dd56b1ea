//! Files that documents name: no path in a document delays a node, reveals a file that its author
//! may not read, or opens a file of a control plane.

use leno_testkit::cluster::{self, Node, control, status as answered};
use leno_testkit::control::Control;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy, public_folder};
use leno_testkit::{eventually, try_curl};
use rustix::fs::{CWD, Mode, mkfifoat};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// Functions with secrets from these files. Each starts an instance at once.
fn functions(files: &[(String, &str)], per_file: usize) -> String {
    let each =
        (0..per_file).flat_map(|round| files.iter().enumerate().map(move |(index, (file, _))| (round, index, file)));
    let document = |(round, index, file): (usize, usize, &String)| {
        echo_function(
            &format!("hangs-{index}-{round}"),
            &format!("  callees: []\n  scale: {{min: 1}}\n  secrets: [{{name: TOKEN, from: \"{file}\", as: env}}]"),
        )
    };
    each.map(document).collect()
}

const OPEN: &str = "  expose: [{hosts: [open.example], path: /}]\n  callees: []";
const DENIED: &str = "  sidecar: {deadline: 100ms}\n  authorization: {rules: [{name: nobody, action: deny}]}";

fn status(mesh: &Mesh) -> u16 {
    mesh.curl("/", &["--header", "host: open.example"]).status
}

#[test]
fn secrets_from_special_files_hold_up_no_configuration() {
    let special = tempfile::tempdir().unwrap();
    let path = |name: &str| special.path().join(name).display().to_string();
    mkfifoat(CWD, special.path().join("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
    symlink("loop", special.path().join("loop")).unwrap();
    symlink("/dev/ptmx", special.path().join("link")).unwrap();
    fs::write(special.path().join("large"), vec![b'x'; (1 << 20) + 1]).unwrap();
    let files = [
        ("/dev/ptmx".to_owned(), "it is a device"),
        ("/dev/zero".to_owned(), "it is a device"),
        ("/proc/kmsg".to_owned(), "it is made up by the kernel"),
        (path("fifo"), "it is a FIFO"),
        (path("link"), "it is a device"),
        (path("loop"), "symbolic links"),
        (path("large"), "more than 1048576 bytes"),
        (path(""), "it is a folder"),
    ];
    let documents = |rules: &str| functions(&files, 4) + &echo_function("open", OPEN) + &policy("open", "open", rules);
    let leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    let mut mesh = Mesh::start_with_command(leno, "", &documents(ALLOW_ALL), public_folder);
    assert_eq!(status(&mesh), 200);
    for (file, reason) in &files {
        mesh.wait_for(reason, |mesh| {
            mesh.output().iter().any(|line| line.contains(&format!("from {file}")) && line.contains(reason))
        });
    }
    mesh.write(&documents(DENIED));
    mesh.wait_for("the permission to be withdrawn", |mesh| status(mesh) == 403);
    mesh.write(&documents(ALLOW_ALL));
    mesh.wait_for("it to be given again", |mesh| status(mesh) == 200);
}

#[test]
fn images_of_special_files_hold_up_no_configuration() {
    let digest = leno_oci::Digest::of(b"no such image");
    let special = tempfile::tempdir().unwrap();
    mkfifoat(CWD, special.path().join("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
    let archives = ["/dev/ptmx".to_owned(), "/proc/kmsg".to_owned(), special.path().join("fifo").display().to_string()];
    let one = |(index, archive): (usize, &String)| {
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: image-{index}, namespace: test}}\nspec:\n  \
             image: \"oci-archive:{archive}@{digest}\"\n  callees: []\n  scale: {{min: 1}}\n  isolation: strict\n"
        )
    };
    let many: String = archives.iter().cycle().take(60).enumerate().map(one).collect();
    let documents = |rules: &str| many.clone() + &echo_function("open", OPEN) + &policy("open", "open", rules);
    let leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    let mut mesh = Mesh::start_with_command(leno, "", &documents(ALLOW_ALL), public_folder);
    assert_eq!(status(&mesh), 200);
    for reason in ["it is a device", "it is made up by the kernel", "it is a FIFO"] {
        // A node without containers opens no image.
        let is_told = |line: &String| line.contains(reason) || line.contains("containers need");
        mesh.wait_for(reason, |mesh| mesh.output().iter().any(is_told));
    }
    mesh.write(&documents(DENIED));
    mesh.wait_for("the permission to be withdrawn", |mesh| status(mesh) == 403);
}

/// A function of a control plane with a secret from this file, called as `NAME.example`.
fn with_secret(name: &str, file: &str) -> String {
    let spec = format!(
        "  expose: [{{hosts: [{name}.example], path: /}}]\n  callees: []\n  secrets: [{{name: TOKEN, from: \"{file}\", as: env}}]"
    );
    echo_function(name, &spec) + &policy(&format!("{name}-in"), name, ALLOW_ALL)
}

fn quota(folder: &Path) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {{name: test}}\nspec: {{files: [{}]}}\n",
        folder.display()
    )
}

fn call(node: &Node, name: &str) -> Option<u16> {
    answered(try_curl(&format!("http://{}/", node.gateway), &["--header", &format!("host: {name}.example")]))
}

#[test]
fn documents_of_a_control_plane_name_only_files_that_the_operator_lists() {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let mut node = Node::join(&control, "one", &[]);
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own");
    fs::create_dir_all(own.join("..data")).unwrap();
    fs::write(own.join("..data/token"), "mine").unwrap();
    fs::write(folder.path().join("theirs"), "theirs").unwrap();
    symlink("..data/token", own.join("token")).unwrap();
    symlink("../theirs", own.join("up")).unwrap();
    symlink("/etc/shadow", own.join("shadow")).unwrap();
    let path = |name: &str| own.join(name).display().to_string();
    let documents = with_secret("mine", &path("token"))
        + &with_secret("up", &path("up"))
        + &with_secret("shadow", &path("shadow"))
        + &with_secret("plain", "/etc/shadow")
        + &with_secret("dots", &path("../theirs"));
    control.apply(&documents);

    // Without a list, no file is permitted. The error says who may change that, and how.
    let told =
        "documents of namespace `test` may name no files; an operator permits a folder with `kind: NamespaceQuota`";
    // The gateway refuses calls too, before it knows the node.
    eventually("a refusal", || call(&gateway, "mine").filter(|status| *status == 503 && node.has_said(told)));
    assert!(!node.has_said("No such file"), "what is not permitted is not looked at");

    control.apply(&quota(&own));
    eventually("the listed file", || call(&gateway, "mine").filter(|status| *status == 200));
    for (name, reason) in [
        ("up", "a link leads out of the folders that may be named"),
        ("shadow", "a link leads out of the folders that may be named"),
        ("plain", "may name files in"),
        ("dots", "may name files in"),
    ] {
        assert_eq!(call(&gateway, name), Some(503), "{name}");
        node.wait_for(reason, |node| {
            node.process.lines().iter().any(|line| line.contains(&format!("test/{name}")) && line.contains(reason))
        });
    }
}

#[test]
fn requests_name_no_file_of_the_control_plane() {
    let control = control();
    let digest = leno_oci::Digest::of(b"no such image");
    let image = |image: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: web, namespace: a}}\nspec:\n  image: \"{image}\"\n  isolation: strict\n"
        )
    };
    let told = |control: &Control, name: &str| {
        let refused = control.leno_with(&["apply", "-f", "-"], &image(name));
        assert_eq!(refused.status.code(), Some(2), "{name}: {refused:?}");
        let words = String::from_utf8(refused.stderr).unwrap();
        words.split_once("spec.image: ").unwrap().1.replace(name.trim_end_matches(":x"), "FILE")
    };
    let mut answers = Vec::new();
    for name in
        ["oci-archive:/etc/shadow:x", "oci-archive:/no/such/file:x", "oci-archive:/dev/ptmx:x", "oci-archive:/etc:x"]
    {
        answers.push(told(&control, name));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "what is there is not told: {answers:#?}");
    assert!(
        answers[0].contains("reads no files for documents that come in a request") && answers[0].contains("@sha256:")
    );
    // If the reference has a digest, the nodes open the archive, and not the control plane.
    control.apply(&image(&format!("oci-archive:/dev/ptmx@{digest}")));

    // Files of registries, which the Mesh document names.
    let mesh = format!(
        "{}  images: {{registries: [{{host: registry.example, username: a, passwordFile: /etc/shadow}}]}}\n",
        cluster::MESH
    );
    let refused = control.leno_with(&["apply", "-f", "-"], &mesh);
    let words = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{words}");
    assert!(words.contains("/etc/shadow: it is in none of the permitted folders (/etc/leno/registries)"), "{words}");
}
