//! The report of translated policies of other projects.

/// The translation of one field of a policy of another project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranslationRow {
    /// `orders.yaml:12`
    pub place: String,
    /// Kind, namespace and name of the policy.
    pub policy: String,
    /// The path of the field in the policy.
    pub field: String,
    /// The result of the translation.
    pub standing: Standing,
    /// How it is translated, or why not; empty: there is no explanation.
    pub note: String,
}

/// The result of translating a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is in force as it is written.
    Enforced,
    /// It is in force in another form, which allows no more.
    Approximated,
    /// It is not in force, and less is allowed than it says.
    LeftOut,
    /// It cannot be translated: the documents are refused.
    Refused,
}

impl Standing {
    /// The word for it in reports.
    pub fn words(self) -> &'static str {
        match self {
            Self::Enforced => "enforced",
            Self::Approximated => "approximated",
            Self::LeftOut => "left out",
            Self::Refused => "refused",
        }
    }
}
