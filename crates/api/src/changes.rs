//! Changes of documents, as users see them: who changed what, and the difference of the texts.

use crate::control::types::Action;
use leno_config::{Document, DocumentId};
use serde::{Deserialize, Serialize};
use similar::TextDiff;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use utoipa::ToSchema;

/// Longest difference of one document, in bytes.
const MOST_DIFFERENCE: usize = 32 << 10;
/// Bounds of the differences of one change: their bytes, and the time of the search for short ones.
const MOST_OF_CHANGE: usize = 256 << 10;
const SEARCH: Duration = Duration::from_millis(500);
/// Bounds of the changes of files that a process remembers.
const MOST_RECORDS: usize = 200;
const MOST_BYTES: usize = 1 << 20;
/// Who changes the documents of `leno up`.
const FILES: &str = "files";

/// A change of documents that were applied together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChangeRecord {
    /// When, in seconds since 1970.
    pub time: f64,
    /// The revision that it made. Of `leno up`: the number of the change since the start.
    pub revision: u64,
    /// Who: a token, or `files` of `leno up`.
    pub by: String,
    /// The documents, in the order of the change.
    pub changes: Vec<ChangedDocument>,
    /// Recorded requests that the dry run before it decided differently; nothing: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdicts: Option<ChangedVerdicts>,
}

/// A document of a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChangedDocument {
    /// `Function demo/shop`.
    pub what: String,
    /// The kind of change.
    pub action: Action,
    /// The unified difference of the texts; nothing: it is not kept, because the document is a
    /// StoredSecret, or the differences of the change are too large or take too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
}

/// Recorded requests that a change decides differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedVerdicts {
    /// Requests that were judged again.
    pub judged: u64,
    /// Of those, which were allowed and are denied now.
    pub newly_denied: u64,
    /// Of those, which were denied and are allowed now.
    pub newly_allowed: u64,
}

impl ChangedVerdicts {
    /// The sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            judged: self.judged + other.judged,
            newly_denied: self.newly_denied + other.newly_denied,
            newly_allowed: self.newly_allowed + other.newly_allowed,
        }
    }
}

/// The bytes and the time that the differences of one change may still take.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: usize,
    until: Instant,
}

impl Budget {
    /// The budget of a change whose differences are computed from now on.
    pub(crate) fn of_change() -> Self {
        Self { bytes: MOST_OF_CHANGE, until: Instant::now() + SEARCH }
    }

    /// The unified difference of a document's texts, cut to its bound; `None`: it may not be kept,
    /// or the budget is used up.
    pub(crate) fn difference(&mut self, id: &DocumentId, before: Option<&str>, after: Option<&str>) -> Option<String> {
        if id.kind == "StoredSecret" || self.bytes == 0 || Instant::now() >= self.until {
            return None;
        }
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        let difference = TextDiff::configure().deadline(self.until).diff_lines(before, after);
        let name = id.to_string();
        let mut text = difference.unified_diff().header(&name, &name).to_string();
        if text.len() > MOST_DIFFERENCE {
            text.truncate(text.floor_char_boundary(MOST_DIFFERENCE));
            text.push_str("\n… the rest of the difference is not kept\n");
        }
        // Further differences would be computed in vain, so the first one that does not fit is the
        // last one.
        let left = self.bytes.checked_sub(text.len());
        self.bytes = left.unwrap_or_default();
        left.map(|_| text)
    }
}

type Texts = BTreeMap<DocumentId, String>;

/// The changes of the files of `leno up` since its start, in memory.
#[derive(Debug)]
pub struct FileChanges {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    texts: Texts,
    count: u64,
    records: VecDeque<ChangeRecord>,
}

impl FileChanges {
    /// Begins with the documents of these files.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), state: Mutex::new(State { texts: read(path), ..State::default() }) }
    }

    /// Records the difference of the files to the last ones. Reads the files.
    pub fn record(&self) {
        let now = read(&self.path);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut state.texts, now);
        let changes = compare(&before, &state.texts);
        if changes.is_empty() {
            return;
        }
        state.count += 1;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (time, revision, by) = (since.as_secs_f64(), state.count, FILES.to_owned());
        state.records.push_back(ChangeRecord { time, revision, by, changes, verdicts: None });
        while state.records.len() > MOST_RECORDS || state.records.iter().map(bytes).sum::<usize>() > MOST_BYTES {
            state.records.pop_front();
        }
    }

    /// The changes, latest first.
    pub fn latest(&self) -> Vec<ChangeRecord> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.records.iter().rev().cloned().collect()
    }
}

/// The documents of files, without those that cannot be read alone.
fn read(path: &Path) -> Texts {
    let files = leno_config::texts(path).unwrap_or_default();
    let documents = files.iter().filter_map(|(file, text)| Document::read(file, text).ok()).flatten();
    documents.map(|document| (document.id().clone(), document.text().to_owned())).collect()
}

fn compare(before: &Texts, after: &Texts) -> Vec<ChangedDocument> {
    let mut names: Vec<&DocumentId> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    let mut budget = Budget::of_change();
    let changed = names.into_iter().filter_map(|id| {
        let (old, new) = (before.get(id), after.get(id));
        let action = match (old, new) {
            (None, _) => Action::Created,
            (_, None) => Action::Deleted,
            (old, new) if old == new => return None,
            _ => Action::Changed,
        };
        let diff = budget.difference(id, old.map(String::as_str), new.map(String::as_str));
        Some(ChangedDocument { what: id.to_string(), action, diff })
    });
    changed.collect()
}

fn bytes(record: &ChangeRecord) -> usize {
    let of = |changed: &ChangedDocument| changed.what.len() + changed.diff.as_ref().map_or(0, String::len);
    record.changes.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(kind: &str, name: &str, spec: &str) -> String {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}, namespace: demo}}\nspec:\n{spec}\n"
        )
    }

    #[test]
    fn changes_of_files_are_told_by_document_and_without_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text).unwrap();
        write("shop.yaml", &document("Function", "shop", "  command: [\"true\"]"));
        let changes = FileChanges::new(folder.path());
        changes.record();
        assert!(changes.latest().is_empty());

        write("shop.yaml", &document("Function", "shop", "  command: [\"false\"]"));
        write("secret.yaml", &document("StoredSecret", "db", "  stringData: {password: hunter2}"));
        changes.record();
        write("secret.yaml", "");
        changes.record();
        let [second, first] = &changes.latest()[..] else { panic!("{:?}", changes.latest()) };
        assert_eq!((first.revision, second.revision, &*first.by), (1, 2, "files"));
        let told: Vec<_> = first.changes.iter().map(|changed| (&*changed.what, changed.action)).collect();
        assert_eq!(told, [("Function demo/shop", Action::Changed), ("StoredSecret demo/db", Action::Created)]);
        let difference = first.changes[0].diff.as_ref().unwrap();
        assert!(difference.contains("-  command: [\"true\"]\n+  command: [\"false\"]"), "{difference}");
        assert_eq!(second.changes[0].action, Action::Deleted);
        assert!(!format!("{:?}", changes.latest()).contains("hunter2"));
    }

    #[test]
    fn a_difference_is_bounded() {
        let id = DocumentId { kind: "Function".to_owned(), namespace: "a".to_owned(), name: "b".to_owned() };
        let text: String = (0..20_000).map(|line| format!("line {line} ü\n")).collect();
        let kept = Budget::of_change().difference(&id, None, Some(&text)).unwrap();
        assert!(kept.len() < MOST_DIFFERENCE + 100 && kept.ends_with("is not kept\n"), "{}", kept.len());
    }

    #[test]
    fn differences_end_with_the_bytes_or_the_time_of_their_change() {
        let id = |name: usize| DocumentId { kind: "Function".into(), namespace: "a".into(), name: name.to_string() };
        let text = "x\n".repeat(MOST_DIFFERENCE);
        let until = Instant::now() + Duration::from_secs(3600);
        let mut budget = Budget { bytes: MOST_OF_CHANGE, until };
        let kept: Vec<bool> = (0..20).map(|name| budget.difference(&id(name), None, Some(&text)).is_some()).collect();
        let most = MOST_OF_CHANGE / MOST_DIFFERENCE;
        assert!(kept[..most - 1].iter().all(|kept| *kept) && kept[most..].iter().all(|kept| !kept), "{kept:?}");
        // Later documents are not even compared, although a short difference would fit.
        assert_eq!(budget.difference(&id(20), None, Some("x\n")), None);
        let mut late = Budget { bytes: MOST_OF_CHANGE, until: Instant::now() };
        assert_eq!(late.difference(&id(0), None, Some("x\n")), None);
        assert_eq!(late.bytes, MOST_OF_CHANGE);
    }
}
