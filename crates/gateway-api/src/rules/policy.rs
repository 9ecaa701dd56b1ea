//! `BackendTLSPolicy`.

use super::distinct;
use crate::fault::{Faults, Path};
use crate::resource::{
    BackendTLSPolicySpec, LocalPolicyTargetReferenceWithSectionName, SubjectAltName, SubjectAltNameType,
};

pub(super) fn check(spec: &BackendTLSPolicySpec, at: &Path<'_>, faults: &mut Faults) {
    let targets = at.field("targetRefs");
    fn target(of: &LocalPolicyTargetReferenceWithSectionName) -> [&str; 3] {
        [&of.group, &of.kind, &of.name]
    }
    for (index, reference) in spec.target_refs.iter().enumerate() {
        let earlier = spec.target_refs[..index].iter().position(|other| target(other) == target(reference));
        if let Some(first) = earlier
            && spec.target_refs[first].section_name.is_some() != reference.section_name.is_some()
        {
            let message = format!("element {first} refers to the same target, with other fields");
            faults.add(&targets.element(index), message, "write `sectionName` in both");
        }
    }
    let part = |reference: &LocalPolicyTargetReferenceWithSectionName| {
        Some((target(reference).map(str::to_owned), reference.section_name.clone()))
    };
    let message = "a reference to the same part of the target is there twice";
    distinct(spec.target_refs.iter().map(part), &targets, "", message, faults);

    let (validation, path) = (&spec.validation, at.field("validation"));
    let certificates = !validation.ca_certificate_refs.is_empty();
    let well_known = validation.well_known_ca_certificates.is_some();
    if certificates == well_known {
        let message = match certificates {
            true => "`caCertificateRefs` and `wellKnownCACertificates` exclude each other",
            false => "no authority is named",
        };
        faults.add(&path, message, "write either `caCertificateRefs` or `wellKnownCACertificates: System`");
    }
    let names = path.field("subjectAltNames");
    for (index, name) in validation.subject_alt_names.iter().enumerate() {
        check_name(name, &names.element(index), faults);
    }
}

fn check_name(name: &SubjectAltName, at: &Path<'_>, faults: &mut Faults) {
    let (hostname, uri) = (("hostname", name.hostname.is_some()), ("uri", name.uri.is_some()));
    let (kind, wanted, other) = match name.r#type {
        SubjectAltNameType::Hostname => ("Hostname", hostname, uri),
        SubjectAltNameType::URI => ("URI", uri, hostname),
    };
    if !wanted.1 {
        faults.add(at, format!("a name of type `{kind}` needs `{}`", wanted.0), "add it");
    }
    if other.1 {
        faults.add(&at.field(other.0), format!("a name of type `{kind}` has no `{}`", other.0), "remove it");
    }
}
