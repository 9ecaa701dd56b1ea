//! Every command line of `leno` in README.md and docs/ is one that this program accepts; make
//! targets, packages and files in their blocks exist.

use crate::{Cli, verb_first};
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use leno_testkit::documentation::{commands, repository, simple_commands};
use std::ffi::OsString;
use std::fs;

/// Blocks that `tests/it/documentation.rs` runs word for word: page, and first line.
const RUN: &[(&str, &str)] = &[
    ("README.md", "leno check"),
    ("docs/start.md", "leno check"),
    ("docs/start.md", "curl -i http"),
    ("docs/start.md", "leno observe"),
    ("docs/start.md", "curl -i -X"),
    ("docs/routes.md", "leno check"),
    ("docs/routes.md", "curl"),
    ("docs/nodes.md", "mkdir"),
    ("docs/admin.md", "leno get instances"),
    ("docs/nodes.md", "cp leno-new"),
    ("docs/operations/upgrade.md", "cp leno-new"),
    ("docs/benchmarks.md", "sudo sh"),
    ("docs/control.md", "curl --cacert"),
    ("docs/extensions.md", "cargo build"),
    ("docs/operations/install.md", "make setup"),
    ("docs/operations/install.md", "cat"),
    ("docs/operations/uninstall.md", "leno nodes"),
];

/// Blocks that are neither run nor parsed: page, first line, and the reason. At most one in twenty.
const EXCEPTED: &[(&str, &str, &str)] = &[];

/// In the text of pages, but not for users.
const NO_COMMANDS: [&str; 1] = ["leno jailer"]; // the name of a process, as `ps` shows it

/// What stands in the documentation for a word of a closed list.
fn filled_in(word: &str) -> OsString {
    match word {
        "COMMAND" => "get".into(),
        "KIND" => "function".into(),
        _ => word.split('|').next().unwrap_or_default().replace('…', "x").into(),
    }
}

fn parse(words: &[String]) -> Result<(), clap::Error> {
    Cli::try_parse_from(verb_first(words.iter().map(|word| filled_in(word)))).map(drop)
}

#[test]
fn every_command_line_of_a_block_is_accepted() {
    let mut refused = Vec::new();
    let mut count = 0;
    for block in commands().0 {
        for line in &block.lines {
            for words in simple_commands(line).iter().filter(|words| words[0] == "leno") {
                count += 1;
                match parse(words) {
                    Err(error) if error.use_stderr() => {
                        refused.push(format!("{}:{}: {}: {error}", block.page, block.line, words.join(" ")));
                    }
                    _ => {}
                }
            }
        }
    }
    println!("{count} command lines of leno in blocks");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// A sentence may leave out arguments, but has no verbs and options that do not exist.
#[test]
fn every_verb_and_option_in_a_sentence_exists() {
    let mut refused = Vec::new();
    let mut count = 0;
    for mention in commands().1 {
        if NO_COMMANDS.contains(&mention.text.as_str()) {
            continue;
        }
        for words in simple_commands(&mention.text).iter().filter(|words| words[0] == "leno") {
            count += 1;
            if let Err(error) = parse(words)
                && error.use_stderr()
                && !leaves_out_arguments(&error)
            {
                refused.push(format!("{}:{}: {}: {error}", mention.page, mention.line, mention.text));
            }
        }
    }
    println!("{count} command lines of leno in sentences");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

fn leaves_out_arguments(error: &clap::Error) -> bool {
    match error.kind() {
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
        ErrorKind::InvalidValue => {
            matches!(error.get(ContextKind::InvalidValue), Some(ContextValue::String(value)) if value.is_empty())
        }
        _ => false,
    }
}

/// The faults of a command that can be known without running it;
/// `None`: nothing is known of this program.
fn faults(words: &[String]) -> Option<Vec<String>> {
    let root = repository();
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let arguments = &words[1..];
    let after = |option| arguments.windows(2).filter(move |pair| pair[0] == option).map(|pair| &pair[1]);
    Some(match words[0].as_str() {
        "leno" | "target/dist/leno-bench" => Vec::new(), // parsed by tests of their crates
        // Other people's programs. The tests of kubernetes/cluster run the same steps.
        "helm" | "kubectl" => Vec::new(),
        "make" => {
            let (makefile, targets) = (read("Makefile"), arguments.iter().filter(|word| !word.contains('=')));
            let missing = targets.filter(|target| !makefile.contains(&format!("\n{target}:")));
            missing.map(|target| format!("no target {target}")).collect()
        }
        "cargo" => {
            let (manifest, lock) = (read("Cargo.toml"), read("Cargo.lock"));
            let profiles = after("--profile").filter(|name| !manifest.contains(&format!("[profile.{name}]")));
            let packages = after("-p").filter(|name| !lock.contains(&format!("name = \"{name}\"\n")));
            profiles.chain(packages).map(|name| format!("no profile or package {name}")).collect()
        }
        _ => return None,
    })
}

/// Words that name files of the repository.
fn missing_files(words: &[String]) -> Vec<String> {
    let root = repository();
    let folders =
        ["examples/", "docs/", "scripts/", "conformance/", "packaging/", "sdk/", "crates/", "guest/", "kubernetes/"];
    let named = words.iter().filter(|word| folders.iter().any(|folder| word.starts_with(folder)));
    named.filter(|word| !root.join(word).exists()).map(|word| format!("no file {word}")).collect()
}

#[test]
fn every_block_is_run_or_parsed_or_excepted() {
    let (mut run, mut parsed, mut excepted, mut wrong) = (0, 0, 0, Vec::new());
    let blocks = commands().0;
    for block in &blocks {
        let at = |page: &str, line: &str| block.page == page && block.lines[0].starts_with(line);
        let commands: Vec<Vec<String>> = block.lines.iter().flat_map(|line| simple_commands(line)).collect();
        let known: Vec<_> = commands.iter().map(|words| faults(words)).collect();
        let place = format!("{}:{}", block.page, block.line);
        let faults = known.iter().flatten().flatten().cloned();
        wrong.extend(
            faults
                .chain(commands.iter().flat_map(|words| missing_files(words)))
                .map(|fault| format!("{place}: {fault}")),
        );
        if RUN.iter().any(|(page, line)| at(page, line)) {
            run += 1;
        } else if let Some((.., reason)) = EXCEPTED.iter().find(|(page, line, _)| at(page, line)) {
            println!("{place} is excepted: {reason}");
            excepted += 1;
        } else if let Some(unknown) = known.iter().position(Option::is_none) {
            wrong.push(format!("{place}: neither run nor excepted: {}", commands[unknown].join(" ")));
        } else {
            parsed += 1;
        }
    }
    println!("{} blocks: {run} run, {parsed} parsed, {excepted} excepted", blocks.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(run, RUN.len(), "each block that is said to be run exists");
    assert_eq!(excepted, EXCEPTED.len(), "each excepted block exists");
    assert!(excepted * 20 <= blocks.len(), "at most one block in twenty is excepted");
}
