//! All documents of a mesh, read and not yet compiled.

use crate::collection::Document;
use crate::compile::{self, Documents};
use crate::counterpart;
use crate::effort::Effort;
use crate::folder::{self, DocumentFiles};
use crate::load::{broken_document, parse, read, version};
use crate::problem::{Origin, Problem};
use crate::snapshot::{Read, Snapshot};
use crate::translation::TranslationRow;
use crate::yaml;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// All documents of a mesh. `leno_translate::translate` replaces those of other projects before the
/// set is compiled.
#[derive(Default)]
pub struct DocumentSet {
    /// The documents.
    pub documents: Documents,
    /// The problems that were found so far.
    pub problems: RefCell<Vec<Problem>>,
    /// The report of the translation.
    pub translations: Vec<TranslationRow>,
    /// The files' texts; `None`: the documents are from requests.
    texts: Option<Vec<(PathBuf, String)>>,
    read: Read,
}

impl DocumentSet {
    /// The documents of a file, or of all `*.yaml` and `*.yml` files of a folder and of the folders
    /// in it, in the order of their names. Links are followed, names that begin with a dot are not
    /// read.
    pub fn of_path(path: &Path) -> Self {
        let DocumentFiles { files, problems, hidden, others } = folder::find(path);
        let (texts, problems) = read(files, problems);
        let folder = path.is_dir().then(|| path.to_owned());
        let mut set = Self::of_texts(texts, problems, folder);
        (set.read.hidden, set.read.others) = (hidden, others);
        set
    }

    /// The documents of one text; `file` is its name in problems, and its folder the base of relative
    /// paths in the text.
    pub fn of_text(file: &Path, text: &str) -> Self {
        Self::of_texts(vec![(file.to_owned(), text.to_owned())], Vec::new(), None)
    }

    /// Documents that were read from requests. They are compiled until the effort is over.
    pub fn of_documents<'a>(all: impl IntoIterator<Item = &'a Document>, effort: &Effort) -> Self {
        let mut documents = Documents { effort: effort.clone(), ..Documents::default() };
        for document in all {
            document.parsed().clone().add_to(&mut documents);
        }
        let read = Read { documents: documents.counts(), ..Read::default() };
        Self { documents, read, ..Self::default() }
    }

    fn of_texts(texts: Vec<(PathBuf, String)>, problems: Vec<Problem>, folder: Option<PathBuf>) -> Self {
        let mut documents = Documents { incomplete: !problems.is_empty(), folder, ..Documents::default() };
        let problems = RefCell::new(problems);
        for (file, text) in &texts {
            for document in yaml::documents(text) {
                let before = problems.borrow().len();
                match document {
                    Ok(node) => {
                        if let Some(warning) = counterpart::skipped(file, &node) {
                            documents.skipped.push(warning);
                        } else if let Some(document) = parse(file, node, Origin::File, &problems) {
                            document.add_to(&mut documents);
                        }
                    }
                    Err(error) => problems.borrow_mut().push(broken_document(file, error)),
                }
                documents.incomplete |= problems.borrow().len() > before;
            }
        }
        let counts = documents.counts();
        if let ([(file, _), ..], false) = (&texts[..], documents.incomplete)
            && counts.iter().all(|(_, count)| *count == 0)
        {
            problems.borrow_mut().push(Problem::of_file(file, "there is no document", "add a Function to begin with"));
        }
        let read = Read { files: texts.len(), documents: counts, ..Read::default() };
        Self { documents, problems, read, texts: Some(texts), translations: Vec::new() }
    }

    /// Checks and compiles the documents. If two exclude each other, the later one is reported.
    ///
    /// # Errors
    /// All problems, ordered by file and line. No part of the documents can be used then. If the
    /// effort is used up, the problem says so.
    pub fn compile(self) -> Result<Snapshot, Vec<Problem>> {
        let Self { documents, problems, translations, texts, read } = self;
        for foreign in &documents.foreign {
            let message = format!("`{}` documents have to be translated first", foreign.kind.name());
            foreign.scope(&problems).field("kind").problem(message, "write a Policy document instead");
        }
        let mut snapshot = compile::compile(&documents, &problems);
        let mut problems = problems.into_inner();
        if documents.effort.is_over() {
            let problem =
                Problem::of_file(Path::new("documents"), "checking them took too long", "apply them in parts");
            return Err(vec![problem]);
        }
        if !problems.is_empty() {
            problems.sort();
            problems.dedup();
            return Err(problems);
        }
        (snapshot.translations, snapshot.read) = (translations, read);
        if let Some(texts) = texts {
            snapshot.version = version(&texts, &snapshot.inputs);
            snapshot.inputs.splice(0..0, texts.into_iter().map(|(file, _)| file));
        }
        Ok(snapshot)
    }
}

impl Snapshot {
    /// Compiles documents that were read from requests, of which none is of another project.
    ///
    /// # Errors
    /// As [`DocumentSet::compile`].
    pub fn of_documents<'a>(all: impl IntoIterator<Item = &'a Document>) -> Result<Self, Vec<Problem>> {
        DocumentSet::of_documents(all, &Effort::unbounded()).compile()
    }
}

/// Paths in these documents of requests that every control plane refuses, whatever documents it has.
pub fn path_problems(documents: &[Document]) -> Vec<Problem> {
    let mut problems = Snapshot::of_documents(documents).err().unwrap_or_default();
    problems.retain(Problem::is_of_a_request_path);
    problems
}

/// Loads the documents of a path, as [`DocumentSet::of_path`] reads them. Documents of other projects
/// are refused: `leno_translate::load` translates them.
///
/// # Errors
/// As [`DocumentSet::compile`].
pub fn load(path: &Path) -> Result<Snapshot, Vec<Problem>> {
    DocumentSet::of_path(path).compile()
}

/// Loads one text, as [`DocumentSet::of_text`] reads it.
///
/// # Errors
/// As [`load`].
pub fn load_text(file: &Path, text: &str) -> Result<Snapshot, Vec<Problem>> {
    DocumentSet::of_text(file, text).compile()
}
