//! Rules without effect in the configuration in force, of which `leno check` warns too.

use super::{Alert, Severity};
use leno_config::{Document, DocumentId, Problem};
use std::collections::BTreeMap;

/// Notices of one namespace. One more tells how many are left out.
const MOST_OF_NAMESPACE: usize = 20;
/// The fields with rules.
const RULES: &str = "spec.authorization.rules[";

/// The notices about these warnings of a compilation. `documents`: those that were compiled, to name
/// them; files of `leno up` are named by file and line.
pub(crate) fn of_warnings(documents: &[&Document], warnings: &[Problem]) -> Vec<Alert> {
    let mut by_namespace: BTreeMap<&str, (Vec<Alert>, usize)> = BTreeMap::new();
    for problem in warnings.iter().filter(|problem| problem.field.starts_with(RULES)) {
        let document = document(documents, problem);
        let namespace = document.map_or("", |id| &id.namespace);
        let (notices, left_out) = by_namespace.entry(namespace).or_default();
        if notices.len() < MOST_OF_NAMESPACE {
            notices.push(notice(document, problem));
        } else {
            *left_out += 1;
        }
    }
    let mut all = Vec::new();
    for (namespace, (notices, left_out)) in by_namespace {
        all.extend(notices);
        if left_out > 0 {
            let text = format!("{left_out} further rules have no effect");
            all.push(alert(namespace, "policies", text, "`leno check` lists them"));
        }
    }
    all
}

fn notice(document: Option<&DocumentId>, problem: &Problem) -> Alert {
    let place = format!("{}:{}", problem.file.display(), problem.line);
    let subject = document.map_or(place, |id| format!("{} {}/{}", id.kind, id.namespace, id.name));
    let text = format!("{}: {}", problem.field, problem.message);
    let fix = if problem.fix.is_empty() { "change the rule, or remove it" } else { &problem.fix };
    alert(document.map_or("", |id| &id.namespace), &subject, text, fix).about(&problem.field)
}

fn alert(namespace: &str, subject: &str, text: String, fix: &str) -> Alert {
    let alert = Alert::new(Severity::Notice, "ruleWithoutEffect", subject, text, fix);
    Alert { namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()), ..alert }
}

/// The document of a problem: the last one of its file that begins before it.
fn document<'a>(documents: &[&'a Document], problem: &Problem) -> Option<&'a DocumentId> {
    let places = documents.iter().map(|document| (document.place(), document.id()));
    let before = places.filter(|(place, _)| place.file == problem.file && place.line <= problem.line);
    before.max_by_key(|(place, _)| place.line).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn problem(line: u32, field: &str) -> Problem {
        let (file, message) = ("mesh.yaml".into(), "it matches nothing".to_owned());
        Problem { file, line, column: 1, field: field.to_owned(), message, fix: String::new() }
    }

    fn policy(namespace: &str, name: &str) -> String {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: \
             {{functions: [x]}}\n---\n"
        )
    }

    #[test]
    fn a_notice_names_its_document_and_is_of_its_namespace() {
        let text = policy("a", "one") + &policy("b", "two");
        let documents = Document::read(Path::new("mesh.yaml"), &text).unwrap();
        let documents: Vec<&Document> = documents.iter().collect();
        let rule = "spec.authorization.rules[0]";
        let [of_first, of_second] = [4, 9].map(|line| of_warnings(&documents, &[problem(line, rule)]).pop().unwrap());
        assert_eq!((&*of_first.subject, of_first.namespace()), ("Policy a/one", Some("a")));
        assert_eq!((&*of_second.subject, of_second.namespace()), ("Policy b/two", Some("b")));
        assert_eq!(of_first.text, "spec.authorization.rules[0]: it matches nothing");
        let of_file = of_warnings(&[], &[problem(4, rule)]).pop().unwrap();
        assert_eq!((&*of_file.subject, of_file.namespace()), ("mesh.yaml:4", None));
        assert_eq!(of_warnings(&documents, &[problem(4, "spec.callees[0]")]), []);
    }

    #[test]
    fn a_namespace_has_a_bounded_number_of_notices_and_leaves_others_theirs() {
        let text = policy("a", "one") + &policy("b", "two");
        let documents = Document::read(Path::new("mesh.yaml"), &text).unwrap();
        let documents: Vec<&Document> = documents.iter().collect();
        let mut warnings: Vec<Problem> =
            (0..50).map(|number| problem(4, &format!("spec.authorization.rules[{number}]"))).collect();
        warnings.push(problem(9, "spec.authorization.rules[0]"));
        let notices = of_warnings(&documents, &warnings);
        let of = |namespace: &str| notices.iter().filter(|notice| notice.namespace() == Some(namespace)).count();
        assert_eq!((of("a"), of("b")), (MOST_OF_NAMESPACE + 1, 1));
        assert!(notices.iter().any(|notice| notice.text == "30 further rules have no effect"), "{notices:?}");
    }
}
