//! Exact paths and prefixes, by their segments.

use crate::group::Group;
use std::fmt;
use std::sync::Arc;

/// Children that are searched one after another. More are halved.
const FEW: usize = 8;
/// Children that a change copies.
const MAX_CHUNK: usize = 64;

/// The rules of one path.
pub(crate) type Slot<T> = Option<Arc<Group<T>>>;

/// A node: the rules of a path, and the nodes below it. Copies share the parts that do not change.
pub(crate) struct Node<T> {
    /// Rules of this path.
    pub(crate) exact: Slot<T>,
    /// Rules of this path and all below it.
    pub(crate) prefix: Slot<T>,
    /// By first segment, in chunks that are not empty. No two children have the same.
    children: Vec<Arc<Vec<Child<T>>>>,
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
        let child = match &*self.children {
            [] => return None,
            [few] if few.len() <= FEW => few.iter().find(|child| is_below(path, &child.label))?,
            _ => {
                let (chunk, place) = self.place(first_segment(path)).ok()?;
                self.children.get(chunk)?.get(place).filter(|child| is_below(path, &child.label))?
            }
        };
        Some((&*child.node, &path[child.label.len()..]))
    }

    /// The node of a path, which is made if it is not there.
    pub(crate) fn at(&mut self, path: &str) -> &mut Self {
        if path.is_empty() {
            return self;
        }
        let first = first_segment(path);
        let (chunk, place) = match self.place(first) {
            Ok(place) => place,
            Err((chunk, place)) => self.insert(chunk, place, Child::new(path, Arc::default())),
        };
        let child = &mut Arc::make_mut(&mut self.children[chunk])[place];
        child.shorten(common(&child.label, path));
        Arc::make_mut(&mut child.node).at(&path[child.label.len()..])
    }

    /// Removes the nodes on the way to a path that have no rules and lead to none.
    pub(crate) fn prune(&mut self, path: &str) {
        let Ok((chunk, place)) = self.place(first_segment(path)) else { return };
        let children = Arc::make_mut(&mut self.children[chunk]);
        let child = &mut children[place];
        let Some(rest) = path.strip_prefix(&*child.label) else { return };
        Arc::make_mut(&mut child.node).prune(rest);
        if child.node.is_empty() {
            children.remove(place);
            if children.is_empty() {
                self.children.remove(chunk);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.exact.is_none() && self.prefix.is_none() && self.children.is_empty()
    }

    /// Rules of the node, or of one below it.
    pub(crate) fn first(&self) -> Option<&Group<T>> {
        let own = self.exact.as_ref().or(self.prefix.as_ref()).map(|group| &**group);
        own.or_else(|| self.children.first()?.first()?.node.first())
    }

    /// The rules of the node and of all below it.
    pub(crate) fn slots(&self, found: &mut Vec<Arc<Group<T>>>) {
        found.extend(self.exact.iter().chain(&self.prefix).cloned());
        self.children.iter().flat_map(|chunk| &**chunk).for_each(|child| child.node.slots(found));
    }

    /// Chunk and place of the child with this first segment, or where it would be.
    fn place(&self, segment: &str) -> Result<(usize, usize), (usize, usize)> {
        let after =
            self.children.partition_point(|chunk| chunk.first().is_some_and(|child| child.segment() <= segment));
        let chunk = after.saturating_sub(1);
        let children = self.children.get(chunk).map(|chunk| chunk.as_slice()).unwrap_or_default();
        match children.binary_search_by(|child| child.segment().cmp(segment)) {
            Ok(place) => Ok((chunk, place)),
            Err(place) => Err((chunk, place)),
        }
    }

    /// Inserts a child where [`Self::place`] says, and returns where it is.
    fn insert(&mut self, chunk: usize, place: usize, child: Child<T>) -> (usize, usize) {
        let Some(children) = self.children.get_mut(chunk) else {
            self.children.push(Arc::new(vec![child]));
            return (chunk, place);
        };
        let children = Arc::make_mut(children);
        children.insert(place, child);
        if children.len() <= MAX_CHUNK {
            return (chunk, place);
        }
        let half = children.len() / 2;
        let rest = children.split_off(half);
        self.children.insert(chunk + 1, Arc::new(rest));
        if place < half { (chunk, place) } else { (chunk + 1, place - half) }
    }
}

impl<T> Child<T> {
    fn new(label: &str, node: Arc<Node<T>>) -> Self {
        Self { label: label.into(), first: first_segment(label).len(), node }
    }

    fn segment(&self) -> &str {
        &self.label[..self.first]
    }

    /// Puts a node between, so that the label has this length.
    fn shorten(&mut self, length: usize) {
        if length < self.label.len() {
            let (label, rest) = self.label.split_at(length);
            let below = Self::new(rest, self.node.clone());
            let node = Node { children: vec![Arc::new(vec![below])], ..Node::default() };
            *self = Self::new(label, Arc::new(node));
        }
    }
}

/// Whether a path is `prefix` or below it. The byte after the prefix is quicker to compare.
#[inline]
pub(crate) fn is_below(path: &str, prefix: &str) -> bool {
    let (path, prefix) = (path.as_bytes(), prefix.as_bytes());
    path.len() >= prefix.len()
        && path.get(prefix.len()).is_none_or(|next| *next == b'/')
        && path[..prefix.len()] == *prefix
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
        let children = self.children.iter().flat_map(|chunk| &**chunk).map(|child| (&child.label, &child.node));
        f.debug_struct("Node")
            .field("exact", &self.exact)
            .field("prefix", &self.prefix)
            .field("children", &children.collect::<Vec<_>>())
            .finish()
    }
}
