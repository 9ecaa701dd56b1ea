//! What became of policies of other projects.

/// What became of a field of a policy of another project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// `orders.yaml:12`
    pub place: String,
    /// Kind, namespace and name of the policy.
    pub policy: String,
    /// Where it is in the policy.
    pub field: String,
    /// What became of it.
    pub standing: Standing,
    /// How, or why not; empty: there is nothing more to say.
    pub note: String,
}

/// What became of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is in force as it is written.
    Enforced,
    /// It is in force in another way, which lets in no more.
    Approximated,
    /// It is not in force, and less is allowed than it says.
    LeftOut,
    /// It cannot be translated: the documents are refused.
    Refused,
}

impl Standing {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Enforced => "enforced",
            Self::Approximated => "approximated",
            Self::LeftOut => "left out",
            Self::Refused => "refused",
        }
    }
}
