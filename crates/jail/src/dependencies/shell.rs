//! The commands of a shell's script that can be told without running it.

/// Words before a command that do not change which program it runs.
const PREFIXES: [&str; 5] = ["exec", "command", "nohup", "time", "!"];
/// Commands of shells that start no program.
const BUILTINS: [&str; 32] = [
    ":", "[", "alias", "bg", "declare", "echo", "export", "false", "fg", "getopts", "hash", "jobs", "kill", "local",
    "printf", "pwd", "read", "readonly", "set", "shift", "shopt", "test", "times", "trap", "true", "type", "typeset",
    "ulimit", "umask", "unalias", "unset", "wait",
];
/// Words after which the order of commands, or what they mean, depends on the run.
const ENDS: [&str; 18] = [
    "if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac", "select", "function",
    "{", "}", "eval", "exit",
];
/// Most commands that are followed.
const MAX_COMMANDS: usize = 16;

/// A command of a script.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Goes into a folder.
    Enter(String),
    /// Looks for programs in a folder first.
    Search(String),
    /// Reads commands from a file; they may change everything after.
    Read(String),
    /// Runs a program with arguments.
    Run(Vec<String>),
}

/// A word of a command.
#[derive(Default)]
struct Word {
    /// Its text, without substitutions.
    text: String,
    /// It has parts that only the shell knows: variables, substitutions, patterns.
    is_open: bool,
}

/// The first commands of a script, up to one that depends on the run.
pub(super) fn commands(script: &str) -> Vec<Command> {
    let mut found = Vec::new();
    let commands = simple_commands(script).into_iter().filter(|words| !words.is_empty());
    for words in commands.take(MAX_COMMANDS) {
        let sets_path = words.iter().any(|word| word.text.starts_with("PATH="));
        let mut words = words.into_iter().skip_while(is_prefix);
        let Some(Word { text: name, is_open }) = words.next() else {
            if sets_path {
                break;
            }
            continue;
        };
        // An option of a word before it: `command -v PROGRAM`.
        if is_open || name.starts_with('-') {
            continue;
        }
        let arguments: Vec<String> = words.map_while(|word| (!word.is_open).then_some(word.text)).collect();
        let first = arguments.first().map(String::as_str);
        match (name.as_str(), first) {
            (name, _) if sets_path || ENDS.contains(&name) => break,
            ("cd", Some(folder)) => found.push(Command::Enter(folder.to_owned())),
            ("cd" | "return", _) => break,
            ("." | "source", Some(file)) => match file.strip_suffix("/activate") {
                Some(folder) => found.push(Command::Search(folder.to_owned())),
                None => {
                    found.push(Command::Read(file.to_owned()));
                    break;
                }
            },
            (name, _) if BUILTINS.contains(&name) => {}
            _ => found.push(Command::Run(std::iter::once(name).chain(arguments).collect())),
        }
    }
    found
}

/// Whether a word changes nothing about the program that the next one names.
fn is_prefix(word: &Word) -> bool {
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let is_assignment = word.text.split_once('=').is_some_and(|(name, _)| is_name(name));
    is_assignment || !word.is_open && PREFIXES.contains(&word.text.as_str())
}

/// Divides a script into commands and words. Ends where the script has something else than words,
/// quotes and operators.
fn simple_commands(script: &str) -> Vec<Vec<Word>> {
    let (mut commands, mut words) = (Vec::new(), Vec::new());
    let mut word: Option<Word> = None;
    let mut letters = script.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '#' if word.is_none() => while letters.next_if(|letter| *letter != '\n').is_some() {},
            ' ' | '\t' => words.extend(word.take()),
            ';' | '&' | '|' | '\n' => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            // A here-document.
            '<' if letters.peek() == Some(&'<') => return commands,
            // Redirections: neither the number before them nor the file after them is an argument.
            '<' | '>' => {
                while letters.next_if(|letter| matches!(letter, '<' | '>' | '&' | ' ')).is_some() {}
                while letters.next_if(|letter| !letter.is_whitespace() && !";&|".contains(*letter)).is_some() {}
                let is_number = |word: &Word| word.text.bytes().all(|byte| byte.is_ascii_digit());
                words.extend(word.take().filter(|word| !is_number(word)));
            }
            // A subshell or a function.
            '(' | ')' => return commands,
            '\\' => {
                if let Some(letter) = letters.next().filter(|letter| *letter != '\n') {
                    word.get_or_insert_default().text.push(letter);
                }
            }
            '\'' | '"' => {
                let Word { text, is_open } = word.get_or_insert_default();
                loop {
                    match letters.next() {
                        None => return commands,
                        Some(end) if end == letter => break,
                        Some('$' | '`') if letter == '"' => *is_open = true,
                        Some('\\') if letter == '"' => text.extend(letters.next()),
                        Some(other) => text.push(other),
                    }
                }
            }
            '$' if letters.peek() == Some(&'(') => {
                word.get_or_insert_default().is_open = true;
                let mut depth = 0;
                for letter in letters.by_ref() {
                    depth += i32::from(letter == '(') - i32::from(letter == ')');
                    if depth == 0 {
                        break;
                    }
                }
            }
            '$' | '`' | '*' | '?' | '~' => word.get_or_insert_default().is_open = true,
            other => word.get_or_insert_default().text.push(other),
        }
    }
    words.extend(word);
    commands.push(words);
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_up_to_one_that_depends_on_the_run() {
        let run = |words: &str| Command::Run(words.split(' ').map(str::to_owned).collect());
        for (script, expected) in [
            ("exec python3 app.py", vec![run("python3 app.py")]),
            ("A=b PORT=$PORT gunicorn -b \"$HOST\" x", vec![run("gunicorn -b")]),
            (
                "cd app && ./start 'a b'",
                vec![Command::Enter("app".into()), Command::Run(vec!["./start".into(), "a b".into()])],
            ),
            (". venv/bin/activate; python app.py", vec![Command::Search("venv/bin".into()), run("python app.py")]),
            ("set -e\n# a comment\necho hello\nnode server.js | cat", vec![run("node server.js"), run("cat")]),
            ("export A=1; one 2>&1 >/dev/null & wait", vec![run("one")]),
            ("one>log", vec![run("one")]),
            ("one; two <<END\nhidden\nEND", vec![run("one")]),
            ("$PROGRAM x; \"$(which y)\" z; last", vec![run("last")]),
            ("export PATH=/x:$PATH; hidden", vec![]),
            ("PATH=/x hidden", vec![]),
            ("first; if other; then hidden; fi", vec![run("first")]),
            ("f() { hidden; }; f", vec![]),
            (". /opt/nvm/nvm.sh && nvm use 22", vec![Command::Read("/opt/nvm/nvm.sh".into())]),
            ("echo \"open", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(commands(script), expected, "{script}");
        }
    }
}
