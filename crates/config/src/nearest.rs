//! "Did you mean": the nearest of some known names.

/// `did you mean "port"?`, or the alternatives when nothing is near.
pub(crate) fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(wrong, &known) {
        Some(name) => format!("did you mean `{name}`?"),
        None if known.is_empty() => String::new(),
        None if known.len() <= 24 => format!("expected one of {}", list(&known)),
        None => String::new(),
    }
}

/// The known name that is a few keystrokes away from the wrong one.
pub(crate) fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let wrong = fold(wrong);
    let tolerance = wrong.chars().count().div_ceil(3).clamp(1, 3);
    let distances = known.iter().map(|name| (strsim::levenshtein(&wrong, &fold(name)), *name));
    distances.filter(|(distance, _)| *distance <= tolerance).min().map(|(_, name)| name)
}

/// Makes other spellings equal: `rate_limits` and `RateLimits` are near `rateLimits`.
fn fold(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).take(128).collect()
}

/// `a`, `b` and `c` in words.
pub(crate) fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_slips_of_the_keyboard_and_other_spellings() {
        let known = ["port", "protocol", "rateLimits", "callees"];
        for (wrong, right) in
            [("prot", "port"), ("rate_limits", "rateLimits"), ("callee", "callees"), ("Protokol", "protocol")]
        {
            assert_eq!(did_you_mean(wrong, known), format!("did you mean `{right}`?"));
        }
    }

    #[test]
    fn lists_the_alternatives_when_nothing_is_near() {
        assert_eq!(did_you_mean("colour", ["allow", "deny"]), "expected one of `allow`, `deny`");
    }
}
