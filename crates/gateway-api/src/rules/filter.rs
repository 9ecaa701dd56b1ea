//! Filters of `HTTPRoute` and `GRPCRoute`.

use super::route::check_backend;
use crate::fault::{Faults, Path};
use crate::resource::{
    GRPCRouteFilter, GRPCRouteFilterType, HTTPCORSFilter, HTTPExternalAuthFilter, HTTPPathModifier,
    HTTPPathModifierType, HTTPRequestMirrorFilter, HTTPRouteExternalAuthProtocol, HTTPRouteFilter, HTTPRouteFilterType,
};

/// A filter, as its rules look at it.
pub(super) trait Filter {
    /// The name of its type.
    fn name(&self) -> &'static str;
    /// The field of its type.
    fn field(&self) -> &'static str;
    /// The fields that it has.
    fn fields(&self) -> Vec<&'static str>;
    /// Its changes of paths, each with the field that has it.
    fn paths(&self) -> [(&'static str, Option<&HTTPPathModifier>); 2];
    /// Its mirror.
    fn mirror(&self) -> Option<&HTTPRequestMirrorFilter>;
    /// Its cross-origin rules.
    fn cors(&self) -> Option<&HTTPCORSFilter>;
    /// Its authorizer.
    fn authorizer(&self) -> Option<&HTTPExternalAuthFilter>;
}

fn present<const N: usize>(fields: [(&'static str, bool); N]) -> Vec<&'static str> {
    fields.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

impl Filter for HTTPRouteFilter {
    fn name(&self) -> &'static str {
        match self.r#type {
            HTTPRouteFilterType::RequestHeaderModifier => "RequestHeaderModifier",
            HTTPRouteFilterType::ResponseHeaderModifier => "ResponseHeaderModifier",
            HTTPRouteFilterType::RequestMirror => "RequestMirror",
            HTTPRouteFilterType::RequestRedirect => "RequestRedirect",
            HTTPRouteFilterType::URLRewrite => "URLRewrite",
            HTTPRouteFilterType::ExtensionRef => "ExtensionRef",
            HTTPRouteFilterType::CORS => "CORS",
            HTTPRouteFilterType::ExternalAuth => "ExternalAuth",
        }
    }

    fn field(&self) -> &'static str {
        match self.r#type {
            HTTPRouteFilterType::RequestHeaderModifier => "requestHeaderModifier",
            HTTPRouteFilterType::ResponseHeaderModifier => "responseHeaderModifier",
            HTTPRouteFilterType::RequestMirror => "requestMirror",
            HTTPRouteFilterType::RequestRedirect => "requestRedirect",
            HTTPRouteFilterType::URLRewrite => "urlRewrite",
            HTTPRouteFilterType::ExtensionRef => "extensionRef",
            HTTPRouteFilterType::CORS => "cors",
            HTTPRouteFilterType::ExternalAuth => "externalAuth",
        }
    }

    fn fields(&self) -> Vec<&'static str> {
        present([
            ("requestHeaderModifier", self.request_header_modifier.is_some()),
            ("responseHeaderModifier", self.response_header_modifier.is_some()),
            ("requestMirror", self.request_mirror.is_some()),
            ("requestRedirect", self.request_redirect.is_some()),
            ("urlRewrite", self.url_rewrite.is_some()),
            ("extensionRef", self.extension_ref.is_some()),
            ("cors", self.cors.is_some()),
            ("externalAuth", self.external_auth.is_some()),
        ])
    }

    fn paths(&self) -> [(&'static str, Option<&HTTPPathModifier>); 2] {
        let redirect = self.request_redirect.as_ref().and_then(|redirect| redirect.path.as_ref());
        let rewrite = self.url_rewrite.as_ref().and_then(|rewrite| rewrite.path.as_ref());
        [("requestRedirect", redirect), ("urlRewrite", rewrite)]
    }

    fn mirror(&self) -> Option<&HTTPRequestMirrorFilter> {
        self.request_mirror.as_ref()
    }

    fn cors(&self) -> Option<&HTTPCORSFilter> {
        self.cors.as_ref()
    }

    fn authorizer(&self) -> Option<&HTTPExternalAuthFilter> {
        self.external_auth.as_ref()
    }
}

impl Filter for GRPCRouteFilter {
    fn name(&self) -> &'static str {
        match self.r#type {
            GRPCRouteFilterType::RequestHeaderModifier => "RequestHeaderModifier",
            GRPCRouteFilterType::ResponseHeaderModifier => "ResponseHeaderModifier",
            GRPCRouteFilterType::RequestMirror => "RequestMirror",
            GRPCRouteFilterType::ExtensionRef => "ExtensionRef",
        }
    }

    fn field(&self) -> &'static str {
        match self.r#type {
            GRPCRouteFilterType::RequestHeaderModifier => "requestHeaderModifier",
            GRPCRouteFilterType::ResponseHeaderModifier => "responseHeaderModifier",
            GRPCRouteFilterType::RequestMirror => "requestMirror",
            GRPCRouteFilterType::ExtensionRef => "extensionRef",
        }
    }

    fn fields(&self) -> Vec<&'static str> {
        present([
            ("requestHeaderModifier", self.request_header_modifier.is_some()),
            ("responseHeaderModifier", self.response_header_modifier.is_some()),
            ("requestMirror", self.request_mirror.is_some()),
            ("extensionRef", self.extension_ref.is_some()),
        ])
    }

    fn paths(&self) -> [(&'static str, Option<&HTTPPathModifier>); 2] {
        [("requestRedirect", None), ("urlRewrite", None)]
    }

    fn mirror(&self) -> Option<&HTTPRequestMirrorFilter> {
        self.request_mirror.as_ref()
    }

    fn cors(&self) -> Option<&HTTPCORSFilter> {
        None
    }

    fn authorizer(&self) -> Option<&HTTPExternalAuthFilter> {
        None
    }
}

/// The filters of a rule or of a back end.
pub(super) fn check_filters(filters: &[impl Filter], at: &Path<'_>, faults: &mut Faults) {
    /// Others may be there several times.
    const ONCE: [&str; 5] =
        ["RequestHeaderModifier", "ResponseHeaderModifier", "RequestRedirect", "URLRewrite", "CORS"];
    for (index, filter) in filters.iter().enumerate() {
        let (path, name) = (at.element(index), filter.name());
        check_filter(filter, &path, faults);
        let earlier = &filters[..index];
        if let Some(first) = earlier.iter().position(|other| ONCE.contains(&name) && other.name() == name) {
            let message = format!("a `{name}` is there twice, also in element {first}");
            faults.add(&path, message, "write both in one");
        }
        let excluded = match name {
            "RequestRedirect" => "URLRewrite",
            "URLRewrite" => "RequestRedirect",
            _ => continue,
        };
        if earlier.iter().any(|other| other.name() == excluded) {
            let message = format!("`{name}` and `{excluded}` exclude each other");
            faults.add(&path, message, "keep one of the two");
        }
    }
}

fn check_filter(filter: &impl Filter, at: &Path<'_>, faults: &mut Faults) {
    let (name, wanted, fields) = (filter.name(), filter.field(), filter.fields());
    if !fields.contains(&wanted) {
        faults.add(at, format!("a filter of type `{name}` needs `{wanted}`"), "add it");
    }
    for field in fields.into_iter().filter(|field| *field != wanted) {
        let message = format!("a filter of type `{name}` has no `{field}`");
        faults.add(&at.field(field), message, "remove it, or make another filter of it");
    }
    for (field, path) in filter.paths() {
        if let Some(path) = path {
            check_path_modifier(path, &at.field(field).field("path"), faults);
        }
    }
    if let Some(mirror) = filter.mirror() {
        check_mirror(mirror, &at.field("requestMirror"), faults);
    }
    if let Some(cors) = filter.cors() {
        check_cors(cors, &at.field("cors"), faults);
    }
    if let Some(authorizer) = filter.authorizer() {
        check_authorizer(authorizer, &at.field("externalAuth"), faults);
    }
}

fn check_path_modifier(modifier: &HTTPPathModifier, at: &Path<'_>, faults: &mut Faults) {
    let full = ("replaceFullPath", modifier.replace_full_path.is_some());
    let prefix = ("replacePrefixMatch", modifier.replace_prefix_match.is_some());
    let (name, wanted, other) = match modifier.r#type {
        HTTPPathModifierType::ReplaceFullPath => ("ReplaceFullPath", full, prefix),
        HTTPPathModifierType::ReplacePrefixMatch => ("ReplacePrefixMatch", prefix, full),
    };
    if !wanted.1 {
        faults.add(at, format!("`{name}` needs `{}`", wanted.0), "add it");
    }
    if other.1 {
        faults.add(&at.field(other.0), format!("`{name}` has no `{}`", other.0), "remove it");
    }
}

fn check_mirror(mirror: &HTTPRequestMirrorFilter, at: &Path<'_>, faults: &mut Faults) {
    check_backend(&mirror.backend_ref, &at.field("backendRef"), faults);
    let Some(fraction) = &mirror.fraction else { return };
    let path = at.field("fraction");
    if mirror.percent.is_some() {
        faults.add(&path, "`percent` and `fraction` exclude each other", "keep one of the two");
    }
    if fraction.numerator > fraction.denominator {
        let message = format!("{} is more than the denominator, {}", fraction.numerator, fraction.denominator);
        faults.add(&path.field("numerator"), message, "expected at most the denominator");
    }
}

fn check_cors(cors: &HTTPCORSFilter, at: &Path<'_>, faults: &mut Faults) {
    for (field, list) in [
        ("allowHeaders", &cors.allow_headers),
        ("allowMethods", &cors.allow_methods),
        ("allowOrigins", &cors.allow_origins),
    ] {
        if list.len() > 1 && list.iter().any(|text| text == "*") {
            faults.add(&at.field(field), "`*` stands for all others", "write `*` alone, or remove it");
        }
    }
}

fn check_authorizer(authorizer: &HTTPExternalAuthFilter, at: &Path<'_>, faults: &mut Faults) {
    check_backend(&authorizer.backend_ref, &at.field("backendRef"), faults);
    let (grpc, http) = (("grpc", authorizer.grpc.is_some()), ("http", authorizer.http.is_some()));
    let (name, wanted, other) = match authorizer.protocol {
        HTTPRouteExternalAuthProtocol::GRPC => ("GRPC", grpc, http),
        HTTPRouteExternalAuthProtocol::HTTP => ("HTTP", http, grpc),
    };
    if !wanted.1 {
        faults.add(at, format!("the protocol `{name}` needs `{}`", wanted.0), "add it");
    }
    if other.1 {
        faults.add(&at.field(other.0), format!("the protocol `{name}` has no `{}`", other.0), "remove it");
    }
}
