//! The program: all of one function's policies for one direction, judged in sequence.

use crate::authentication::{self, CheckedToken};
use crate::authorization::{self, RuleInput, Rules};
use crate::fields::Fields;
use crate::host;
use crate::input::{Header, RequestInput};
use crate::needs::Needs;
use crate::outcome::{
    Decision, Denial, HeaderEdit, MAX_CLAUSE, MAX_PRINCIPAL, Output, PolicyKind, Stop, Take, Verdict, Window,
};
use crate::path::{self, Ambiguous, Readings};
use crate::query::Query;
use crate::quota;
use crate::reserved;
use crate::sidecar;
use crate::spec::{Counts, Direction, ProgramSpec, Target};
use crate::words;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// A program that is ready to judge.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    spec: ProgramSpec,
    needs: Needs,
    reads_query: bool,
    /// Whether some of its rules or limits are audited.
    audits: bool,
}

/// Intermediate results of a run.
struct Findings {
    path: Option<String>,
    request_edits: Vec<HeaderEdit>,
    takes: Vec<Take>,
    /// Counters that a request takes from if authentication refuses it.
    failure: Vec<Take>,
    principal: Option<String>,
    audit: Option<Verdict>,
    window: Window,
    asks: Vec<u16>,
}

/// Stands for the allowing rule of a request that no rule allows, when all policies that authorize
/// are audited.
pub const AUDIT: &str = "leno/audit";

impl Program {
    /// Makes a program from its description.
    pub fn new(mut spec: ProgramSpec) -> Self {
        let rules = spec.authorization.iter_mut().flat_map(|rule| &mut rule.to);
        let limits = spec.rate_limits.iter_mut().filter_map(|limit| limit.only.as_mut());
        let authorizers = spec.authorizers.iter_mut().flat_map(|authorizer| &mut authorizer.only);
        rules.chain(limits).chain(authorizers).for_each(|operation| host::prepare(&mut operation.hosts));
        let audits = spec.audit_default || spec.authorization.iter().any(|rule| rule.audit);
        Self { needs: Needs::of(&spec), reads_query: authorization::reads_query(&spec.authorization), audits, spec }
    }

    /// Whether every request with a readable path and host gets the same verdict. Then there is no
    /// policy to isolate.
    pub fn is_constant(&self) -> bool {
        let spec = &self.spec;
        spec.authentication.is_empty()
            && authorization::is_constant(&spec.authorization)
            && spec.rate_limits.is_empty()
            && spec.authorizers.is_empty()
            && sidecar::is_unrestricted(&spec.sidecar)
    }

    /// The data that it needs with each request.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Judges a request.
    pub fn judge(&self, input: &RequestInput<'_>) -> Output {
        let mut findings = Findings {
            path: None,
            request_edits: Vec::new(),
            takes: Vec::new(),
            failure: Vec::new(),
            principal: None,
            audit: None,
            window: Window::ALWAYS,
            asks: Vec::new(),
        };
        let verdict = match self.allow(input, &mut findings) {
            Ok(rule) => Verdict::Allow { rule },
            Err(Stop::Denied(mut denial)) => {
                words::cut(&mut denial.clause, MAX_CLAUSE);
                Verdict::Deny(denial)
            }
            Err(Stop::Unverified(signature)) => return Output::Unverified(*signature),
        };
        let target = matches!(verdict, Verdict::Allow { .. }).then(|| self.target(input)).flatten();
        if target.is_none() {
            // A refused request takes only from counters of refused requests.
            findings.takes = findings.failure;
        }
        Output::Decided(Decision {
            verdict,
            path: findings.path,
            request_edits: findings.request_edits,
            takes: findings.takes,
            principal: findings.principal,
            audit: findings.audit,
            window: findings.window,
            target: target.and_then(|(index, _)| u16::try_from(index).ok()),
            asks: findings.asks,
        })
    }

    /// Applies the policies in order; the first that objects ends the run. Returns the name of the
    /// rule that allows.
    fn allow(&self, input: &RequestInput<'_>, findings: &mut Findings) -> Result<String, Stop> {
        let target = self.target(input);
        let readings = self.readings(input, target.is_some_and(|(_, target)| target.as_received));
        let readings = readings.map_err(|ambiguous| bad_request(ambiguous.words()))?;
        let host = host::of_authority(input.authority).ok_or_else(|| bad_request("the host is not valid"))?;
        let query = self.query(input).map_err(|ambiguous| bad_request(ambiguous.words()))?;
        let target = target.map(|(_, target)| target).ok_or_else(|| self.not_a_callee(input))?;
        sidecar::check(&self.spec.sidecar, input)?;

        let mut payload = Vec::new();
        let judged = authentication::judge(&self.spec, &self.needs, input, &mut payload, &mut findings.window);
        let token = match judged {
            Ok(token) => token,
            Err(denial) => {
                findings.failure = self.failure(&denial, input, &host, &readings);
                return Err(denial.into());
            }
        };
        let principal = token.as_ref().and_then(CheckedToken::principal);
        findings.principal = principal.map(|(issuer, subject)| {
            let mut principal = [issuer, "/", subject].concat();
            words::cut(&mut principal, MAX_PRINCIPAL);
            principal
        });
        let fields = Fields::new(&input.headers, authentication::written(&self.spec, token.as_ref()));
        let asked = RuleInput {
            peer: input.peer,
            namespace: input.peer.identity.and_then(host::namespace_of_identity),
            principal,
            claims: token.as_ref().map(|token| &token.claims),
            method: input.method,
            host: &host,
            port: input.port,
            path: &readings.path,
            other_paths: &readings.others,
            decoded_paths: &readings.decoded,
            sent_query: path::split(input.path).1,
            fields: &fields,
            query: query.as_ref(),
        };
        if let Some(mut signature) = token.as_ref().and_then(|token| token.unverified.clone()) {
            signature.failure = self.failure(&signature.denial, input, &host, &readings);
            return Err(Stop::Unverified(Box::new(signature)));
        }
        let rule = self.authorize(&asked, findings)?;
        findings.takes = quota::takes(&self.spec, &asked);
        let asks = (0..).zip(&self.spec.authorizers);
        let asks = asks.filter(|(_, authorizer)| authorization::may_be_one_of(&authorizer.only, &asked));
        findings.asks.extend(asks.map(|(index, _): (u16, _)| index));

        let forwarded = if target.as_received { path::split(input.path).0 } else { &readings.path };
        self.edit(input, forwarded, token.as_ref(), fields, findings);
        Ok(rule)
    }

    /// The rule that allows, and the verdict if nothing were audited.
    fn authorize(&self, asked: &RuleInput<'_>, findings: &mut Findings) -> Result<String, Denial> {
        let judge = |rules| match self.spec.direction {
            Direction::Inbound => authorization::judge(rules, asked).map(ToString::to_string),
            Direction::Outbound => authorization::narrow(rules, asked)
                .map(|rule| rule.map_or_else(|| format!("{}/callees", self.spec.function), ToString::to_string)),
        };
        let verdict = judge(Rules::in_force(&self.spec.authorization));
        if !self.audits {
            return verdict;
        }
        let whole = judge(Rules::all(&self.spec.authorization));
        let verdict = match (verdict, &whole) {
            (Err(denial), Ok(rule)) if denial.default && self.spec.audit_default => Ok(rule.clone()),
            (Err(denial), Err(_)) if denial.default && self.spec.audit_default => Ok(AUDIT.to_string()),
            (verdict, _) => verdict,
        };
        findings.audit = match (&verdict, whole) {
            (Ok(_), Err(mut denial)) => {
                words::cut(&mut denial.clause, MAX_CLAUSE);
                Some(Verdict::Deny(denial))
            }
            (Err(_), Ok(rule)) => Some(Verdict::Allow { rule }),
            _ => None,
        };
        verdict
    }

    /// The counters that a request with a refused token takes from: no claim of the token counts.
    fn failure(&self, denial: &Denial, input: &RequestInput<'_>, host: &str, readings: &Readings<'_>) -> Vec<Take> {
        // If the keys are missing, the client has not failed to authenticate.
        if denial.status != 401 || self.spec.rate_limits.iter().all(|limit| limit.counts == Counts::Requests) {
            return Vec::new();
        }
        let fields = Fields::new(&input.headers, authentication::written(&self.spec, None));
        let asked = RuleInput {
            peer: input.peer,
            namespace: input.peer.identity.and_then(host::namespace_of_identity),
            principal: None,
            claims: None,
            method: input.method,
            host,
            port: input.port,
            path: &readings.path,
            other_paths: &readings.others,
            decoded_paths: &readings.decoded,
            sent_query: path::split(input.path).1,
            fields: &fields,
            query: None,
        };
        quota::failure(&self.spec, &asked)
    }

    /// Edits of an allowed request: its token is removed, its claims are written to headers, and
    /// the sidecar's rules are applied.
    fn edit(
        &self,
        input: &RequestInput<'_>,
        path: &str,
        token: Option<&CheckedToken<'_>>,
        fields: Fields<'_>,
        findings: &mut Findings,
    ) {
        let edits = &mut findings.request_edits;
        let query = token.and_then(|token| authentication::strip(&self.needs, input, token, edits));
        edits.extend(fields.into_written().into_iter().map(|written| match written.value {
            Some(value) => HeaderEdit::Set(written.name.to_string(), value.into_owned()),
            None => HeaderEdit::Remove(written.name.to_string()),
        }));
        sidecar::request_edits(&self.spec.sidecar, edits);
        remove_twins(&input.headers, edits);
        findings.path = changed(input.path, path, query.as_deref());
    }

    /// The readings of the path without query.
    fn readings<'a>(&self, input: &RequestInput<'a>, as_received: bool) -> Result<Readings<'a>, Ambiguous> {
        let (path, query) = path::split(input.path);
        path::check_query(query.unwrap_or_default())?;
        if path == "*" && input.method != "OPTIONS" {
            return Err(Ambiguous::Asterisk);
        }
        if !as_received {
            return Readings::normal(path);
        }
        let readings = Readings::as_received(path)?;
        if quota::can_count(&self.spec, &readings) { Ok(readings) } else { Err(Ambiguous::TooManyReadings) }
    }

    /// The query's parameters, if a rule looks at them.
    fn query<'a>(&self, input: &RequestInput<'a>) -> Result<Option<Query<'a>>, Ambiguous> {
        if !self.reads_query {
            return Ok(None);
        }
        Query::parse(path::split(input.path).1.unwrap_or_default()).map(Some)
    }

    fn target(&self, input: &RequestInput<'_>) -> Option<(usize, &Target)> {
        self.spec.targets.iter().enumerate().find(|(_, target)| target.function == input.target)
    }

    fn not_a_callee(&self, input: &RequestInput<'_>) -> Denial {
        let asked = if input.target.is_empty() {
            "the host names no function that may be called".to_string()
        } else {
            format!("`{}` is not among the callees", input.target)
        };
        let known = words::list(&self.spec.targets, |target| target.function.clone());
        Denial {
            status: 403,
            policy: PolicyKind::Sidecar,
            rule: format!("{}/callees", self.spec.function),
            default: true,
            clause: format!("{asked}: {known}"),
            headers: Vec::new(),
        }
    }
}

/// A field that a function may take for one that a policy has set or removed (`X_User` for
/// `X-User`) is not forwarded.
fn remove_twins(sent: &[Header<'_>], edits: &mut Vec<HeaderEdit>) {
    let edited = |header: &&Header<'_>| {
        let names = edits.iter().filter_map(|edit| match edit {
            HeaderEdit::Set(name, _) | HeaderEdit::Remove(name) => Some(name.as_str()),
            HeaderEdit::Append(..) => None,
        });
        let mut alike = names.filter(|name| reserved::is_same(name.as_bytes(), header.name.as_bytes())).peekable();
        alike.peek().is_some() && alike.all(|name| name != header.name)
    };
    let twins: Vec<_> = sent.iter().filter(edited).map(|twin| HeaderEdit::Remove(twin.name.to_string())).collect();
    edits.extend(twins);
}

/// The path and query to forward, if they differ from the sent ones. `query` is the query to
/// forward if it was changed.
fn changed(sent: &str, path: &str, query: Option<&str>) -> Option<String> {
    let (sent_path, sent_query) = path::split(sent);
    let query = match query {
        // Nothing is left of it.
        Some("") => None,
        Some(query) => Some(query),
        None => sent_query,
    };
    if sent_path == path && query == sent_query {
        return None;
    }
    let mut forwarded = path.to_string();
    if let Some(query) = query {
        forwarded.push('?');
        for character in query.chars() {
            // Some clients send these raw; in a path that is written anew they are as RFC 3986 wants them.
            if character.is_ascii() {
                forwarded.push(character);
            } else {
                forwarded.extend(character.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("%{byte:02X}")));
            }
        }
    }
    Some(forwarded)
}

fn bad_request(words: &str) -> Denial {
    Denial {
        status: 400,
        policy: PolicyKind::Sidecar,
        rule: "leno/request".to_string(),
        default: false,
        clause: words.to_string(),
        headers: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
