//! The latest looks at a mesh: close together for the last seconds, further apart before.

use crate::mesh::Mesh;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Age beyond which looks are forgotten. One look may be older, so that the longest window is whole.
const LONGEST: Duration = Duration::from_secs(900);
/// Two looks of this age are at least a tenth of it apart, so there are a few dozen.
const STEPS: u32 = 10;
/// Most counts, of edges and of refusals, in all looks. Of a large mesh there are fewer looks.
const COUNTS: usize = 50_000;

/// Looks, oldest first.
#[derive(Default)]
pub(crate) struct History(VecDeque<Mesh>);

impl History {
    /// Adds a look, and forgets looks that no window needs.
    pub(crate) fn push(&mut self, mesh: Mesh) {
        let now = mesh.at;
        if let Some(last) = self.0.back_mut() {
            last.keep_counts();
        }
        self.0.push_back(mesh);
        while self.0.len() > 1 && age(now, &self.0[1]) >= LONGEST {
            self.0.pop_front();
        }
        // A look may go if its neighbours are close together for their age.
        let mut index = 1;
        while index + 1 < self.0.len() {
            let [before, this, after] = [index - 1, index, index + 1].map(|place| self.0[place].at);
            match after.saturating_duration_since(before) * STEPS <= now.saturating_duration_since(this) {
                true => drop(self.0.remove(index)),
                false => index += 1,
            }
        }
        while self.0.len() > 3 && self.0.iter().map(Mesh::counts).sum::<usize>() > COUNTS {
            self.0.remove(1);
        }
    }

    /// The latest look.
    pub(crate) fn last(&self) -> Option<&Mesh> {
        self.0.back()
    }

    /// The earlier look whose distance from the latest one is closest to a window.
    pub(crate) fn before(&self, window: Duration) -> Option<&Mesh> {
        let now = self.last()?.at;
        let earlier = self.0.iter().take(self.0.len().saturating_sub(1));
        earlier.min_by_key(|mesh| age(now, mesh).abs_diff(window))
    }
}

fn age(now: Instant, mesh: &Mesh) -> Duration {
    now.saturating_duration_since(mesh.at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Refusal;
    use serde_json::json;

    fn look(at: Instant) -> Mesh {
        Mesh { at, functions: Vec::new(), edges: Vec::new(), refusals: Vec::new(), missing: Vec::new() }
    }

    #[test]
    fn every_window_has_a_look_about_as_old_and_there_are_few() {
        let (mut history, begin) = (History::default(), Instant::now());
        let mut now = begin;
        for _ in 0..2000 {
            now += Duration::from_secs(2);
            history.push(look(now));
            assert!(history.0.len() < 80, "{}", history.0.len());
            for window in [10, 60, 300, 900].map(Duration::from_secs) {
                let Some(before) = history.before(window) else { continue };
                let expected = window.min(now - begin - Duration::from_secs(2));
                let wrong = age(now, before).abs_diff(expected);
                assert!(wrong <= expected / 8 + Duration::from_secs(2), "{window:?}: {:?}", age(now, before));
            }
        }
        assert!(age(now, &history.0[0]) < LONGEST * 5 / 4);
    }

    #[test]
    fn looks_at_a_mesh_with_many_refusals_are_fewer() {
        let (mut history, begin) = (History::default(), Instant::now());
        let refusal = json!({
            "function": "shop/web", "asked": "name", "host": "outside.example", "port": null, "callee": null, "count": 1,
        });
        let refusals: Vec<Refusal> = vec![serde_json::from_value(refusal).unwrap(); COUNTS / 10];
        for second in 0..100 {
            let at = begin + Duration::from_secs(second);
            history.push(Mesh { refusals: refusals.clone(), missing: vec!["one".to_owned()], ..look(at) });
        }
        assert_eq!(history.0.len(), 10);
        assert_eq!(history.0.iter().map(|look| look.missing.len()).sum::<usize>(), 1, "of the latest look alone");
        assert!(history.before(LONGEST).is_some_and(|look| look.at == begin));
    }

    #[test]
    fn after_a_pause_the_windows_are_what_they_say() {
        let (mut history, begin) = (History::default(), Instant::now());
        history.push(look(begin));
        assert!(history.before(Duration::from_secs(60)).is_none());
        let now = begin + Duration::from_secs(7200);
        history.push(look(now));
        assert_eq!(history.before(Duration::from_secs(60)).map(|mesh| mesh.at), Some(begin));
        history.push(look(now + Duration::from_secs(60)));
        assert_eq!(history.before(Duration::from_secs(60)).map(|mesh| mesh.at), Some(now));
        history.push(look(now + Duration::from_secs(1000)));
        assert_eq!(history.0.front().map(|mesh| mesh.at), Some(now + Duration::from_secs(60)));
    }
}
