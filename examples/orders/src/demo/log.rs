//! Reads the access log from its file.

use crate::Result;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// The node writes lines in batches; after this time, a line counts as missing.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The needed fields of a line.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Entry {
    pub request_id: String,
    pub trace_id: String,
    pub span_id: String,
    pub parent_span_id: Option<String>,
    pub direction: String,
    pub source: Option<String>,
    pub target: Option<String>,
    pub status: u16,
    pub verdict: String,
    pub policy: Option<String>,
    pub rule: String,
    pub clause: String,
    #[serde(rename = "default")]
    pub by_default: bool,
    pub attempts: u32,
    pub endpoint: Option<String>,
    /// The whole line.
    #[serde(skip)]
    pub text: String,
}

impl Entry {
    /// The rule that decided, in words.
    pub(crate) fn decided_by(&self) -> String {
        match (self.verdict.as_str(), self.by_default) {
            ("deny", true) if self.rule.is_empty() => format!("no rule: {}", self.clause),
            ("deny", true) => format!("no rule; nearest {}: {}", self.rule, self.clause),
            ("deny", false) => format!("{}: {}", self.rule, self.clause),
            _ => self.rule.clone(),
        }
    }

    pub(crate) fn is_denial_by(&self, policy: &str) -> bool {
        self.verdict == "deny" && self.policy.as_deref() == Some(policy)
    }

    pub(crate) fn is_for(&self, function: &str) -> bool {
        self.target.as_deref() == Some(function)
    }
}

/// The file of the log.
pub(crate) struct AccessLog(pub PathBuf);

impl AccessLog {
    /// All lines of a request's trace, from the gateway to the last function. Waits until they
    /// satisfy the condition; after a timeout, returns the lines so far, which then fail the
    /// caller's checks.
    pub(crate) async fn trace(&self, request_id: &str, complete: impl Fn(&[Entry]) -> bool) -> Result<Vec<Entry>> {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let all = self.entries()?;
            let of_request = all.iter().find(|entry| entry.request_id == request_id);
            let trace_id = of_request.map(|entry| entry.trace_id.clone()).unwrap_or_default();
            let belongs =
                |entry: &Entry| entry.request_id == request_id || !trace_id.is_empty() && entry.trace_id == trace_id;
            let entries: Vec<Entry> = all.iter().filter(|entry| belongs(entry)).cloned().collect();
            if of_request.is_some() && complete(&entries) || tokio::time::Instant::now() >= deadline {
                return Ok(entries);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// All whole lines. The last line may be incomplete, and is then left out.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>> {
        let text = std::fs::read_to_string(&self.0).map_err(|error| format!("{}: {error}", self.0.display()))?;
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let read = |line: &str| -> Result<Entry> {
            let entry: Entry =
                serde_json::from_str(line).map_err(|error| format!("not an access log line: {line}: {error}"))?;
            Ok(Entry { text: line.to_owned(), ..entry })
        };
        whole.lines().map(read).collect()
    }
}
