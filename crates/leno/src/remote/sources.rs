//! The documents of a command, as requests have them: without files of this machine.

use crate::screen::shown;
use anyhow::{Context, Result, ensure};
use leno_api::control::types::{File, Name};
use leno_config::{Document, Problem};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The documents of a command.
#[derive(clap::Args)]
pub(crate) struct Sources {
    /// A YAML or JSON file, a folder of them, or `-` for standard input.
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    file: Vec<PathBuf>,
}

/// A text with documents, and its file; `None`: standard input.
type Text = (Option<PathBuf>, String);

/// Texts of documents that need no file of this machine.
#[derive(Default)]
pub(crate) struct SelfContained {
    pub files: Vec<File>,
    /// One line for each file whose content is now in a text.
    pub inlined: Vec<String>,
    /// Warnings of objects that are in no text, because the mesh does not read them.
    pub skipped: Vec<Problem>,
}

impl Sources {
    /// The texts as they are, of the files of a command.
    pub(super) fn texts(paths: &[PathBuf]) -> Result<Vec<Text>> {
        let mut texts = Vec::new();
        for path in paths {
            if path == Path::new("-") {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).context("standard input is no text")?;
                texts.push((None, text));
            } else {
                let of_path = leno_config::texts(path).map_err(told)?;
                texts.extend(of_path.into_iter().map(|(path, text)| (Some(path), text)));
            }
        }
        Ok(texts)
    }

    /// The texts for a request, with the content of files that documents can have in them; or all
    /// problems of paths that a control plane would refuse.
    pub(super) fn read(&self) -> Result<Result<SelfContained, Vec<Problem>>> {
        let texts = Self::texts(&self.file)?;
        let all = match SelfContained::new(&texts) {
            Ok(all) => all,
            Err(problems) => return Ok(Err(problems)),
        };
        let bytes: usize = all.files.iter().map(|file| file.text.len()).sum();
        ensure!(
            bytes < leno_api::control::LARGEST_BODY,
            "{bytes} bytes are too much for one request; apply them in parts"
        );
        let problems = all.path_problems();
        Ok(if problems.is_empty() { Ok(all) } else { Err(problems) })
    }
}

impl SelfContained {
    /// The texts of a file, or of those in a folder.
    pub(crate) fn of_path(path: &Path) -> Result<Self, Vec<Problem>> {
        let texts = leno_config::texts(path)?;
        Self::new(&texts.into_iter().map(|(path, text)| (Some(path), text)).collect::<Vec<_>>())
    }

    fn new(texts: &[Text]) -> Result<Self, Vec<Problem>> {
        let (mut all, mut problems) = (Self::default(), Vec::new());
        for (path, text) in texts {
            let (text, skipped) = leno_config::without_skipped(name_of(path), text);
            all.skipped.extend(skipped);
            match leno_config::inline_files(path.as_deref(), name_of(path), &text) {
                Ok((text, inlined)) => {
                    all.files.push(File { name: name_of(path).display().to_string(), text });
                    all.inlined.extend(inlined.iter().map(|inlined| {
                        let Problem { file, line, field, .. } = &inlined.place;
                        format!("{}:{line} {field}: inlined {}", file.display(), inlined.path.display())
                    }));
                }
                Err(found) => problems.extend(found),
            }
        }
        if problems.is_empty() { Ok(all) } else { Err(problems) }
    }

    /// Prints the warnings of objects that are in no text.
    pub(crate) fn print_skipped(&self) {
        self.skipped.iter().for_each(|problem| eprintln!("warning: {}", shown(&problem.to_string())));
    }

    /// Prints the same, and the files whose content is now in a text.
    pub(crate) fn print_inlined(&self) {
        self.print_skipped();
        self.inlined.iter().for_each(|line| println!("{}", shown(line)));
    }

    /// Problems that do not depend on stored documents.
    fn path_problems(&self) -> Vec<Problem> {
        let texts = self.files.iter().map(|file| (Path::new(&file.name), &*file.text));
        Document::read_all(texts).map(|documents| leno_config::path_problems(&documents)).unwrap_or_default()
    }
}

/// The text of a file without objects that the mesh does not read.
fn kept(path: &Option<PathBuf>, text: &str) -> File {
    File { name: name_of(path).display().to_string(), text: leno_config::without_skipped(name_of(path), text).0 }
}

fn name_of(path: &Option<PathBuf>) -> &Path {
    path.as_deref().unwrap_or(Path::new("standard input"))
}

/// The names of all documents in these files of a command.
pub(super) fn names_in(paths: &[PathBuf]) -> Result<Vec<Name>> {
    let texts = Sources::texts(paths)?;
    names(&texts.iter().map(|(path, text)| kept(path, text)).collect::<Vec<_>>())
}

/// The names of all documents in these files.
pub(super) fn names(files: &[File]) -> Result<Vec<Name>> {
    let mut names = Vec::new();
    for file in files {
        let documents = Document::read(Path::new(&file.name), &file.text).map_err(told)?;
        names.extend(documents.iter().map(|document| Name::from(document.id())));
    }
    Ok(names)
}

fn told(problems: Vec<Problem>) -> anyhow::Error {
    let lines: Vec<String> = problems.iter().map(|problem| shown(&problem.to_string()).into_owned()).collect();
    anyhow::anyhow!("{}", lines.join("\n"))
}
