//! Checks of single values, for translators of other projects' documents. Each reports its problems
//! at the place that it gets.

pub use crate::compile::external::HostError;

use crate::compile::forms::Form;
use crate::compile::header::{self, Use};
use crate::compile::{external, template, text};
use crate::document::TextMatch;
use crate::host;
use crate::problem::Scope;
use leno_policy::spec::Cidr;

/// An address or a block of them.
pub fn cidr(scope: &Scope<'_>, text: &str) -> Option<Cidr> {
    text::cidr(scope, text)
}

/// The same, without a report.
pub fn parse_cidr(text: &str) -> Option<Cidr> {
    text::parse_cidr(text).ok()
}

/// A path of a rule.
pub fn path(scope: &Scope<'_>, path: &TextMatch) {
    template::path(scope, path);
}

/// A method of a rule.
pub fn method(scope: &Scope<'_>, method: &TextMatch) {
    text::or_regex(scope, method, Form::Method, text::method);
}

/// A host of a rule.
pub fn host(scope: &Scope<'_>, host: &TextMatch) {
    text::or_regex(scope, host, Form::Host, text::host);
}

/// The name of a header that a rule reads, in lower case.
pub fn header_name(scope: &Scope<'_>, name: &str) -> Option<String> {
    header::name(scope, name, Use::Read)
}

/// `*`, `*.name` or a host, in the form in which hosts are compared. `None`: it is no host.
pub fn host_pattern(text: &str) -> Option<String> {
    host::pattern(text)
}

/// Whether a host in the form in which hosts are compared can be one of an External document.
///
/// # Errors
/// The reason why not.
pub fn external_host(host: &str) -> Result<(), HostError> {
    external::check_host(host)
}
