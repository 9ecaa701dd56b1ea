//! References to variables in command lines, as Kubernetes writes them: `$(NAME)`. `$$(NAME)` stands
//! for the text `$(NAME)`.

/// A part of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Text that stays.
    Text(&'a str),
    /// A reference to the variable of this name.
    Variable(&'a str),
}

/// The parts of an argument. A `$$` that no reference follows stays, because shells use it.
pub fn parts(argument: &str) -> Vec<Part<'_>> {
    let (mut parts, mut rest, mut from) = (Vec::new(), argument, 0);
    while let Some(open) = rest[from..].find("$(").map(|at| from + at) {
        let name = rest[open + 2..].split_once(')').map(|(name, _)| name).filter(|name| is_name(name));
        let Some(name) = name else {
            from = open + 2;
            continue;
        };
        let before = rest[..=open].trim_end_matches('$').len();
        // Each pair of dollar signs is one sign; a single one at the end begins a reference.
        let signs = open + 1 - before;
        parts.push(Part::Text(&rest[..before + signs / 2]));
        let end = open + 2 + name.len() + 1;
        parts.push(if signs % 2 == 1 { Part::Variable(name) } else { Part::Text(&rest[open + 1..end]) });
        (rest, from) = (&rest[end..], 0);
    }
    parts.push(Part::Text(rest));
    parts
}

/// Replaces the references in an argument. References to variables without a value stay, such as
/// `$(date)` in the script of a shell.
pub fn expand<'a>(argument: &str, value: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut expanded = String::with_capacity(argument.len());
    for part in parts(argument) {
        match part {
            Part::Text(text) => expanded.push_str(text),
            Part::Variable(name) => match value(name) {
                Some(value) => expanded.push_str(value),
                None => expanded.extend(["$(", name, ")"]),
            },
        }
    }
    expanded
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_as_by_kubernetes() {
        let value = |name: &str| {
            [("PORT", "8080"), ("a.b-C", "x"), ("LOOP", "$(PORT)")]
                .into_iter()
                .find_map(|(known, value)| (known == name).then_some(value))
        };
        for (argument, expanded) in [
            ("--port=$(PORT)", "--port=8080"),
            ("$(PORT)$(PORT):$(a.b-C)", "80808080:x"),
            ("$$(PORT)", "$(PORT)"),
            ("$$$(PORT) $$$$(PORT)", "$8080 $$(PORT)"),
            ("$(LOOP)", "$(PORT)"),
            ("$(NONE) $(date +%s) $((1 + 2)) $(PORT", "$(NONE) $(date +%s) $((1 + 2)) $(PORT"),
            ("kill $$; ${PORT} $PORT (PORT) é$(PORT)", "kill $$; ${PORT} $PORT (PORT) é8080"),
            ("$(echo $(PORT))", "$(echo 8080)"),
            ("", ""),
        ] {
            assert_eq!(expand(argument, value), expanded, "{argument}");
        }
    }
}
