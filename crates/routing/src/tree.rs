//! Exact paths and prefixes, by their segments.

use crate::group::Group;
use std::fmt;
use std::sync::Arc;

/// Children that are searched one after another. More are halved.
const FEW: usize = 8;

/// The rules of one path.
pub(crate) type Slot<T> = Option<Arc<Group<T>>>;

/// A node: the rules of a path, and the nodes below it. Copies share the parts that do not change.
pub(crate) struct Node<T> {
    /// Rules of this path.
    pub(crate) exact: Slot<T>,
    /// Rules of this path and all below it.
    pub(crate) prefix: Slot<T>,
    /// By first segment. No two children have the same.
    children: Vec<Child<T>>,
}

struct Child<T> {
    /// The segments that lead to it, each with the slash before it.
    label: Arc<str>,
    /// Length of the first segment.
    first: usize,
    node: Arc<Node<T>>,
}

impl<T> Node<T> {
    /// The node that leads towards a path, and the rest of the path.
    pub(crate) fn child<'p>(&self, path: &'p str) -> Option<(&Self, &'p str)> {
        let below = |child: &Child<T>| {
            let rest = path.strip_prefix(&*child.label)?;
            (rest.is_empty() || rest.starts_with('/')).then_some(rest)
        };
        if self.children.len() <= FEW {
            return self.children.iter().find_map(|child| Some((&*child.node, below(child)?)));
        }
        let child = self.children.get(self.place(first_segment(path)).ok()?)?;
        Some((&*child.node, below(child)?))
    }

    /// The node of a path, which is made if it is not there.
    pub(crate) fn at(&mut self, path: &str) -> &mut Self {
        if path.is_empty() {
            return self;
        }
        let first = first_segment(path);
        let place = match self.place(first) {
            Ok(place) => {
                let child = &mut self.children[place];
                child.split_off(common(&child.label, path));
                place
            }
            Err(place) => {
                let child = Child { label: path.into(), first: first.len(), node: Arc::default() };
                self.children.insert(place, child);
                place
            }
        };
        let child = &mut self.children[place];
        Arc::make_mut(&mut child.node).at(&path[child.label.len()..])
    }

    /// Removes the nodes on the way to a path that have no rules and lead to none.
    pub(crate) fn prune(&mut self, path: &str) {
        let Ok(place) = self.place(first_segment(path)) else { return };
        let Some(child) = self.children.get_mut(place) else { return };
        let Some(rest) = path.strip_prefix(&*child.label) else { return };
        Arc::make_mut(&mut child.node).prune(rest);
        if child.node.is_empty() {
            self.children.remove(place);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.exact.is_none() && self.prefix.is_none() && self.children.is_empty()
    }

    /// The rules of the node and of all below it.
    pub(crate) fn slots(&self, found: &mut Vec<Arc<Group<T>>>) {
        found.extend(self.exact.iter().chain(&self.prefix).cloned());
        self.children.iter().for_each(|child| child.node.slots(found));
    }

    fn place(&self, segment: &str) -> Result<usize, usize> {
        self.children.binary_search_by(|child| child.label[..child.first].cmp(segment))
    }
}

impl<T> Child<T> {
    /// Puts a node between, so that the label has this length.
    fn split_off(&mut self, length: usize) {
        if length == self.label.len() {
            return;
        }
        let (label, rest) = self.label.split_at(length);
        let below = Self { label: rest.into(), first: first_segment(rest).len(), node: self.node.clone() };
        let node = Node { children: vec![below], ..Node::default() };
        *self = Self { label: label.into(), first: self.first, node: Arc::new(node) };
    }
}

/// The first segment, with the slash before it.
fn first_segment(path: &str) -> &str {
    let end = path.bytes().skip(1).position(|byte| byte == b'/').map_or(path.len(), |at| at + 1);
    &path[..end]
}

/// Length of the segments that two paths have in common.
fn common(one: &str, other: &str) -> usize {
    let mut length = 0;
    loop {
        let segment = first_segment(&one[length..]);
        if segment.is_empty() || segment != first_segment(&other[length..]) {
            return length;
        }
        length += segment.len();
    }
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Self { exact: None, prefix: None, children: Vec::new() }
    }
}

impl<T> Clone for Node<T> {
    fn clone(&self) -> Self {
        Self { exact: self.exact.clone(), prefix: self.prefix.clone(), children: self.children.clone() }
    }
}

impl<T> Clone for Child<T> {
    fn clone(&self) -> Self {
        Self { label: self.label.clone(), first: self.first, node: self.node.clone() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Node<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let children = self.children.iter().map(|child| (&child.label, &child.node));
        f.debug_struct("Node")
            .field("exact", &self.exact)
            .field("prefix", &self.prefix)
            .field("children", &children.collect::<Vec<_>>())
            .finish()
    }
}
