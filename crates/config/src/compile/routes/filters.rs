//! Filters of rules and of back ends.

use super::backends::{Reference, References};
use super::{external_auth, patterns};
use crate::compile::header::{self, Use};
use crate::problem::Scope;
use leno_gateway_api::{
    GRPCRouteFilter, HTTPCORSFilter, HTTPExternalAuthFilter, HTTPHeader, HTTPHeaderFilter, HTTPPathModifier,
    HTTPPathModifierType, HTTPRequestMirrorFilter, HTTPRequestRedirectFilter, HTTPRouteFilter, HTTPURLRewriteFilter,
};
use leno_model::{BackendTarget, Cors, HeaderModifier, Mirror, PathChange, Redirect, Rewrite, RouteFilter, RouteMatch};
use std::time::Duration;

/// A filter as a document writes it.
#[derive(Clone, Copy)]
pub(super) enum Filter<'a> {
    RequestHeaders(&'a HTTPHeaderFilter),
    ResponseHeaders(&'a HTTPHeaderFilter),
    Mirror(&'a HTTPRequestMirrorFilter),
    Redirect(&'a HTTPRequestRedirectFilter),
    Rewrite(&'a HTTPURLRewriteFilter),
    Cors(&'a HTTPCORSFilter),
    ExternalAuth(&'a HTTPExternalAuthFilter),
    Extension(&'a str),
}

/// Where a filter is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Rule,
    Backend,
}

impl<'a> Filter<'a> {
    pub(super) fn of_http(filter: &'a HTTPRouteFilter) -> Self {
        let HTTPRouteFilter {
            cors,
            extension_ref,
            external_auth,
            request_header_modifier,
            request_mirror,
            request_redirect,
            response_header_modifier,
            r#type: _,
            url_rewrite,
        } = filter;
        // The schema has checked that it has the field of its type, and no other.
        let headers = request_header_modifier.as_ref().map(Self::RequestHeaders);
        headers
            .or_else(|| response_header_modifier.as_ref().map(Self::ResponseHeaders))
            .or_else(|| request_mirror.as_ref().map(Self::Mirror))
            .or_else(|| request_redirect.as_ref().map(Self::Redirect))
            .or_else(|| url_rewrite.as_ref().map(Self::Rewrite))
            .or_else(|| cors.as_ref().map(Self::Cors))
            .or_else(|| external_auth.as_ref().map(Self::ExternalAuth))
            .unwrap_or_else(|| Self::Extension(extension_ref.as_ref().map_or("", |extension| &extension.kind)))
    }

    pub(super) fn of_grpc(filter: &'a GRPCRouteFilter) -> Self {
        let GRPCRouteFilter {
            extension_ref,
            request_header_modifier,
            request_mirror,
            response_header_modifier,
            r#type: _,
        } = filter;
        let headers = request_header_modifier.as_ref().map(Self::RequestHeaders);
        headers
            .or_else(|| response_header_modifier.as_ref().map(Self::ResponseHeaders))
            .or_else(|| request_mirror.as_ref().map(Self::Mirror))
            .unwrap_or_else(|| Self::Extension(extension_ref.as_ref().map_or("", |extension| &extension.kind)))
    }

    /// The name of its field.
    fn field(self) -> &'static str {
        match self {
            Self::RequestHeaders(_) => "requestHeaderModifier",
            Self::ResponseHeaders(_) => "responseHeaderModifier",
            Self::Mirror(_) => "requestMirror",
            Self::Redirect(_) => "requestRedirect",
            Self::Rewrite(_) => "urlRewrite",
            Self::Cors(_) => "cors",
            Self::ExternalAuth(_) => "externalAuth",
            Self::Extension(_) => "extensionRef",
        }
    }
}

/// The filters of a rule or a back end.
///
/// # Errors
/// The reason for which its requests get an error: a filter that no gateway carries out.
pub(super) fn compiled(
    references: &References<'_>,
    list: &Scope<'_>,
    filters: &[Filter<'_>],
    matches: &[RouteMatch],
    level: Level,
) -> Result<Vec<RouteFilter>, String> {
    let mut compiled = Vec::new();
    for (index, filter) in filters.iter().enumerate() {
        let element = list.element(index);
        let scope = element.field(filter.field());
        if level == Level::Backend && matches!(filter, Filter::Redirect(_) | Filter::Cors(_)) {
            scope.problem("a back end cannot have this filter", "give it to the rule");
            continue;
        }
        compiled.extend(match filter {
            Filter::RequestHeaders(written) => headers(&scope, written).map(RouteFilter::RequestHeaders),
            Filter::ResponseHeaders(written) => headers(&scope, written).map(RouteFilter::ResponseHeaders),
            Filter::Mirror(written) => mirror(references, &scope, written).map(RouteFilter::Mirror),
            Filter::Redirect(written) => Some(RouteFilter::Redirect(redirect(&scope, written, matches))),
            Filter::Rewrite(written) => Some(RouteFilter::Rewrite(rewrite(&scope, written, matches))),
            Filter::Cors(written) => Some(RouteFilter::Cors(cors(written))),
            Filter::ExternalAuth(written) => {
                let authorizer = external_auth::compiled(references, &scope, written, index)?;
                Some(RouteFilter::Authorize(Box::new(authorizer)))
            }
            Filter::Extension(kind) => {
                let message = format!("there is no filter of the kind `{}`", kind.escape_debug());
                let fix = "use `extensions` of a Policy for the function";
                return Err(refused(references, &scope, message, fix));
            }
        });
    }
    let has = |kind: fn(&RouteFilter) -> bool| compiled.iter().any(kind);
    if has(|it| matches!(it, RouteFilter::Redirect(_))) && has(|it| matches!(it, RouteFilter::Authorize(_))) {
        let message = "a redirect is answered before an authorizer is asked".to_owned();
        return Err(refused(references, list, message, "remove one of the two"));
    }
    Ok(compiled)
}

pub(super) fn refused(references: &References<'_>, scope: &Scope<'_>, message: String, fix: &str) -> String {
    references.invalid(scope, "InvalidKind", message.clone(), fix);
    message
}

fn headers(scope: &Scope<'_>, written: &HTTPHeaderFilter) -> Option<HeaderModifier> {
    let mut names: Vec<(&str, String)> = Vec::new();
    let mut name = |place: &Scope<'_>, list: &'static str, written: &str| {
        let name = header::name(place, written, Use::Edit)?;
        match names.iter().find(|(_, other)| *other == name) {
            // Of several elements with one name, the first one counts.
            Some((other, _)) if *other == list => None,
            Some((other, _)) => {
                place.problem(format!("`{name}` is in `{other}` too"), "name a header in one list only");
                None
            }
            None => {
                names.push((list, name.clone()));
                Some(name)
            }
        }
    };
    let mut fields = |list: &'static str, written: &[HTTPHeader]| {
        let place = scope.field(list);
        let field = |(index, field): (usize, &HTTPHeader)| {
            let element = place.element(index);
            let value = header::value(&element.field("value"), &field.value);
            Some((name(&element.field("name"), list, &field.name)?, value?))
        };
        written.iter().enumerate().filter_map(field).collect::<Vec<_>>()
    };
    let (set, add) = (fields("set", &written.set), fields("add", &written.add));
    let place = scope.field("remove");
    let remove = written.remove.iter().enumerate();
    let remove = remove.filter_map(|(index, written)| name(&place.element(index), "remove", written)).collect();
    Some(HeaderModifier { set, add, remove })
}

fn mirror(references: &References<'_>, scope: &Scope<'_>, written: &HTTPRequestMirrorFilter) -> Option<Mirror> {
    let leno_gateway_api::BackendObjectReference { group, kind, name, namespace, port } = &written.backend_ref;
    let reference = Reference { group, kind, namespace: namespace.as_deref(), name, port: *port };
    let target = references.target(&scope.field("backendRef"), reference);
    // A copy that cannot be sent is not sent.
    if matches!(target, BackendTarget::Invalid(_)) {
        return None;
    }
    let (numerator, denominator) = match (&written.fraction, written.percent) {
        (Some(fraction), _) => (fraction.numerator, fraction.denominator.max(1)),
        (None, Some(percent)) => (percent.into(), 100),
        (None, None) => (1, 1),
    };
    Some(Mirror { target, numerator, denominator })
}

fn redirect(scope: &Scope<'_>, written: &HTTPRequestRedirectFilter, matches: &[RouteMatch]) -> Redirect {
    let host = written.hostname.as_deref().and_then(|host| patterns::host(&scope.field("hostname"), host));
    let path = written.path.as_ref().and_then(|path| change(&scope.field("path"), path, matches));
    Redirect { scheme: written.scheme.clone(), host, path, port: written.port, status: written.status_code }
}

fn rewrite(scope: &Scope<'_>, written: &HTTPURLRewriteFilter, matches: &[RouteMatch]) -> Rewrite {
    let host = written.hostname.as_deref().and_then(|host| patterns::host(&scope.field("hostname"), host));
    let path = written.path.as_ref().and_then(|path| change(&scope.field("path"), path, matches));
    Rewrite { host, path }
}

fn change(scope: &Scope<'_>, written: &HTTPPathModifier, matches: &[RouteMatch]) -> Option<PathChange> {
    match written.r#type {
        HTTPPathModifierType::ReplaceFullPath => {
            patterns::full_path(&scope.field("replaceFullPath"), written.replace_full_path.as_deref().unwrap_or("/"))
        }
        HTTPPathModifierType::ReplacePrefixMatch => {
            let written = written.replace_prefix_match.as_deref().unwrap_or_default();
            patterns::prefix_path(&scope.field("replacePrefixMatch"), written, matches)
        }
    }
}

fn cors(written: &HTTPCORSFilter) -> Cors {
    Cors {
        allow_origins: written.allow_origins.clone(),
        allow_credentials: written.allow_credentials.unwrap_or_default(),
        allow_methods: written.allow_methods.clone(),
        allow_headers: written.allow_headers.clone(),
        expose_headers: written.expose_headers.clone(),
        max_age: Duration::from_secs(written.max_age.into()),
    }
}
