//! Changes of documents, as rows of a listing.

use anyhow::{Context, Result};
use leno_api::changes::ChangeRecord;
use serde_json::Value;

/// A row with the columns of a table: the documents in words, and the changed verdicts.
pub(crate) fn with_columns(mut row: Value) -> Result<Value> {
    let record: ChangeRecord = serde_json::from_value(row.clone()).context("the answer is not a change")?;
    let words = record.changes.iter().map(|changed| {
        let action = format!("{:?}", changed.action).to_lowercase();
        format!("{} {action}", changed.what)
    });
    row["summary"] = words.collect();
    if let Some(verdicts) = record.verdicts {
        (row["newly_denied"], row["newly_allowed"]) = (verdicts.newly_denied.into(), verdicts.newly_allowed.into());
    }
    Ok(row)
}
