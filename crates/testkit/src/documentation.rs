//! The commands of README.md and of the pages in docs/.

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};
use std::fs;
use std::path::{Path, PathBuf};

/// A block of commands: marked as `sh` or `console`, or indented.
pub struct Block {
    pub page: String,
    pub line: usize,
    /// All of it, as a shell reads it: without prompts and output.
    pub script: String,
    /// Command lines, without prompts, comments, output and the content of here-documents.
    pub lines: Vec<String>,
}

/// A command in the text of a page.
pub struct Mention {
    pub page: String,
    pub line: usize,
    pub text: String,
}

/// The folder of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All blocks of commands, and all mentions of `leno` with arguments.
pub fn commands() -> (Vec<Block>, Vec<Mention>) {
    let root = repository();
    let mut pages = vec![root.join("README.md")];
    for folder in ["docs", "docs/operations"] {
        let mut found: Vec<_> = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
        found.sort();
        pages.append(&mut found);
    }
    let (mut blocks, mut mentions) = (Vec::new(), Vec::new());
    for path in pages {
        let page = path.strip_prefix(&root).unwrap().display().to_string();
        read(&page, &fs::read_to_string(&path).unwrap(), &mut blocks, &mut mentions);
    }
    (blocks, mentions)
}

fn read(page: &str, text: &str, blocks: &mut Vec<Block>, mentions: &mut Vec<Mention>) {
    let mut open: Option<(CodeBlockKind<'_>, String)> = None;
    for (event, range) in Parser::new_ext(text, pulldown_cmark::Options::ENABLE_TABLES).into_offset_iter() {
        let (page, line) = (page.to_owned(), text[..range.start].matches('\n').count() + 1);
        match event {
            Event::Start(Tag::CodeBlock(kind)) => open = Some((kind, String::new())),
            Event::Text(part) => {
                if let Some((_, content)) = &mut open {
                    content.push_str(&part);
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                let (kind, content) = open.take().unwrap();
                let script = match &kind {
                    CodeBlockKind::Fenced(language) if &**language == "console" => typed(&content),
                    CodeBlockKind::Fenced(language) if &**language == "sh" => content,
                    CodeBlockKind::Indented if is_command(&content) => content,
                    _ => continue,
                };
                let lines = shell_lines(&script);
                blocks.push(Block { page, line, script, lines });
            }
            Event::Code(code) if code.starts_with("leno ") => {
                mentions.push(Mention { page, line, text: code.replace('\n', " ") });
            }
            _ => {}
        }
    }
}

/// The commands of a block with prompts.
fn typed(content: &str) -> String {
    content.lines().filter_map(|line| line.strip_prefix("$ ")).fold(String::new(), |text, line| text + line + "\n")
}

/// An indented block has no language: its first word tells whether it is commands, output or YAML.
fn is_command(content: &str) -> bool {
    let first = content.split_whitespace().next().unwrap_or_default();
    ["leno", "make", "curl", "cargo", "cp", "sudo", "systemctl", "apt-get", "sh"].contains(&first)
}

fn shell_lines(content: &str) -> Vec<String> {
    let (content, mut lines) = (content.replace("\\\n", " "), Vec::new());
    let mut rest = content.lines();
    while let Some(line) = rest.next() {
        if let Some((_, end)) = line.split_once("<<") {
            rest.by_ref().find(|line| *line == end.trim());
        }
        if !simple_commands(line).is_empty() {
            lines.push(line.trim().to_owned());
        }
    }
    lines
}

/// The words of each simple command of a line: without operators and redirections.
pub fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let words = shlex::split(line).unwrap_or_else(|| panic!("a quote is open: {line}"));
    let mut commands = vec![Vec::new()];
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "|" | "&&" | "||" | ";" | "&" => commands.push(Vec::new()),
            ">" | ">>" | "<" => drop(words.next()),
            _ => commands.last_mut().unwrap().push(word),
        }
    }
    commands.retain(|command| !command.is_empty());
    commands
}
