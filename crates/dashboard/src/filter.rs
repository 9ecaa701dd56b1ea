//! Selects flows, for `leno observe` and for the page.

use leno_telemetry::flows::{Flow, Flows};
use serde::{Deserialize, Serialize};

/// Which flows are wanted: those that match all fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FlowFilter {
    /// A function at one end, caller or callee: `name`, or `namespace/name`.
    pub function: Option<String>,
    /// `allow`, `deny` or `error`.
    pub verdict: Option<String>,
    /// A path, or, with `*` at its end, a prefix of paths.
    pub path: Option<String>,
    /// The port in the request's host.
    pub port: Option<u16>,
    /// A part of the name of the rule that decided.
    pub rule: Option<String>,
    /// The kind of the flow.
    pub kind: Option<String>,
}

/// A question to a control plane for flows: the parameters of `/v1/flows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FlowQuery<'a> {
    /// `after` of the answer before.
    pub after: Option<&'a str>,
    /// At most so many, the latest ones.
    pub last: Option<u32>,
    /// Which ones.
    #[serde(flatten)]
    pub filter: &'a FlowFilter,
}

impl FlowQuery<'_> {
    /// The path and query of a request.
    pub fn path(&self) -> String {
        // It has no failing types.
        format!("/v1/flows?{}", serde_urlencoded::to_string(self).unwrap_or_default())
    }

    /// Applies the query to the answer of a node, which is for all flows.
    pub fn select(&self, answer: &mut Flows) {
        answer.flows.retain(|flow| self.filter.matches(flow));
        let last = self.last.map_or(usize::MAX, |last| last as usize);
        let beyond = answer.flows.len().saturating_sub(last);
        answer.flows.drain(..beyond);
        answer.missed += beyond as u64;
    }
}

impl FlowFilter {
    /// Whether a flow is wanted.
    pub fn matches(&self, flow: &Flow) -> bool {
        let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        is(&self.verdict, &flow.verdict)
            && is(&self.kind, &flow.kind)
            && self.path.as_deref().is_none_or(|path| match path.strip_suffix('*') {
                Some(begin) => flow.path.starts_with(begin),
                None => flow.path == path,
            })
            && self.port.is_none_or(|port| flow.port == Some(port))
            && self.rule.as_deref().is_none_or(|rule| flow.rule.contains(rule))
            && self.function.as_deref().is_none_or(|function| concerns(flow, function))
    }
}

/// Whether a function is at one end: by the target, by a SPIFFE ID `…/ns/NAMESPACE/sa/NAME`, or by
/// an instance `NAMESPACE/NAME-…`.
fn concerns(flow: &Flow, function: &str) -> bool {
    let is_named = |name: &str| match function.contains('/') {
        true => name == function,
        false => name.rsplit_once('/').is_some_and(|(_, name)| name == function),
    };
    let caller = match flow.source.rsplit_once("/ns/") {
        Some((_, names)) => names.replace("/sa/", "/"),
        None => flow.source.rsplit_once('-').map_or_else(|| flow.source.clone(), |(instance, _)| instance.to_owned()),
    };
    flow.target.as_deref().is_some_and(is_named) || is_named(&caller)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_the_parameters_of_the_api_and_selects_the_last_ones() {
        let filter = FlowFilter { path: Some("/a b*&x".to_owned()), port: Some(80), ..FlowFilter::default() };
        let query = FlowQuery { after: Some("one:7-1"), last: Some(2), filter: &filter };
        assert_eq!(query.path(), "/v1/flows?after=one%3A7-1&last=2&path=%2Fa+b*%26x&port=80");
        let denied = FlowFilter { verdict: Some("deny".to_owned()), ..FlowFilter::default() };
        let flow = |status, verdict: &str| Flow { status, verdict: verdict.to_owned(), ..Flow::default() };
        let flows = vec![flow(1, "deny"), flow(2, "deny"), flow(3, "deny"), flow(4, "allow")];
        let mut answer = Flows { flows, missed: 5, next: String::new() };
        FlowQuery { after: None, last: Some(2), filter: &denied }.select(&mut answer);
        assert_eq!((answer.flows.iter().map(|flow| flow.status).collect::<Vec<_>>(), answer.missed), (vec![2, 3], 6));
    }

    #[test]
    fn a_function_is_found_at_both_ends() {
        let flow = |source: &str, target: Option<&str>| Flow {
            source: source.to_owned(),
            target: target.map(str::to_owned),
            ..Flow::default()
        };
        let call = flow("spiffe://mesh.example/ns/shop/sa/cart", Some("shop/stock"));
        for (function, expected) in
            [("cart", true), ("shop/cart", true), ("shop/stock", true), ("art", false), ("other/stock", false)]
        {
            assert_eq!(concerns(&call, function), expected, "{function}");
        }
        let lookup = flow("shop/cart-12", None);
        assert!(concerns(&lookup, "cart") && concerns(&lookup, "shop/cart") && !concerns(&lookup, "stock"));
        assert!(!concerns(&flow("203.0.113.7", None), "cart"));
    }
}
