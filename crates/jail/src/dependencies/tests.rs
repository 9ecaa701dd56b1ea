use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

/// A folder with files and links, until it is dropped.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    fn path(&self, path: &str) -> PathBuf {
        // Resolved, because the folder of temporary files may be a link.
        self.0.path().canonicalize().unwrap().join(path)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// What a command needs besides the folder `app`, in which it starts: paths to show, links and
    /// notes.
    fn needs(&self, argv: &[&str], access: &FileAccess) -> io::Result<[Vec<String>; 3]> {
        let (app, path) = (self.path("app"), format!("{}:/usr/bin:/bin", self.path("search").display()));
        fs::create_dir_all(&app).unwrap();
        let shown = vec![(app.clone(), app.clone())];
        let mut found = Dependencies::new(&app, Some(&path), shown, access, "test");
        let argv: Vec<String> = argv.iter().map(|word| word.replace("TREE", self.path("").to_str().unwrap())).collect();
        found.command(&argv)?;
        let short = |path: &PathBuf| path.strip_prefix(self.path("")).unwrap_or(path).display().to_string();
        let shown = found.shown.iter().map(|(_, path)| path).filter(|path| **path != app).map(short).collect();
        let links = found.links.iter().map(|(link, _)| short(link)).collect();
        Ok([shown, links, found.notes.into_iter().collect()])
    }

    fn needed(&self, argv: &[&str]) -> [Vec<String>; 3] {
        self.needs(argv, &FileAccess::Any).unwrap()
    }

    fn refused(&self, argv: &[&str]) -> String {
        self.needs(argv, &FileAccess::Any).unwrap_err().to_string()
    }
}

fn found(shown: &[&str], links: &[&str]) -> [Vec<String>; 3] {
    let list = |list: &[&str]| list.iter().map(|&path| path.to_owned()).collect();
    [list(shown), list(links), Vec::new()]
}

/// The Python of a version manager, and an environment made from it.
fn with_python() -> Tree {
    let tree = Tree::new();
    tree.file("versions/3.12/bin/python3.12", "");
    tree.link("versions/3.12/bin/python3", "python3.12");
    tree.file("versions/3.12/lib/python3.12/os.py", "");
    tree.link("current", "versions/3.12");
    let home = tree.path("versions/3.12/bin");
    tree.file("app/venv/pyvenv.cfg", &format!("home = {}\nversion = 3.12\n", home.display()));
    tree.link("app/venv/bin/python", &tree.path("current/bin/python3").display().to_string());
    tree
}

#[test]
fn an_environment_needs_the_installation_that_it_was_made_from() {
    let tree = with_python();
    let expected = found(&["versions/3.12"], &["current"]);
    assert_eq!(tree.needed(&["venv/bin/python", "app.py"]), expected);
    for script in ["exec venv/bin/python app.py", ". venv/bin/activate && python app.py", "A=1; cd venv; bin/python"] {
        assert_eq!(tree.needed(&["sh", "-ec", script]), expected, "{script}");
    }
    let python = tree.path("app/venv/bin/python").display().to_string();
    tree.file("app/venv/bin/serve", &format!("#!{python}\n"));
    tree.file("app/long", &format!("#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n"));
    tree.file("app/start", "#!/bin/sh\nset -e\nexec venv/bin/serve\n");
    for command in ["venv/bin/serve", "./long", "./start", "bash start", "env A=b venv/bin/serve"] {
        assert_eq!(tree.needed(&command.split(' ').collect::<Vec<_>>()), expected, "{command}");
    }
    // An environment elsewhere is shown, too.
    fs::rename(tree.path("app/venv"), tree.path("venv")).unwrap();
    assert_eq!(tree.needed(&["TREEvenv/bin/python"]), found(&["venv", "versions/3.12"], &["current"]));
    fs::remove_dir_all(tree.path("versions")).unwrap();
    let told = tree.refused(&["TREEvenv/bin/python"]);
    assert!(told.contains("leads to") && told.contains("versions: No such file"), "{told}");
}

#[test]
fn first_lines_of_scripts_are_followed() {
    let tree = Tree::new();
    tree.file("node/bin/node", "");
    tree.file("node/include/node/node.h", "");
    tree.file("node/lib/node_modules/x/cli.js", "#!/usr/bin/env node\n");
    tree.link("node/bin/x", "../lib/node_modules/x/cli.js");
    tree.link("search/node", "../node/bin/node");
    tree.file("app/split", "#!/usr/bin/env -S node --flag\n");
    tree.file("app/joined", "#!/usr/bin/env node --flag\n");
    tree.file("app/gone", "#!/no/such/node\n");
    let node = found(&["node"], &["search/node"]);
    assert_eq!(tree.needed(&["TREEnode/bin/x"]), node);
    assert_eq!(tree.needed(&["./split"]), node);
    let told = tree.refused(&["./joined"]);
    assert!(told.contains("`node --flag` is in no folder of PATH; several words need `env -S`"), "{told}");
    let told = tree.refused(&["./gone"]);
    assert!(told.contains("app/gone begins with `#!/no/such/node`") && told.contains("No such file"), "{told}");
    // Modules elsewhere come without the rest of the folder.
    tree.file("own/lib/node_modules/y/cli.js", "#!/usr/bin/env node\n");
    tree.link("own/bin/y", "../lib/node_modules/y/cli.js");
    let expected = found(&["node", "own/lib/node_modules"], &["own/bin/y", "search/node"]);
    assert_eq!(tree.needed(&["TREEown/bin/y"]), expected);
}

#[test]
fn no_more_is_shown_than_a_program_needs() {
    let tree = Tree::new();
    tree.file("home/.ssh/id", "");
    tree.file("home/bin/python3", "");
    tree.file("home/lib/python3.12/os.py", "");
    tree.file("home/bin/tool", "");
    tree.link("home/circle", "circle");
    assert_eq!(tree.needed(&["TREEhome/bin/python3"]), found(&["home/bin/python3", "home/lib"], &[]));
    fs::remove_dir_all(tree.path("home/lib")).unwrap();
    assert_eq!(tree.needed(&["TREEhome/bin/tool"]), found(&["home/bin/tool"], &[]));
    assert!(tree.refused(&["TREEhome/circle"]).contains("in a circle"));
    for secret in ["/proc/self/exe", "/etc/shadow", "/run/x"] {
        tree.file("app/script", &format!("#!{secret}\n"));
        tree.refused(&["./script"]);
    }
}

#[test]
fn tenants_see_what_the_operator_lists() {
    let tree = with_python();
    let needs = |folders: &[&str], argv: &[&str]| {
        tree.needs(argv, &FileAccess::Beneath(folders.iter().map(|folder| tree.path(folder)).collect()))
    };
    let told = needs(&[], &["venv/bin/python"]).unwrap_err().to_string();
    for part in ["versions/3.12", "readOnlyPaths: [", "NamespaceQuota"] {
        assert!(told.contains(part), "{told}");
    }
    assert_eq!(needs(&["versions"], &["venv/bin/python"]).unwrap(), found(&["versions/3.12"], &["current"]));
    // A program that its document names is shown, without its installation.
    let [shown, _, notes] = needs(&[], &["TREEversions/3.12/bin/python3.12"]).unwrap();
    assert_eq!(shown, ["versions/3.12/bin/python3.12"]);
    assert!(notes[0].contains("may lack files of its installation"), "{notes:?}");
}

#[test]
fn programs_that_a_shell_cannot_run_are_noted_and_shims_are_refused() {
    let tree = Tree::new();
    let [.., notes] = tree.needed(&["/bin/sh", "-c", "no-such-program --flag"]);
    assert_eq!(notes, ["the shell cannot run `no-such-program`: `no-such-program` is in no folder of PATH"]);
    tree.file("pyenv/shims/python3", "#!/usr/bin/env bash\nexec pyenv exec python3 \"$@\"\n");
    tree.file("pyenv/versions/3.12.1/bin/python3", "");
    let told = tree.refused(&["TREEpyenv/shims/python3"]);
    assert!(told.contains("is a shim") && told.contains("pyenv/versions/3.12.1/bin/python3"), "{told}");
}
