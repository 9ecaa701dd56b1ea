//! Folders that functions share with their node.

use super::{EXPOSE, attempt, intruder_function, start};
use leno_testkit::mesh::Mesh;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The owner of the folders in these tests.
const OWNER: u32 = 4321;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only a node that is root maps owners");
    }
    is_root
}

/// A folder with the folders `mine/data` and `other`, in which only their owner may read and write.
fn machine() -> (TempDir, [PathBuf; 3]) {
    let machine = tempfile::tempdir().unwrap();
    let folders = ["mine", "mine/data", "other"].map(|name| machine.path().join(name));
    for folder in &folders {
        fs::create_dir(folder).unwrap();
        chown(folder, Some(OWNER), Some(OWNER)).unwrap();
        fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
    }
    (machine, folders)
}

fn volume(path: &Path, more: &str) -> String {
    format!("  volumes: [{{path: /data, hostPath: \"{}\"{more}}}]\n", path.display())
}

fn function(volumes: &str) -> String {
    intruder_function("").replace(EXPOSE, &format!("{volumes}{EXPOSE}"))
}

fn quota(folder: &Path) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {{name: test}}\nspec: {{hostPaths: [{{path: \"{}\"}}]}}\n",
        folder.display()
    )
}

/// The standard error of `leno check`.
fn checked(mesh: &Mesh) -> String {
    let checked = mesh.leno(&["check", mesh.folder.path().to_str().unwrap()]);
    String::from_utf8_lossy(&checked.stderr).into_owned()
}

#[test]
fn instances_write_to_a_folder_of_the_node_as_its_owner() {
    if !is_root() {
        return;
    }
    let (_machine, [mine, data, _]) = machine();
    fs::write(data.join("given"), "from the machine").unwrap();
    chown(data.join("given"), Some(OWNER), Some(OWNER)).unwrap();
    let scale = "  scale: {min: 2, max: 2}\n";
    let documents = |more: &str| function(&(volume(&data, more) + scale)) + &quota(&mine);
    let mut mesh = start("auto", &documents(", readOnly: false"));
    mesh.wait_for("both instances", |mesh| mesh.instances("test/intruder").len() == 2);
    assert!(attempt(&mesh, "read", &["/data/given"]).starts_with("done: from the machine"));
    let written = attempt(&mesh, "write", &["/data/file"]);
    assert!(written.starts_with("done"), "{written}");
    let made = fs::metadata(data.join("file")).unwrap();
    assert_eq!((made.uid(), made.gid()), (OWNER, OWNER));
    for _ in 0..4 {
        let read = attempt(&mesh, "read", &["/data/file"]);
        assert!(read.starts_with("done: intruder"), "every instance sees it: {read}");
    }
    // Without `readOnly: false` it is read-only.
    mesh.write(&documents(""));
    mesh.wait_for("the next instances", |mesh| {
        attempt(mesh, "write", &["/data/first"]).starts_with("refused: Read-only")
    });
    assert!(attempt(&mesh, "write", &["/data/second"]).starts_with("refused: Read-only"));
    assert!(attempt(&mesh, "read", &["/data/file"]).starts_with("done: intruder"));
    assert!(!data.join("second").exists());
}

#[test]
fn a_folder_that_is_not_listed_is_refused_before_anything_starts() {
    let (_machine, [mine, data, other]) = machine();
    let mesh = start("auto", &(function(&volume(&data, "")) + &quota(&mine)));
    assert!(!checked(&mesh).contains("hostPath"), "{}", checked(&mesh));
    mesh.write(&(function(&volume(&other, ", readOnly: false")) + &quota(&mine)));
    let told = checked(&mesh);
    assert!(told.contains("spec.volumes[0].hostPath") && told.contains("may have folders in"), "{told}");
    mesh.line("may have folders in");
    mesh.write(&function(&volume(&mine.join("missing"), "")));
    let told = checked(&mesh);
    assert!(told.contains("warning") && told.contains("there is no folder"), "{told}");
}

#[test]
fn a_node_without_the_folder_and_a_link_out_of_the_list_start_nothing() {
    if !is_root() {
        return;
    }
    let (_machine, [mine, data, other]) = machine();
    symlink("../other", mine.join("up")).unwrap();
    let documents =
        |name: &str| function(&(volume(&mine.join(name), ", readOnly: false") + "  scale: {min: 1}\n")) + &quota(&mine);
    let mesh = start("auto", &documents("up"));
    mesh.line("leads out of the folders");
    mesh.write(&documents("missing"));
    mesh.line("make it, or place the function on nodes that have it");
    // A program that may write to `mine` puts a link in the place of a listed folder.
    fs::remove_dir(&data).unwrap();
    symlink(&other, &data).unwrap();
    mesh.write(&(function(&(volume(&data, ", readOnly: false") + "  scale: {min: 1}\n")) + &quota(&data)));
    mesh.line("list the folder to which the link leads");
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
}
