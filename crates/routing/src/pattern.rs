//! Patterns of texts, in the form that automata are built from.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, Hir, HirKind, Look, Repetition};

/// Longest pattern, in bytes. The longest that the Gateway API has is a service and a method of
/// gRPC, each of 1024.
pub(crate) const MAX_LENGTH: usize = 2560;

/// Alternatives at an end of an expression that become separate patterns.
const MAX_ALTERNATIVES: usize = 4;

/// Whether a text can have a line's end in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextKind {
    /// Never: paths and header fields.
    Line,
    /// After decoding: query parameters.
    Lines,
}

/// A pattern that a whole text has to match. Ends that match any text are not part of the
/// expression: an automaton for many patterns such as `.*a.*` would have to remember which of them
/// it has seen, and the number of its states would double with each.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    /// The expression, without those ends.
    pub(crate) hir: Hir,
    /// Any text can come before it.
    pub(crate) floats: bool,
    /// Any text can come after it.
    pub(crate) is_open: bool,
}

impl Pattern {
    /// A text, and if `is_open`, texts that begin with it.
    pub(crate) fn literal(text: &[u8], is_open: bool) -> Self {
        Self { hir: Hir::literal(text), floats: false, is_open }
    }

    /// A regular expression: RE2's syntax, where a class such as `\w` stands for ASCII bytes, and a
    /// dot for any byte except a line's end. A text that it matches matches one of the patterns.
    pub(crate) fn regex(text: &str, kind: TextKind) -> Result<Vec<Self>, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("a regular expression of {} bytes: expected at most {MAX_LENGTH}", text.len()));
        }
        let parsed = ParserBuilder::new().unicode(false).utf8(false).nest_limit(50).build().parse(text);
        let hir = parsed.map_err(|error| {
            let (what, at) = match &error {
                regex_syntax::Error::Parse(error) => (error.kind().to_string(), error.span().start.column),
                regex_syntax::Error::Translate(error) => (error.kind().to_string(), error.span().start.column),
                error => (error.to_string(), 1),
            };
            format!("`{}` is not a regular expression: {what} at character {at}", text.escape_debug())
        })?;
        let mut parts = concatenated(&hir);
        // A whole text has to match anyway.
        while parts.first().is_some_and(|part| *part.kind() == HirKind::Look(Look::Start)) {
            parts.remove(0);
        }
        while parts.last().is_some_and(|part| *part.kind() == HirKind::Look(Look::End)) {
            parts.pop();
        }
        if parts.iter().any(|part| !part.properties().look_set().is_empty()) {
            return Ok(vec![Self { hir: Hir::concat(parts), floats: false, is_open: false }]);
        }
        let mut patterns = Vec::new();
        for (parts, is_open) in without_end(parts, End::Last, kind) {
            for (parts, floats) in without_end(parts, End::First, kind) {
                patterns.push(Self { hir: Hir::concat(parts), floats, is_open });
            }
        }
        Ok(patterns)
    }

    /// Whether it depends on more than the text that it matches: `\b`, or `^` and `$` inside.
    pub(crate) fn looks_around(&self) -> bool {
        !self.hir.properties().look_set().is_empty()
    }
}

/// An end of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    First,
    Last,
}

/// The alternatives of an expression without the part at one end that matches any text, and whether
/// there was such a part. `a(;.*)?` has two alternatives: `a`, and `a;` before any text.
fn without_end(parts: Vec<Hir>, end: End, kind: TextKind) -> Vec<(Vec<Hir>, bool)> {
    let part_of = |parts: &[Hir]| if end == End::First { parts.first().cloned() } else { parts.last().cloned() };
    let replaced = |parts: &[Hir], by: Vec<Hir>| match end {
        End::First => [&by, parts.get(1..).unwrap_or_default()].concat(),
        End::Last => [parts.get(..parts.len().saturating_sub(1)).unwrap_or_default(), &by].concat(),
    };
    let Some(part) = part_of(&parts) else { return vec![(parts, false)] };
    if let Some(least) = any_text(&part, kind) {
        return vec![(replaced(&parts, least.into_iter().collect()), true)];
    }
    let alternatives: Vec<Vec<Hir>> = match without_group(&part).kind() {
        HirKind::Repetition(Repetition { min: 0, max: Some(1), sub, .. }) => vec![vec![], concatenated(sub)],
        HirKind::Alternation(alternatives) => alternatives.iter().map(concatenated).collect(),
        _ => vec![],
    };
    let least = |one: &[Hir]| part_of(one).and_then(|part| any_text(&part, kind));
    if alternatives.len() > MAX_ALTERNATIVES || !alternatives.iter().any(|one| least(one).is_some()) {
        return vec![(parts, false)];
    }
    let without = |one: Vec<Hir>| match least(&one) {
        Some(least) => (replaced(&parts, replaced(&one, least.into_iter().collect())), true),
        None => (replaced(&parts, one), false),
    };
    alternatives.into_iter().map(without).collect()
}

/// The parts of an expression, one after another.
fn concatenated(hir: &Hir) -> Vec<Hir> {
    match without_group(hir).kind() {
        HirKind::Concat(parts) => parts.clone(),
        _ => vec![hir.clone()],
    }
}

/// If a part matches any text of at least some length: texts of that length (`None`: of no length).
fn any_text(part: &Hir, kind: TextKind) -> Option<Option<Hir>> {
    let HirKind::Repetition(Repetition { min, max: None, sub, .. }) = without_group(part).kind() else { return None };
    let HirKind::Class(Class::Bytes(class)) = without_group(sub).kind() else { return None };
    let ranges = |ranges: &[(u8, u8)]| ClassBytes::new(ranges.iter().map(|(a, b)| ClassBytesRange::new(*a, *b)));
    let is_any = *class == ranges(&[(0, 9), (11, 255)]) || (kind == TextKind::Line && *class == ranges(&[(0, 255)]));
    let least = |count: u32| {
        let sub = Box::new(Hir::class(Class::Bytes(class.clone())));
        Hir::repetition(Repetition { min: count, max: Some(count), greedy: true, sub })
    };
    is_any.then(|| Some(*min).filter(|min| *min > 0).map(least))
}

fn without_group(hir: &Hir) -> &Hir {
    match hir.kind() {
        HirKind::Capture(capture) => without_group(&capture.sub),
        _ => hir,
    }
}
