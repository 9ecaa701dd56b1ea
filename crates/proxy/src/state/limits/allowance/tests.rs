use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const WINDOW: QuotaAlgorithm = QuotaAlgorithm::FixedWindow { requests: 20, period_ms: 86_400_000 };
const TERM: Duration = Duration::from_secs(5);
const GRACE: Duration = Duration::from_secs(1);

/// A store of one counter that behaves like `settle.lua`.
#[derive(Default)]
struct Counter {
    used: u32,
    shares: [Option<Share>; 2],
}

struct Share {
    held: u32,
    sequence: u64,
    expires: Instant,
}

impl Counter {
    fn settle(&mut self, node: usize, sequence: u64, asked: Question, now: Instant) -> Answer {
        for share in &mut self.shares {
            self.used += share.take_if(|share| share.expires <= now).map_or(0, |share| share.held);
        }
        let mut kept = 0;
        if let Some(mine) = self.shares[node].take() {
            if sequence <= mine.sequence {
                self.shares[node] = Some(mine);
                return Answer::default();
            }
            let unused = asked.unused.min(mine.held);
            kept = asked.keep.min(unused);
            self.used += mine.held - unused;
        }
        let others: u32 = self.shares.iter().flatten().map(|share| share.held).sum();
        let free = capacity(&WINDOW) - self.used - others - kept;
        let granted = if free >= asked.need { asked.need + asked.extra.min((free - asked.need) / 2) } else { free };
        let held = kept + granted;
        self.shares[node] = (held > 0).then_some(Share { held, sequence, expires: now + TERM + GRACE });
        Answer { held, left: free - granted, again: TERM, reset: TERM, counts: TERM, shared: false }
    }
}

/// A question in flight.
struct PendingQuestion {
    sequence: u64,
    question: Question,
    at: Instant,
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    /// A request waits.
    Wait(usize),
    Ask(usize),
    /// The store executes the question, and the node gets the answer after so many requests more.
    Answer(usize, u32),
    /// The node gives up; the store may execute the question later.
    Lose(usize),
    Late,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..2_usize).prop_map(Step::Take),
        2 => (0..2_usize).prop_map(Step::Wait),
        3 => (0..2_usize).prop_map(Step::Ask),
        4 => (0..2_usize, 0..4_u32).prop_map(|(node, more)| Step::Answer(node, more)),
        1 => (0..2_usize).prop_map(Step::Lose),
        1 => Just(Step::Late),
        1 => (1..7000_u64).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    /// Even if messages are lost or late, both nodes together admit no more than the limit.
    #[test]
    fn two_nodes_never_admit_more_than_the_limit(steps in steps()) {
        let mut now = Instant::now();
        let mut counter = Counter::default();
        let mut nodes = [(); 2].map(|()| Allowance::new("", WINDOW, now));
        let mut sent: [Option<PendingQuestion>; 2] = [None, None];
        let mut late: VecDeque<(usize, PendingQuestion)> = VecDeque::new();
        let mut waiting = Vec::new();
        let (mut sequence, mut admitted) = (0, 0_u32);
        for step in steps {
            match step {
                Step::Take(node) => admitted += u32::from(matches!(nodes[node].take(&WINDOW, 1, now), Attempt::Taken)),
                Step::Wait(node) => waiting.push(nodes[node].wait(1)),
                Step::Ask(node) => if sent[node].is_none() && nodes[node].begin_to_ask() {
                    sequence += 1;
                    sent[node] = Some(PendingQuestion { sequence, question: nodes[node].question(now), at: now });
                },
                Step::Answer(node, more) => if let Some(PendingQuestion { sequence, question, at }) = sent[node].take() {
                    let answer = counter.settle(node, sequence, question, now);
                    for _ in 0..more {
                        admitted += u32::from(matches!(nodes[node].take(&WINDOW, 1, now), Attempt::Taken));
                    }
                    nodes[node].answered(answer, Arrival { sent: at, now, now_ms: 0 });
                },
                Step::Lose(node) => if let Some(lost) = sent[node].take() {
                    late.push_back((node, lost));
                    nodes[node].failed();
                },
                Step::Late => if let Some((node, PendingQuestion { sequence, question, .. })) = late.pop_back() {
                    counter.settle(node, sequence, question, now);
                },
                Step::Pass(millis) => now += Duration::from_millis(millis),
            }
            prop_assert!(admitted <= capacity(&WINDOW), "{admitted}");
        }
    }
}

#[test]
fn a_busy_counter_asks_ahead_and_an_idle_one_gives_back() {
    let mut now = Instant::now();
    let mut allowance = Allowance::new("", WINDOW, now);
    let mut counter = Counter::default();
    let mut asked = Vec::new();
    for sequence in 1..5 {
        assert!(matches!(allowance.take(&WINDOW, 1, now), Attempt::Lacking));
        let _waits = allowance.wait(1);
        assert!(allowance.begin_to_ask() && !allowance.begin_to_ask());
        let question = allowance.question(now);
        asked.push((question.need, question.extra));
        let answer = counter.settle(0, sequence, question, now);
        allowance.answered(answer, Arrival { sent: now, now, now_ms: 0 });
        while matches!(allowance.take(&WINDOW, 1, now), Attempt::Taken) {}
        now += Duration::from_millis(1);
    }
    assert_eq!(asked, [(1, 0), (1, 2), (1, 4), (1, 8)]);
    let _waits = allowance.wait(1);
    let question = allowance.question(now);
    allowance.answered(counter.settle(0, 5, question, now), Arrival { sent: now, now, now_ms: 0 });
    assert!(allowance.held > 0 && !allowance.is_due(now));
    now += IDLE;
    assert!(allowance.is_due(now));
    let question = allowance.question(now);
    assert_eq!((question.keep, question.need, question.extra, allowance.held), (0, 0, 0, 0));
    assert!(question.unused > 0);
    allowance.answered(counter.settle(0, 6, question, now), Arrival { sent: now, now, now_ms: 0 });
    assert!(allowance.is_over(now) && counter.shares[0].is_none());
}
