//! Commands that download packages at their start, which a jail has no network for.

use std::path::Path;

/// Such commands: programs, their subcommands (none: all), and how to do without.
const COMMANDS: [(&[&str], &[&str], &str); 9] = [
    (
        &["npx", "bunx"],
        &[],
        "install the package in the working directory (`npm install PACKAGE`), and start its program: \
         `command: [node_modules/.bin/PROGRAM]`",
    ),
    (
        &["npm", "pnpm", "yarn", "bun"],
        &["exec", "x", "dlx", "install", "i", "ci", "add", "create", "init"],
        "install the packages before the start, and leave it out of the command",
    ),
    (
        &["uvx", "pipx"],
        &[],
        "install the package in a virtual environment (`python3 -m venv .venv`, `.venv/bin/pip install PACKAGE`), and \
         start its program: `command: [.venv/bin/PROGRAM]`",
    ),
    (
        &["uv", "pip", "pip3", "poetry", "pipenv"],
        &["run", "tool", "sync", "install"],
        "install the packages in a virtual environment before the start, and start the program from it: \
         `command: [.venv/bin/PROGRAM]`",
    ),
    (&["go"], &["run", "build", "install", "get", "mod"], "build the program before (`go build`), and start that"),
    (&["cargo"], &["run", "build", "install"], "build the program before (`cargo build --release`), and start that"),
    (
        &["mvn", "mvnw", "gradle", "gradlew", "sbt"],
        &[],
        "build the program before, and start its archive: `java -jar FILE`",
    ),
    (
        &["bundle", "gem", "composer"],
        &["install", "update", "require"],
        "install the packages before the start, and leave it out of the command",
    ),
    (&["dotnet"], &["run", "restore", "build"], "publish the program before (`dotnet publish`), and start that"),
];
/// Words with which such commands report that there is no network.
const WITHOUT_NETWORK: [&str; 14] = [
    "npm err",
    "eai_again",
    "enotfound",
    "getaddrinfo",
    "name resolution",
    "name or service not known",
    "could not resolve",
    "unknown host",
    "no such host",
    "failed to lookup",
    "network is unreachable",
    "failed to fetch",
    "failed to download",
    "from versions: none",
];

/// The remedy, if the command, or a script in it, downloads packages, and the program wrote nothing
/// or that it has no network.
pub(crate) fn missing_packages(argv: &[String], lines: &[&str]) -> Option<String> {
    let says = |line: &str| {
        let lower = line.to_ascii_lowercase();
        WITHOUT_NETWORK.iter().any(|words| lower.contains(words))
    };
    if !lines.is_empty() && !lines.iter().any(|line| says(line)) {
        return None;
    }
    let is_end = |letter: char| letter.is_whitespace() || ";&|()\"'".contains(letter);
    let words: Vec<&str> =
        argv.iter().flat_map(|argument| argument.split(is_end)).filter(|word| !word.is_empty()).collect();
    let name = |word: &str| Path::new(word).file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    words.iter().enumerate().find_map(|(index, word)| {
        let name = name(word);
        let subcommand = words[index + 1..].iter().find(|word| !word.starts_with('-'));
        let (_, subcommands, fix) = COMMANDS.iter().find(|(programs, subcommands, _)| {
            programs.contains(&&*name)
                && (subcommands.is_empty() || subcommand.is_some_and(|word| subcommands.contains(word)))
        })?;
        let command = match subcommand {
            Some(subcommand) if !subcommands.is_empty() => format!("{name} {subcommand}"),
            _ => name,
        };
        Some(format!("`{command}` downloads what is not installed, and a jail has no network for that: {fix}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_download_are_named_with_the_way_out() {
        let told = |argv: &[&str], lines: &[&str]| {
            let argv: Vec<String> = argv.iter().map(|&word| word.to_owned()).collect();
            missing_packages(&argv, lines).unwrap_or_default()
        };
        // Their output without a network. `npx` waits for minutes before it writes anything.
        for (argv, line, expected) in [
            (&["npx", "serve"][..], None, ["`npx` downloads", "node_modules/.bin/PROGRAM"]),
            (&["/usr/bin/npx", "--yes", "serve"], Some("npm error code EAI_AGAIN"), ["`npx` downloads", "npm install"]),
            (
                &["sh", "-c", "cd app && npm install && node server.js"],
                Some(
                    "npm error request to https://packages.example/a failed, reason: getaddrinfo EAI_AGAIN packages.example",
                ),
                ["`npm install` downloads", "before the start"],
            ),
            (
                &["uvx", "datasette"],
                Some("  Caused by: dns error: failed to lookup address information"),
                ["`uvx` downloads", ".venv/bin/PROGRAM"],
            ),
            (
                &["pipx", "run", "cowsay"],
                Some("ERROR: Could not find a version that satisfies the requirement cowsay (from versions: none)"),
                ["`pipx` downloads", ".venv"],
            ),
            (
                &["go", "run", "."],
                Some(
                    "main.go:2:8: a.example/y@v1.0.0: Get \"https://a.example/y.zip\": dial tcp: lookup a.example: no such host",
                ),
                ["`go run` downloads", "`go build`"],
            ),
            (
                &["cargo", "--quiet", "run"],
                Some("  [6] Could not resolve hostname (Could not resolve host: a.example)"),
                ["`cargo run` downloads", "cargo build"],
            ),
            (
                &["./mvnw", "spring-boot:run"],
                Some("Could not transfer artifact: a.example: Unknown host a.example"),
                ["`mvnw` downloads", "java -jar"],
            ),
            (
                &["bash", "-c", "(bundle install; rackup)"],
                Some("Could not reach host a.example (getaddrinfo)"),
                ["`bundle install` downloads", "leave it out"],
            ),
        ] {
            let told = told(argv, &line.into_iter().collect::<Vec<_>>());
            assert!(expected.iter().all(|part| told.contains(part)), "{argv:?}: {told}");
        }
        for (argv, line) in [
            (&["node", "server.js"][..], "getaddrinfo ENOTFOUND stock"),
            (&["npx", "serve"], "Error: listen EADDRINUSE"),
            (&["npm", "start"], "npm error code EAI_AGAIN"),
            (&["python3", "install"], "Name or service not known"),
        ] {
            assert_eq!(told(argv, &[line]), "", "{argv:?}");
        }
    }
}
