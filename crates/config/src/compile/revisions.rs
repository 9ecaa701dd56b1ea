//! `spec.revisions` of a function: named overrides of the function's fields.

use super::function::{self, Content};
use super::{Context, fields};
use crate::deserialize::deserialize;
use crate::document::FunctionSpec;
use crate::problem::{Problem, Scope};
use crate::yaml::{Node, Value};
use leno_model::revision;
use leno_model::{AppProtocol, FunctionId};

/// Named revisions of one function.
const MAX_REVISIONS: usize = 16;

/// A declared revision, compiled.
pub(super) struct RevisionContent {
    pub name: String,
    pub content: Content,
}

/// The declared revisions of a function, in the order of the document.
pub(super) fn declared(
    context: &Context<'_>,
    function: &Scope<'_>,
    id: &FunctionId,
    spec: &FunctionSpec,
) -> Vec<RevisionContent> {
    fields::not_written_empty(
        function,
        "revisions",
        &spec.revisions,
        "that the function's own fields are its revision",
    );
    let list = function.field("revisions");
    if spec.revisions.len() > MAX_REVISIONS {
        list.problem(format!("{} revisions", spec.revisions.len()), format!("expected at most {MAX_REVISIONS}"));
        return Vec::new();
    }
    fields::unique_names(&list, spec.revisions.iter().map(|written| Some(&*written.name)));
    let mut declared = Vec::new();
    for (index, written) in spec.revisions.iter().enumerate() {
        let element = list.element(index);
        name(&element.field("name"), id, &written.name);
        let content = with_overrides(context, function, index, |scope| {
            Some(function::content(context, scope, id, &deserialize::<FunctionSpec>(scope)?))
        });
        let Some(mut content) = content.flatten() else { continue };
        of_writer(&mut content.place, index, element.node());
        if let Some(sole) = content.sole.as_ref().filter(|_| spec.revisions.len() > 1 || spec.rollout.is_some()) {
            let (cannot, fix) = sole.explain();
            element.problem(format!("two revisions {cannot}"), fix);
        }
        declared.push(RevisionContent { name: written.name.clone(), content });
    }
    let chains = declared.iter().filter(|one| one.content.template.protocol == AppProtocol::Chain).count();
    if chains != 0 && chains != declared.len() {
        list.problem("some revisions have `protocol: chain`, and others do not", "give all of them the same protocol");
    }
    declared
}

fn name(scope: &Scope<'_>, id: &FunctionId, name: &str) {
    if !fields::label(scope, name) {
        return;
    }
    let numbered = revision::number(id, name).is_some() || name.bytes().all(|byte| byte.is_ascii_digit());
    if numbered || name == "latest" {
        let what = if numbered { "stands for the number of a revision" } else { "stands for the newest revision" };
        scope.problem(format!("`{name}` {what}"), "expected another name, such as `stable`, `next` or `v2`");
    }
}

/// Calls `compile` with the function's fields as they are for an element of its `revisions`. Problems
/// and doubts are reported where the field is written: in the element, or in the function. `None`:
/// there is no such element.
pub(super) fn with_overrides<T>(
    context: &Context<'_>,
    function: &Scope<'_>,
    index: usize,
    compile: impl FnOnce(&Scope<'_>) -> T,
) -> Option<T> {
    let doubts = context.doubts.borrow().len();
    let compiled = reported_by_writer(function, index, compile);
    let node = function.field("revisions");
    let element = node.element(index);
    context.doubts.borrow_mut()[doubts..].iter_mut().for_each(|doubt| of_writer(doubt, index, element.node()));
    compiled
}

/// The same for warnings, which have no doubts.
pub(super) fn reported_by_writer<T>(
    function: &Scope<'_>,
    index: usize,
    compile: impl FnOnce(&Scope<'_>) -> T,
) -> Option<T> {
    let list = function.field("revisions");
    let element = list.element(index);
    let merged = merged(function.node()?, element.node()?)?;
    let before = element.problem_count();
    let compiled = compile(&element.over(&merged));
    element.amend(before, |problem| of_writer(problem, index, element.node()));
    Some(compiled)
}

/// The function's fields, with those of the element in their place. Null takes a field away.
fn merged(function: &Node, element: &Node) -> Option<Node> {
    let (Value::Map(own), Value::Map(overrides)) = (&function.value, &element.value) else { return None };
    let mut entries: Vec<_> = own.iter().filter(|(key, _)| key.text != "revisions").cloned().collect();
    for (key, node) in overrides.iter().filter(|(key, _)| key.text != "name") {
        if node.is_null() {
            entries.retain(|(own, _)| own.text != key.text);
            continue;
        }
        match entries.iter_mut().find(|(own, _)| own.text == key.text) {
            Some((_, Node { value: Value::Map(own), .. })) if is_merged(&key.text) => {
                let Value::Map(others) = &node.value else { continue };
                own.retain(|(own, _)| others.iter().all(|(other, _)| other.text != own.text));
                own.extend(others.iter().cloned());
            }
            Some(own) => *own = (key.clone(), node.clone()),
            None => entries.push((key.clone(), node.clone())),
        }
    }
    Some(Node { mark: element.mark, value: Value::Map(entries) })
}

/// Whether a field is merged, key by key. Others are replaced.
fn is_merged(field: &str) -> bool {
    matches!(field, "env" | "timeouts")
}

/// Names the function's own field in a problem that was found in an element, if the element does not
/// have the field.
fn of_writer(problem: &mut Problem, index: usize, element: Option<&Node>) {
    let prefix = format!("spec.revisions[{index}].");
    let Some(rest) = problem.field.strip_prefix(&prefix) else { return };
    let mut names = rest.split(['.', '[']);
    let (field, key) = (names.next().unwrap_or_default(), names.next());
    let written = element.and_then(|element| element.get(field));
    let is_own = match (written, key) {
        (Some(written), Some(key)) if is_merged(field) => written.get(key).is_some(),
        (written, _) => written.is_some(),
    };
    if !is_own {
        problem.field = format!("spec.{rest}");
    }
}
