//! Changes of the files become new snapshots.
//!
//! The files are polled instead of watched by the kernel: editors and deployment tools replace
//! files, folders and links in many ways, over network file systems too, and polling finds all of
//! them.

use crate::folder;
use crate::problem::Problem;
use crate::snapshot::Snapshot;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// The result of a change: a new snapshot, or problems; then the old configuration stays in force.
pub type Change = Result<Snapshot, Vec<Problem>>;

/// How the documents of a path are loaded.
pub type Load = fn(&Path) -> Change;

/// Notices changes of a file or folder when it is polled.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    load: Load,
    /// Other files that the last good snapshot refers to.
    inputs: Vec<PathBuf>,
    /// The state of the files when they were last loaded.
    loaded: Look,
    /// The state of the files at the last poll.
    seen: Look,
    /// The result of the last load.
    last: Last,
}

/// Name, time, size and file number of each file.
type Look = Vec<(PathBuf, Option<(SystemTime, u64, u64)>)>;

#[derive(Debug, PartialEq, Eq)]
enum Last {
    Version(String),
    Problems(Vec<Problem>),
}

impl Watch {
    /// Watches the files that `snapshot` was loaded from.
    pub fn new(path: &Path, snapshot: &Snapshot, load: Load) -> Self {
        let mut watch = Self {
            path: path.to_owned(),
            load,
            inputs: snapshot.inputs().to_vec(),
            loaded: Look::new(),
            seen: Look::new(),
            last: Last::Version(snapshot.version().to_owned()),
        };
        watch.seen = watch.look();
        // `loaded` stays empty: the files may have changed since; the first poll compares versions.
        watch
    }

    /// Polls the files once. A change is loaded when two polls in a row see the same state, so that
    /// a file is not read while it is being written: half a file can be a valid document without
    /// its last rules.
    pub fn look_again(&mut self) -> Option<Change> {
        let now = self.look();
        if now != self.seen {
            self.seen = now;
            return None;
        }
        if now == self.loaded {
            return None;
        }
        let result = (self.load)(&self.path);
        if self.look() != now {
            return None;
        }
        // A new snapshot may refer to other files: then the next polls differ from this one, and
        // the files are loaded once more.
        self.loaded = now;
        if let Ok(snapshot) = &result {
            self.inputs = snapshot.inputs().to_vec();
        }
        let last = match &result {
            Ok(snapshot) => Last::Version(snapshot.version().to_owned()),
            Err(problems) => Last::Problems(problems.clone()),
        };
        (std::mem::replace(&mut self.last, last) != self.last).then_some(result)
    }

    fn look(&self) -> Look {
        let found = folder::find(&self.path);
        let unreadable = found.problems.into_iter().map(|problem| problem.file);
        let mut files: Vec<PathBuf> =
            found.files.into_iter().chain(unreadable).chain(self.inputs.iter().cloned()).collect();
        files.push(self.path.clone());
        files.sort();
        files.dedup();
        files.into_iter().map(|file| (file.clone(), stamp(&file))).collect()
    }
}

fn stamp(file: &Path) -> Option<(SystemTime, u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}

/// A thread that polls in intervals; it ends when this is dropped.
#[derive(Debug)]
pub struct Watcher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Polls twice a second and passes each change to `changed`, on a separate thread. A change is
/// loaded within a second.
///
/// # Errors
/// No thread can be started.
pub fn watch(
    path: &Path,
    snapshot: &Snapshot,
    load: Load,
    changed: impl FnMut(Change) + Send + 'static,
) -> std::io::Result<Watcher> {
    watch_every(Duration::from_secs(1), path, snapshot, load, changed)
}

/// As [`watch`], with another interval between polls.
///
/// # Errors
/// As [`watch`].
pub fn watch_every(
    interval: Duration,
    path: &Path,
    snapshot: &Snapshot,
    load: Load,
    mut changed: impl FnMut(Change) + Send + 'static,
) -> std::io::Result<Watcher> {
    let mut watch = Watch::new(path, snapshot, load);
    let (stop, stopped) = mpsc::channel();
    let thread = std::thread::Builder::new().name("leno-watch".to_owned()).spawn(move || {
        while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            if let Some(change) = watch.look_again() {
                changed(change);
            }
        }
    })?;
    Ok(Watcher { stop: Some(stop), thread: Some(thread) })
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic of `changed` has been printed by its thread.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document_set::load;

    fn function(name: &str) -> String {
        format!(
            "{{apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {{name: {name}}}, spec: {{command: [a]}}}}\n"
        )
    }

    fn names(change: Option<Change>) -> Vec<String> {
        change.expect("no change").expect("problems").functions().map(|id| id.name.clone()).collect()
    }

    /// Polls until two polls in a row see the same state, as the thread does.
    fn settle(watch: &mut Watch) -> Option<Change> {
        (0..4).find_map(|_| watch.look_again())
    }

    fn start(folder: &Path) -> Watch {
        fs::write(folder.join("a.yaml"), function("a")).unwrap();
        let mut watch = Watch::new(folder, &load(folder).unwrap(), load);
        assert!(settle(&mut watch).is_none(), "nothing has changed");
        watch
    }

    #[test]
    fn files_that_come_go_and_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = start(folder.path());
        fs::write(folder.path().join("b.yaml"), function("b")).unwrap();
        assert!(watch.look_again().is_none(), "the file may still be being written");
        assert_eq!(names(watch.look_again()), ["a", "b"]);
        // As editors save: a new file replaces the old one.
        fs::write(folder.path().join(".new"), function("c")).unwrap();
        fs::rename(folder.path().join(".new"), folder.path().join("a.yaml")).unwrap();
        assert_eq!(names(settle(&mut watch)), ["b", "c"]);
        fs::remove_file(folder.path().join("b.yaml")).unwrap();
        assert_eq!(names(settle(&mut watch)), ["c"]);
        assert!(settle(&mut watch).is_none());
    }

    #[test]
    fn folders_in_it_and_what_links_lead_to_are_watched() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut watch = start(folder.path());
        fs::create_dir(folder.path().join("inner")).unwrap();
        fs::write(folder.path().join("inner/b.yaml"), function("b")).unwrap();
        assert_eq!(names(settle(&mut watch)), ["a", "b"]);
        fs::write(elsewhere.path().join("c"), function("c")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join("c"), folder.path().join("c.yaml")).unwrap();
        assert_eq!(names(settle(&mut watch)), ["a", "b", "c"]);
        fs::write(elsewhere.path().join("c"), function("changed")).unwrap();
        assert_eq!(names(settle(&mut watch)), ["a", "b", "changed"]);
    }

    /// A rule that cannot be read any more was not deleted.
    #[test]
    fn what_vanishes_behind_a_link_is_a_bad_change() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = elsewhere.path().join("b");
        fs::write(&target, function("b")).unwrap();
        std::os::unix::fs::symlink(&target, folder.path().join("b.yaml")).unwrap();
        fs::write(folder.path().join("a.yaml"), function("a")).unwrap();
        let mut watch = Watch::new(folder.path(), &load(folder.path()).unwrap(), load);
        assert!(settle(&mut watch).is_none());
        fs::remove_file(&target).unwrap();
        let problems = settle(&mut watch).unwrap().unwrap_err();
        assert!(problems[0].to_string().contains("b.yaml: is a link to"), "{problems:?}");
        fs::write(&target, function("b")).unwrap();
        assert_eq!(names(settle(&mut watch)), ["a", "b"]);
        fs::remove_file(folder.path().join("b.yaml")).unwrap();
        assert_eq!(names(settle(&mut watch)), ["a"]);
    }

    #[test]
    fn a_bad_change_is_reported_once_and_a_good_one_follows() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = start(folder.path());
        fs::write(folder.path().join("a.yaml"), "kind: Nothing").unwrap();
        let problems = settle(&mut watch).unwrap().unwrap_err();
        assert_eq!(problems[0].field, "kind");
        assert!(settle(&mut watch).is_none());
        fs::write(folder.path().join("a.yaml"), function("d")).unwrap();
        assert_eq!(names(settle(&mut watch)), ["d"]);
    }

    #[test]
    fn a_file_written_anew_with_the_same_content_is_no_change() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = start(folder.path());
        fs::write(folder.path().join(".new"), function("a")).unwrap();
        fs::rename(folder.path().join(".new"), folder.path().join("a.yaml")).unwrap();
        assert!(settle(&mut watch).is_none());
    }

    #[test]
    fn files_that_documents_refer_to_count() {
        let folder = tempfile::tempdir().unwrap();
        let key = |x: &str| format!("{{\"keys\": [{{\"kty\": \"OKP\", \"crv\": \"Ed25519\", \"x\": \"{x}\"}}]}}");
        fs::write(folder.path().join("keys.json"), key("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")).unwrap();
        let policy = "---\n{apiVersion: leno.dev/v1alpha1, kind: Policy, metadata: {name: p}, spec: {functions: [a], authentication: {issuers: [{issuer: i, jwks: {file: keys.json}}]}}}";
        fs::write(folder.path().join("a.yaml"), function("a") + policy).unwrap();
        let first = load(folder.path()).unwrap();
        let mut watch = Watch::new(folder.path(), &first, load);
        assert!(settle(&mut watch).is_none());
        fs::write(folder.path().join(".new"), key("PUAXw-hDiVqStwqnTRt-vJyYLM8uxJaMwM1V8Sr0Zgw")).unwrap();
        fs::rename(folder.path().join(".new"), folder.path().join("keys.json")).unwrap();
        let second = settle(&mut watch).unwrap().unwrap();
        let keys = |snapshot: &Snapshot| snapshot.function_config(&"default/a".parse().unwrap()).unwrap().keys;
        assert_ne!(keys(&first), keys(&second));
        assert_ne!(first.version(), second.version());
    }

    #[test]
    fn the_thread_tells_of_changes_and_ends() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.yaml"), function("a")).unwrap();
        let (sender, changes) = mpsc::channel();
        let snapshot = load(folder.path()).unwrap();
        let watcher = watch_every(Duration::from_millis(1), folder.path(), &snapshot, load, move |change| {
            drop(sender.send(change))
        })
        .unwrap();
        fs::write(folder.path().join("b.yaml"), function("b")).unwrap();
        assert_eq!(names(changes.recv().ok()), ["a", "b"]);
        drop(watcher);
        assert!(changes.recv().is_err(), "the thread has ended");
    }
}
