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
fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let wrong = fold(wrong);
    let tolerance = wrong.len().div_ceil(3).clamp(1, 3);
    let distances = known.iter().map(|name| (distance(&wrong, &fold(name), tolerance), *name));
    distances.filter_map(|(distance, name)| Some((distance?, name))).min().map(|(_, name)| name)
}

/// Other people's spelling: `rate_limits` and `RateLimits` are near `rateLimits`.
fn fold(name: &str) -> Vec<char> {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).take(128).collect()
}

/// Levenshtein distance, if within the tolerance.
fn distance(a: &[char], b: &[char], tolerance: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > tolerance {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substitution = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitution.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    Some(row[b.len()]).filter(|distance| *distance <= tolerance)
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
