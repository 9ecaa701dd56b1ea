//! Results of scenarios, stored in a folder, so that hours of measuring can be split into several
//! runs.

use super::figures::ScenarioResult;
use super::scenario::Scenario;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Serialize, Deserialize)]
struct StoredResult<M> {
    /// Under which it was measured, as reports have them.
    conditions: Value,
    measured: M,
}

/// A scenario that was measured before under the same conditions. An error, if the conditions were
/// others.
pub(super) fn load(folder: &Path, scenario: Scenario, conditions: &Value) -> anyhow::Result<Option<ScenarioResult>> {
    let file = file(folder, scenario);
    if !file.exists() {
        return Ok(None);
    }
    let text = fs::read(&file).with_context(|| format!("{} cannot be read", file.display()))?;
    let kept: StoredResult<ScenarioResult> = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not what --keep writes; remove it", file.display()))?;
    if let Some(difference) = difference(&kept.conditions, conditions) {
        bail!("{} was measured under other conditions: {difference}; remove it or name another folder", file.display());
    }
    Ok(Some(kept.measured))
}

/// Keeps a scenario.
pub(super) fn save(folder: &Path, conditions: &Value, measured: &ScenarioResult) -> anyhow::Result<()> {
    let file = file(folder, measured.scenario);
    let text = serde_json::to_vec(&StoredResult { conditions: conditions.clone(), measured })?;
    // Not a part of it, whatever happens.
    let part = file.with_extension("part");
    let written =
        fs::create_dir_all(folder).and_then(|()| fs::write(&part, text)).and_then(|()| fs::rename(&part, &file));
    written.with_context(|| format!("{} cannot be written", file.display()))
}

fn file(folder: &Path, scenario: Scenario) -> PathBuf {
    folder.join(scenario.name()).with_extension("json")
}

/// The first of them that is not the same, in words.
fn difference(kept: &Value, now: &Value) -> Option<String> {
    let (kept, now) = (kept.as_object()?, now.as_object()?);
    let names = now.keys().chain(kept.keys());
    let mut different = names.filter(|name| kept.get(*name) != now.get(*name));
    different.next().map(|name| {
        let [kept, now] = [kept, now].map(|all| all.get(name).map_or_else(|| "nothing".to_owned(), Value::to_string));
        format!("`{name}` was {kept}, and is {now}")
    })
}

#[cfg(test)]
mod tests {
    use super::super::replay::{Completion, ReplayResult};
    use super::super::watch::ScenarioUsage;
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn what_is_kept_comes_back_under_the_same_conditions_only() {
        let folder = tempfile::tempdir().unwrap();
        let conditions = json!({"minutes": 30, "seed": 42});
        let done = Completion {
            late: Duration::from_micros(3),
            latency: Duration::from_millis(7),
            status: Some(200),
            life: None,
            error: None,
        };
        let replayed = ReplayResult { epoch: 5, all: vec![done.clone()] };
        let measured =
            ScenarioResult { scenario: Scenario::Wasm, replayed, watched: ScenarioUsage::default(), start_s: 0.5 };
        save(folder.path(), &conditions, &measured).unwrap();
        assert!(load(folder.path(), Scenario::None, &conditions).unwrap().is_none());
        let again = load(folder.path(), Scenario::Wasm, &conditions).unwrap().unwrap();
        assert_eq!(again.replayed.all, [done]);
        assert_eq!((again.scenario, again.start_s), (Scenario::Wasm, 0.5));

        let others = load(folder.path(), Scenario::Wasm, &json!({"minutes": 3, "seed": 42}));
        let text = others.err().unwrap().to_string();
        assert!(text.contains("`minutes` was 30, and is 3"), "{text}");
        fs::write(folder.path().join("wasm.json"), "{}").unwrap();
        assert!(load(folder.path(), Scenario::Wasm, &conditions).is_err());
    }
}
