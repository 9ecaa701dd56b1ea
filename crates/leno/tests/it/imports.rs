//! Imports have one direction, also inside crates: the files of each crate import each other without
//! a cycle, and the modules of the proxy in their order. (Between crates, cargo ensures that.)
//!
//! A module may name its own children, because it consists of them. All other paths that begin with
//! `crate`, `super` or `self` count, in code and in the arguments of macros.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::buffer::{Cursor, TokenBuffer};
use syn::visit::{self, Visit};

/// The modules of the proxy: each may import those after it.
const MODULES: [&str; 5] = ["listener", "l4", "pipeline", "fetch", "state"];
/// Neither may import the other, despite their order.
const APART: [[&str; 2]; 1] = [["pipeline", "fetch"]];

/// Cycles that stay: the crate, a module that has all files of the cycle (empty: the crate), and the
/// reason.
const EXCEPTIONS: [(&str, &str, &str); 10] = [
    ("api", "control", "handlers are methods of `Service`, which owns the parts that they serve"),
    ("bench", "", "each study is one unit, and ships in no package"),
    ("config", "compile", "a text may contain templates and regular expressions, and these contain texts"),
    ("oci", "store", "an image keeps its disk open, and the disk lists the images in use"),
    ("proxy", "listener", "a listener starts the interceptor, which serves as the listener does"),
    ("proxy", "pipeline::judge", "outcomes of programs and of extensions contain each other"),
    ("proxy", "pipeline::pool", "an HTTP/2 connection is opened by the pool, and returns to it"),
    ("sandbox", "component", "the engine, a program and its host functions are one unit"),
    ("sandbox", "extension", "the engine, a plugin and its host functions are one unit"),
    ("sandbox", "microvm", "a snapshot is taken of the shell that it later starts"),
];

/// The files that each file imports, by the paths of their modules.
type Imports = BTreeMap<String, BTreeSet<String>>;

fn crates() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = [folder.to_owned(), folder.with_file_name("kubernetes")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut crates: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path().join("src")).collect();
    crates.retain(|sources| sources.is_dir());
    crates.sort();
    crates
}

#[test]
fn files_import_each_other_without_a_cycle() {
    let (mut wrong, mut excused, mut seen) = (Vec::new(), BTreeSet::new(), 0);
    for sources in crates() {
        let name = sources.parent().unwrap().file_name().unwrap().to_str().unwrap();
        let imports = imports(&sources);
        seen += imports.values().map(BTreeSet::len).sum::<usize>();
        for cycle in cycles(&imports) {
            let covers = |module: &str| cycle.iter().all(|file| is_in(file, module));
            match EXCEPTIONS.iter().find(|(of, module, _)| *of == name && covers(module)) {
                Some((_, module, _)) => drop(excused.insert((name.to_owned(), *module))),
                None => wrong.push(format!("{name}: {}", described(&imports, &cycle))),
            }
        }
    }
    for (name, module, _) in EXCEPTIONS {
        if !excused.contains(&(name.to_owned(), module)) {
            wrong.push(format!("{name}: {module} has no cycle any more"));
        }
    }
    assert!(seen > 500, "only {seen} imports were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_modules_of_the_proxy_import_in_their_order() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("proxy/src");
    let place = |module: &str| MODULES.iter().position(|known| *known == module);
    let top = |file: &str| file.split("::").next().unwrap_or_default().to_owned();
    let mut seen = BTreeMap::new();
    for (from, targets) in imports(&sources) {
        for to in targets.iter().filter(|to| top(to) != top(&from)) {
            seen.entry((top(&from), top(to))).or_insert_with(|| format!("{from} imports {to}"));
        }
    }
    let is_wrong = |(from, to): &(String, String)| {
        let (above, below) = (place(from), place(to));
        let apart = APART.iter().any(|pair| pair.contains(&from.as_str()) && pair.contains(&to.as_str()));
        above.is_none() || below.is_none() || above >= below || apart
    };
    let wrong: Vec<_> = seen.iter().filter(|(pair, _)| is_wrong(pair)).map(|(_, example)| example.as_str()).collect();
    assert!(seen.len() >= 4, "only {seen:?} were found");
    assert!(wrong.is_empty(), "the modules are {MODULES:?}, in this order\n{}", wrong.join("\n"));
}

#[test]
fn imports_in_any_form_and_cycles_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    fs::create_dir(folder.path().join("b")).unwrap();
    write("lib.rs", "mod a; mod b; mod c; mod d; use a::A;");
    write("a.rs", "use crate::{b::{inner::B, other}, c};");
    write("b.rs", "mod inner; use inner::B; pub fn f() { super::c::g(); }");
    write("b/inner.rs", "pub struct B(super::super::c::C);");
    write("c.rs", "// crate::a\n#[cfg(test)] mod tests { use crate::a::A; }\n#[cfg(test)] use crate::b;");
    write("d.rs", "mod nested { impl crate::c::C {} fn f() { call!({ more(b, crate::a::A) }); } }");
    let found = imports(folder.path());
    let names = |file: &str| found.get(file).map(|to| to.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(names("a"), Some(vec!["b", "b::inner", "c"]));
    assert_eq!([names("b"), names("b::inner"), names("c")], [Some(vec!["c"]), Some(vec!["c"]), None]);
    assert_eq!(names("d"), Some(vec!["a", "c"]));
    assert!(cycles(&found).is_empty());
    write("c.rs", "fn f() -> crate::a::A { loop {} }");
    let found = imports(folder.path());
    let cycle = ["a", "b", "b::inner", "c"].map(str::to_owned).into();
    assert_eq!(cycles(&found), [cycle].into());
    let text = described(&found, cycles(&found).first().unwrap());
    assert!(text.contains("a imports b, b::inner, c") && text.contains("c imports a"), "{text}");
}

/// The imports between the files of a crate, without tests. The crate's root is no file of a cycle:
/// it consists of all others.
fn imports(sources: &Path) -> Imports {
    let mut files = Vec::new();
    collect(sources, sources, &mut files);
    let known: BTreeSet<Vec<String>> = files.iter().map(|(module, _)| module.clone()).collect();
    let mut imports = Imports::new();
    for (module, file) in &files {
        let text = fs::read_to_string(sources.join(file)).unwrap();
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut paths = Paths { module: module.clone(), known: &known, seen: BTreeSet::new() };
        paths.visit_file(&parsed);
        paths.seen.retain(|target| !target.is_empty() && !target.starts_with(module));
        if !module.is_empty() && !paths.seen.is_empty() {
            imports.insert(module.join("::"), paths.seen.iter().map(|target| target.join("::")).collect());
        }
    }
    imports
}

/// Files with the paths of their modules; the root's is empty. Omits files of tests and of
/// fuzz targets.
fn collect(sources: &Path, folder: &Path, files: &mut Vec<(Vec<String>, PathBuf)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if ["tests", "testing", "fuzzing"].contains(&name) {
            continue;
        }
        if path.is_dir() {
            collect(sources, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let file = path.strip_prefix(sources).unwrap();
            let mut module: Vec<String> =
                file.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            if module.last().is_some_and(|last| last == "mod") || ["lib", "main"].map(String::from).contains(&module[0])
            {
                module.pop();
            }
            files.push((module, file.to_owned()));
        }
    }
}

/// Collects the files of the crate to which paths lead.
struct Paths<'a> {
    module: Vec<String>,
    known: &'a BTreeSet<Vec<String>>,
    seen: BTreeSet<Vec<String>>,
}

impl Paths<'_> {
    /// Notes the file to which a path with these segments leads.
    fn follow(&mut self, segments: &[String]) {
        let mut at: Option<Vec<String>> = None;
        for segment in segments {
            match (segment.as_str(), &mut at) {
                ("crate", _) => at = Some(Vec::new()),
                ("self", None) => at = Some(self.module.clone()),
                ("super", None) => at = Some(self.module[..self.module.len().saturating_sub(1)].to_vec()),
                ("super", Some(path)) => drop(path.pop()),
                (name, Some(path)) => path.push(name.to_owned()),
                (_, None) => return,
            }
        }
        let Some(mut path) = at else { return };
        while !self.known.contains(&path) && path.pop().is_some() {}
        self.seen.insert(path);
    }

    /// Follows the paths in a macro's arguments, which may be no valid code.
    fn scan(&mut self, mut at: Cursor<'_>) {
        let (mut segments, mut colons) = (Vec::new(), 0);
        while let Some((_, after)) = at.token_tree() {
            let separated = std::mem::take(&mut colons);
            if let Some((_, after)) = at.punct().filter(|(punct, _)| punct.as_char() == ':') {
                (colons, at) = (separated + 1, after);
                continue;
            }
            if separated != 2 {
                self.follow(&std::mem::take(&mut segments));
            }
            if let Some((ident, _)) = at.ident() {
                segments.push(ident.to_string());
            } else {
                self.follow(&std::mem::take(&mut segments));
                at.any_group().into_iter().for_each(|(inside, ..)| self.scan(inside));
            }
            at = after;
        }
        self.follow(&segments);
    }

    fn tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) => self.follow(&with(&name.ident)),
            syn::UseTree::Rename(name) => self.follow(&with(&name.ident)),
            syn::UseTree::Glob(_) => self.follow(before),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.scan(TokenBuffer::new2(call.tokens.clone()).begin());
        visit::visit_macro(self, call);
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            _ => &Vec::new(),
        };
        let is_test = |attribute: &syn::Attribute| {
            attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Ident>().is_ok_and(|word| word == "test")
        };
        if attributes.iter().any(is_test) {
            return;
        }
        match item {
            syn::Item::Use(item) => self.tree(&[], &item.tree),
            syn::Item::Mod(item) if item.content.is_some() => {
                self.module.push(item.ident.to_string());
                visit::visit_item_mod(self, item);
                self.module.pop();
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.follow(&segments);
        visit::visit_path(self, path);
    }
}

/// Sets of files that import each other in a cycle.
fn cycles(imports: &Imports) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&String, _> = imports.keys().map(|file| (file, reached(imports, file))).collect();
    let returns = |file: &String, other: &String| reached.get(other).is_some_and(|back| back.contains(file));
    let cycle = |file| reached[file].iter().filter(|other| returns(file, other)).cloned().collect();
    imports.keys().map(cycle).filter(|cycle: &BTreeSet<String>| !cycle.is_empty()).collect()
}

/// All files that a file imports, and those that these import, and so on.
fn reached(imports: &Imports, file: &str) -> BTreeSet<String> {
    let (mut found, mut next) = (BTreeSet::new(), vec![file]);
    while let Some(file) = next.pop() {
        next.extend(
            imports.get(file).into_iter().flatten().filter(|to| found.insert((*to).clone())).map(String::as_str),
        );
    }
    found
}

/// The imports of a cycle, in words.
fn described(imports: &Imports, cycle: &BTreeSet<String>) -> String {
    let words = |file: &String| {
        let to: Vec<&str> = imports[file].intersection(cycle).map(String::as_str).collect();
        format!("{file} imports {}", to.join(", "))
    };
    cycle.iter().map(words).collect::<Vec<_>>().join("; ")
}

/// Whether a file is a module, or below it.
fn is_in(file: &str, module: &str) -> bool {
    module.is_empty() || file.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}
