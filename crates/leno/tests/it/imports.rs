//! Imports have one direction, also inside crates: the modules at the top of each crate import each
//! other without a cycle, and the modules of the proxy in their order. (Between crates, cargo
//! ensures that.)

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// The modules of the proxy: each may import those after it.
const ROOMS: [&str; 5] = ["listener", "l4", "pipeline", "fetch", "state"];
/// Neither may import the other, despite their order.
const APART: [[&str; 2]; 1] = [["pipeline", "fetch"]];

/// Imports from module to module, each with an example of a place.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

fn crates() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut crates: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path().join("src")).collect();
    crates.retain(|sources| sources.is_dir());
    crates.sort();
    crates
}

#[test]
fn modules_import_each_other_without_a_cycle() {
    let mut cycles = Vec::new();
    let mut seen = 0;
    for sources in crates() {
        let imports = imports(&sources);
        seen += imports.values().map(BTreeMap::len).sum::<usize>();
        cycles.extend(cycle(&imports).map(|cycle| format!("{}: {cycle}", sources.display())));
    }
    assert!(seen > 200, "only {seen} imports were found");
    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
}

#[test]
fn the_rooms_of_the_proxy_import_in_their_order() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("proxy/src");
    let imports = imports(&sources);
    let place = |room: &str| ROOMS.iter().position(|known| *known == room);
    let mut wrong = Vec::new();
    for (from, targets) in &imports {
        for (to, seen) in targets {
            let (above, below) = (place(from), place(to));
            let apart = APART.iter().any(|pair| pair.contains(&from.as_str()) && pair.contains(&to.as_str()));
            if above.is_none() || below.is_none() || above >= below || apart {
                wrong.push(format!("{from} imports {to}: {seen}"));
            }
        }
    }
    assert!(imports.len() >= 3, "only {:?} were found", imports.keys());
    assert!(wrong.is_empty(), "the rooms are {ROOMS:?}, in this order\n{}", wrong.join("\n"));
}

#[test]
fn a_cycle_and_what_is_written_in_any_form_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    fs::create_dir(folder.path().join("b")).unwrap();
    write("lib.rs", "mod a; mod b; mod c; mod d; use a::A;");
    write("a.rs", "use crate::{b::{inner::B, other}, c};");
    write("b.rs", "mod inner; pub fn f() { super::c::g(); }");
    write("b/inner.rs", "pub struct B(super::super::c::C);");
    write("c.rs", "// crate::a\n#[cfg(test)] mod tests { use crate::a::A; }\n#[cfg(test)] use crate::b;");
    write("d.rs", "mod nested { impl crate::c::C {} }");
    let found = imports(folder.path());
    let names = |module: &str| found.get(module).map(|to| to.keys().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(
        [names("a"), names("b"), names("c"), names("d")],
        [Some(vec!["b", "c"]), Some(vec!["c"]), None, Some(vec!["c"])]
    );
    assert_eq!(cycle(&found), None);
    write("c.rs", "fn f() -> crate::a::A { todo!() }");
    let cycle = cycle(&imports(folder.path())).unwrap();
    assert!(cycle.contains("a imports b") || cycle.contains("a imports c"), "{cycle}");
    assert!(cycle.contains("c imports a: c.rs"), "{cycle}");
}

/// The imports between the modules at the top of a crate, tests aside.
fn imports(sources: &Path) -> Imports {
    let mut files = Vec::new();
    collect(sources, sources, &mut files);
    let tops: BTreeSet<String> = files.iter().filter_map(|(path, _)| path.first().cloned()).collect();
    let mut imports = Imports::new();
    for (path, file) in &files {
        let Some(top) = path.first() else { continue };
        let mut seen = Vec::new();
        let text = fs::read_to_string(sources.join(file)).unwrap();
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Paths { module: path.clone(), seen: &mut seen }.visit_file(&parsed);
        for target in seen.into_iter().filter(|target| target != top && tops.contains(target)) {
            imports.entry(top.clone()).or_default().entry(target).or_insert_with(|| file.display().to_string());
        }
    }
    imports
}

/// Files with the paths of their modules; the root's is empty. Omits files of tests.
fn collect(sources: &Path, folder: &Path, files: &mut Vec<(Vec<String>, PathBuf)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if ["tests", "testing"].contains(&name) {
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

/// Collects the modules at the top of the crate that paths begin with.
struct Paths<'a> {
    module: Vec<String>,
    seen: &'a mut Vec<String>,
}

impl Paths<'_> {
    /// Notes the module to which a path with these segments leads, if it is known and another one.
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
        self.seen.extend(at.and_then(|path| path.into_iter().next()));
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

/// A cycle, in words.
fn cycle(imports: &Imports) -> Option<String> {
    fn search<'a>(imports: &'a Imports, path: &mut Vec<&'a str>, done: &mut BTreeSet<&'a str>) -> Option<String> {
        let at = *path.last()?;
        for to in imports.get(at).into_iter().flat_map(BTreeMap::keys) {
            if let Some(begin) = path.iter().position(|module| module == to) {
                let round = path[begin..].iter().copied().chain([to.as_str()]).collect::<Vec<_>>();
                let words = round
                    .windows(2)
                    .map(|pair| format!("{} imports {}: {}", pair[0], pair[1], imports[pair[0]][pair[1]]));
                return Some(words.collect::<Vec<_>>().join("; "));
            }
            if !done.contains(to.as_str()) {
                path.push(to);
                let found = search(imports, path, done);
                path.pop();
                if found.is_some() {
                    return found;
                }
            }
        }
        done.insert(at);
        None
    }
    let mut done = BTreeSet::new();
    imports.keys().find_map(|module| search(imports, &mut vec![module], &mut done))
}
