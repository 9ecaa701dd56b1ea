//! Text -> one tree for each document.

use super::{Key, Mark, Node, Value};
use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, options};
use std::collections::HashMap;

/// Deeper than any valid document, shallow enough for recursion.
const MAX_DEPTH: usize = 48;

/// More than any mapping of a valid document; finding a field is a linear search.
const MAX_FIELDS: usize = 1024;

/// Elements of a list: some of them are compared with each other.
const MAX_ELEMENTS: usize = 1 << 14;

/// Values of one document: each takes more memory than a few bytes of text.
const MAX_NODES: usize = 1 << 18;

/// A document that could not be read.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub mark: Mark,
    pub message: String,
    pub fix: String,
}

/// All documents of a file, in order; a broken one does not hide those after it. Empty documents
/// are left out.
pub(crate) fn documents(text: &str) -> Vec<Result<Node, SyntaxError>> {
    parse(text, false)
}

/// The same for files of other systems, which may have aliases and merge keys (`<<`). Aliases are
/// replaced by what they stand for.
pub(crate) fn documents_with_aliases(text: &str) -> Vec<Result<Node, SyntaxError>> {
    parse(text, true)
}

fn parse(text: &str, aliases: bool) -> Vec<Result<Node, SyntaxError>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let options = options! {
        disallow_directives: true,
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
        simple_key_max_lookahead: 4096
    };
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut documents = Vec::new();
    let new = || Builder { aliases, ..Builder::default() };
    let mut builder = new();
    while let Some(event) = parser.next_event() {
        let step = match event {
            Ok((event, span)) => builder.take(event, mark(&span.start)),
            Err(error) => Err(explain(error)),
        };
        match step {
            Ok(None) => {}
            Ok(Some(node)) => documents.extend((!node.is_null()).then_some(Ok(node))),
            Err(broken) => {
                documents.push(Err(broken));
                builder = new();
                if !parser.proceed_next_document().unwrap_or(false) {
                    break;
                }
            }
        }
    }
    documents
}

fn mark(marker: &Marker) -> Mark {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Mark { line: number(marker.line()), column: number(marker.col()).saturating_add(1) }
}

fn explain(error: granit_parser::ScanError) -> SyntaxError {
    let fix = match error.kind() {
        ErrorKind::UnknownAnchor | ErrorKind::MissingAnchorOrAliasName => {
            "aliases are not accepted; a text that begins with `*` must be in quotes: \"*\""
        }
        ErrorKind::DirectiveDisallowed => "remove the line that begins with `%`",
        _ => "",
    };
    SyntaxError {
        mark: mark(error.marker()),
        message: format!("not valid YAML: {}", error.info()),
        fix: fix.to_owned(),
    }
}

/// The open collections, outermost first.
#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    /// The number of values so far.
    nodes: usize,
    /// Whether aliases and merge keys are accepted.
    aliases: bool,
    /// The values that aliases stand for.
    anchors: HashMap<usize, Node>,
    /// The anchors of the open collections.
    open_anchors: Vec<usize>,
}

enum Open {
    List(Mark, Vec<Node>),
    Map(Mark, Vec<(Key, Node)>, Option<Key>),
}

impl Builder {
    /// Returns the document's root when it is complete.
    fn take(&mut self, event: Event<'_>, mark: Mark) -> Result<Option<Node>, SyntaxError> {
        if event.tag().is_some() {
            return Err(broken(
                mark,
                "tags are not accepted",
                "remove the part that begins with `!`; a text that begins with `!` must be in quotes",
            ));
        }
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let value = Value::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain };
                self.complete_anchored(Node { mark, value }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.start(Open::List(mark, Vec::new()), anchor),
            Event::MappingStart(_, anchor, _) => self.start(Open::Map(mark, Vec::new(), None), anchor),
            Event::SequenceEnd | Event::MappingEnd => {
                let anchor = self.open_anchors.pop().unwrap_or_default();
                match self.open.pop() {
                    Some(Open::List(mark, nodes)) => {
                        self.complete_anchored(Node { mark, value: Value::List(nodes) }, anchor)
                    }
                    Some(Open::Map(mark, entries, _)) => {
                        let entries = if self.aliases { merged(entries)? } else { entries };
                        self.complete_anchored(Node { mark, value: Value::Map(entries) }, anchor)
                    }
                    None => Ok(None),
                }
            }
            Event::Alias(anchor) if self.aliases => {
                let Some(node) = self.anchors.get(&anchor) else {
                    return Err(broken(mark, "an alias within the value that it stands for", "write the value out"));
                };
                self.nodes += count(node);
                if self.nodes > MAX_NODES {
                    return Err(broken(mark, format!("a document of more than {MAX_NODES} values"), ""));
                }
                let node = node.clone();
                self.complete(node)
            }
            Event::Alias(_) | Event::UnresolvedAlias(_) => Err(broken(
                mark,
                "aliases are not accepted",
                "write the value out; a text that begins with `*` must be in quotes",
            )),
            _ => Ok(None),
        }
    }

    fn complete_anchored(&mut self, node: Node, anchor: usize) -> Result<Option<Node>, SyntaxError> {
        if self.aliases && anchor > 0 {
            self.nodes += count(&node);
            self.anchors.insert(anchor, node.clone());
        }
        self.complete(node)
    }

    fn start(&mut self, open: Open, anchor: usize) -> Result<Option<Node>, SyntaxError> {
        if let (Some(Open::Map(_, _, None)), Open::List(mark, _) | Open::Map(mark, ..)) = (self.open.last(), &open) {
            return Err(broken(
                *mark,
                "a field's name must be text",
                "a text that begins with `{` or `[` must be in quotes",
            ));
        }
        self.open.push(open);
        self.open_anchors.push(anchor);
        Ok(None)
    }

    fn complete(&mut self, node: Node) -> Result<Option<Node>, SyntaxError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(broken(node.mark, format!("a document of more than {MAX_NODES} values"), ""));
        }
        match self.open.last_mut() {
            None => {
                self.nodes = 0;
                return Ok(Some(node));
            }
            Some(Open::List(_, nodes)) if nodes.len() == MAX_ELEMENTS => {
                let message = format!("a list of more than {MAX_ELEMENTS} elements");
                return Err(broken(node.mark, message, "divide the document"));
            }
            Some(Open::List(_, nodes)) => nodes.push(node),
            Some(Open::Map(_, entries, key)) => match key.take() {
                Some(name) => entries.push((name, node)),
                None => {
                    let Value::Scalar { text, .. } = node.value else {
                        return Err(broken(node.mark, "a field's name must be text", ""));
                    };
                    if let Some((first, _)) = entries.iter().find(|(key, _)| key.text == text) {
                        let message =
                            format!("`{text}` appears twice in this mapping (first in line {})", first.mark.line);
                        return Err(broken(node.mark, message, "keep one of the two"));
                    }
                    if entries.len() == MAX_FIELDS {
                        return Err(broken(node.mark, format!("a mapping of more than {MAX_FIELDS} fields"), ""));
                    }
                    *key = Some(Key { mark: node.mark, text });
                }
            },
        }
        Ok(None)
    }
}

/// The number of values in a value.
fn count(node: &Node) -> usize {
    match &node.value {
        Value::Scalar { .. } => 1,
        Value::List(nodes) => 1 + nodes.iter().map(count).sum::<usize>(),
        Value::Map(entries) => 1 + entries.iter().map(|(_, node)| count(node)).sum::<usize>(),
    }
}

/// The entries of a mapping with those of its merge key (`<<: *defaults`), which they override.
fn merged(entries: Vec<(Key, Node)>) -> Result<Vec<(Key, Node)>, SyntaxError> {
    let (merges, mut entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(key, _)| key.text == "<<");
    for (key, node) in merges {
        let maps = match node.value {
            Value::List(nodes) => nodes,
            _ => vec![node],
        };
        for map in maps {
            let Value::Map(others) = map.value else {
                return Err(broken(key.mark, "`<<` merges mappings, and this is none", ""));
            };
            for (key, node) in others {
                if entries.iter().all(|(own, _)| own.text != key.text) {
                    entries.push((key, node));
                }
            }
        }
    }
    Ok(entries)
}

fn broken(mark: Mark, message: impl Into<String>, fix: &str) -> SyntaxError {
    SyntaxError { mark, message: message.into(), fix: fix.to_owned() }
}
