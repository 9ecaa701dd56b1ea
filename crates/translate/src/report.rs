//! The report of the translation, field by field.

use leno_config::Documents;
use leno_config::Scope;
use leno_config::document::Metadata;
use leno_config::{Standing, TranslationRow};
use std::cell::RefCell;

/// Records the translation of the fields of one policy.
pub(super) struct Report<'r> {
    policy: String,
    rows: RefCell<&'r mut Vec<TranslationRow>>,
    documents: &'r Documents,
}

impl<'r> Report<'r> {
    pub(super) fn new(policy: String, rows: &'r mut Vec<TranslationRow>, documents: &'r Documents) -> Self {
        Self { policy, rows: RefCell::new(rows), documents }
    }

    /// Whether this is the host of a function or a job: `name.namespace`.
    pub(super) fn is_function(&self, host: &str) -> bool {
        let of_functions = self.documents.functions.iter().map(|placed| &placed.document.metadata);
        let of_jobs = self.documents.jobs.iter().map(|placed| &placed.document.metadata);
        let is = |metadata: &Metadata| host.split_once('.') == Some((&metadata.name, &metadata.namespace));
        of_functions.chain(of_jobs).any(is)
    }

    pub(super) fn enforced(&self, scope: &Scope<'_>) {
        self.add(scope, Standing::Enforced, "");
    }

    pub(super) fn approximated(&self, scope: &Scope<'_>, how: &str) {
        self.add(scope, Standing::Approximated, how);
    }

    pub(super) fn left_out(&self, scope: &Scope<'_>, why: &str) {
        self.add(scope, Standing::LeftOut, why);
    }

    /// Records a field that cannot be translated, and reports it as a problem.
    pub(super) fn refused(&self, scope: &Scope<'_>, why: &str) {
        self.add(scope, Standing::Refused, why);
        scope.problem(format!("this cannot be translated: {why}"), "remove it, or write a Policy document instead");
    }

    fn add(&self, scope: &Scope<'_>, standing: Standing, note: &str) {
        let (place, field) = (scope.line(), scope.here().field);
        let (policy, note) = (self.policy.clone(), note.to_owned());
        self.rows.borrow_mut().push(TranslationRow { place, policy, field, standing, note });
    }
}
