//! The autoscaler against recorded series of load. No real time passes: time is a number.

use super::*;

/// A tick of Knative's autoscaler.
const TICK: u64 = 2;

/// A function in a simulation: instances are ready `start` seconds after they are asked for, and gone at once.
struct Simulation {
    autoscaler: Autoscaler,
    concurrency: u32,
    start: u64,
    now: u64,
    asked: Vec<(u64, u32)>,
    seen: Observation,
    /// Every decision that changed something: second, instances, mode.
    changes: Vec<(u64, u32, Mode)>,
}

impl Simulation {
    fn new(scale: Scale, concurrency: u32) -> Self {
        let autoscaler = Autoscaler::new(scale, concurrency, Duration::ZERO);
        let desired = autoscaler.desired();
        let mut simulation = Self {
            autoscaler,
            concurrency,
            start: 1,
            now: 0,
            asked: vec![],
            seen: Observation::default(),
            changes: vec![],
        };
        if desired > 0 {
            simulation.asked.push((0, desired));
        }
        simulation
    }

    /// Offers this many concurrent requests until that second. Each instance takes as many as it
    /// may; the rest waits.
    fn load(&mut self, until: u64, requests: u32) -> &mut Self {
        let before = (self.seen.waiting, self.seen.in_flight);
        self.spread(requests);
        if before == (0, 0) && self.seen.waiting > 0 {
            self.decide();
        }
        while self.now < until {
            self.now += 1;
            self.seen.request_seconds += f64::from(requests);
            self.seen.requests += u64::from(requests);
            self.spread(requests);
            if self.now.is_multiple_of(TICK) {
                self.decide();
            }
        }
        self
    }

    fn spread(&mut self, requests: u32) {
        for (_, count) in self.asked.extract_if(.., |(at, _)| *at + self.start <= self.now) {
            self.seen.ready = count;
        }
        let room = match self.concurrency {
            0 if self.seen.ready > 0 => u32::MAX,
            limit => limit * self.seen.ready,
        };
        (self.seen.in_flight, self.seen.waiting) = (requests.min(room), requests.saturating_sub(room));
    }

    fn decide(&mut self) -> Decision {
        let before = self.autoscaler.desired();
        let decision = self.autoscaler.decide(Duration::from_secs(self.now), &self.seen);
        if decision.desired < self.seen.ready {
            self.seen.ready = decision.desired;
            self.asked.clear();
        } else {
            self.asked.push((self.now, decision.desired));
        }
        if decision.desired != before {
            self.changes.push((self.now, decision.desired, decision.mode));
        }
        decision
    }

    fn counts(&self) -> Vec<(u64, u32)> {
        self.changes.iter().map(|(at, count, _)| (*at, *count)).collect()
    }
}

/// 10 requests at a time are right for an instance, all of them.
fn tens() -> Scale {
    Scale { per_instance: 10.0, utilization: 1.0, ..Scale::default() }
}

#[test]
fn the_first_request_starts_one_instance_and_a_steady_load_what_it_needs() {
    let mut simulation = Simulation::new(tens(), 0);
    simulation.load(300, 8);
    assert_eq!(simulation.counts(), [(0, 1)]);
    // With 0.7 of the target, 8 requests are one too many for one instance.
    let mut simulation = Simulation::new(Scale { utilization: 0.7, ..tens() }, 0);
    simulation.load(300, 8);
    assert_eq!(simulation.changes, [(0, 1, Mode::Stable), (2, 2, Mode::Panic)]);
}

#[test]
fn a_burst_from_nothing_starts_what_waits_at_once() {
    let mut simulation = Simulation::new(Scale { per_instance: 1.0, utilization: 1.0, ..Scale::default() }, 1);
    simulation.load(20, 200);
    assert_eq!(simulation.changes, [(0, 200, Mode::Panic)]);
    let mut bounded = Simulation::new(Scale { max: 50, ..simulation.autoscaler.scale }, 1);
    bounded.load(20, 200);
    assert_eq!(bounded.counts(), [(0, 50)]);
    assert_eq!(bounded.decide().reason, Reason::Maximum);
}

#[test]
fn further_requests_that_wait_are_a_burst_only_past_the_threshold() {
    let scale = Scale { per_instance: 1.0, utilization: 1.0, ..Scale::default() };
    let seen = |ready, in_flight, waiting| Observation { ready, in_flight, waiting, ..Observation::default() };
    let desired = |seen| {
        let mut autoscaler = Autoscaler::new(Scale { min: 10, ..scale }, 1, Duration::ZERO);
        autoscaler.decide(Duration::ZERO, &seen)
    };
    // One request more than ten instances can take counts in the average only; the same holds for
    // nine more.
    assert_eq!((desired(seen(10, 10, 1)).desired, desired(seen(10, 10, 9)).desired), (10, 10));
    assert_eq!((desired(seen(10, 10, 10)).desired, desired(seen(10, 10, 10)).mode), (20, Mode::Panic));
    assert_eq!(desired(seen(10, 10, 290)).desired, 300);
}

#[test]
fn the_window_passes_and_the_grace_period_before_the_last_instance_goes() {
    let mut simulation = Simulation::new(tens(), 0);
    simulation.load(100, 5).load(400, 0);
    // The last request ended at 100.
    assert_eq!(simulation.counts(), [(0, 1), (190, 0)]);
    let mut kept = Simulation::new(Scale { last_instance: Duration::from_secs(120), ..tens() }, 0);
    kept.load(100, 5).load(170, 0);
    assert_eq!(kept.decide().reason, Reason::LastInstance(Duration::from_secs(120)));
    kept.load(400, 0);
    assert_eq!(kept.counts(), [(0, 1), (280, 0)]);
    assert!(kept.autoscaler.rests());
    // The next request finds no trace of the earlier load.
    kept.load(410, 1);
    assert_eq!(kept.counts()[2..], [(400, 1)]);
}

#[test]
fn a_single_request_keeps_its_instance_for_the_whole_window() {
    let mut simulation = Simulation::new(Scale { last_instance: Duration::ZERO, ..tens() }, 0);
    simulation.load(1, 1).load(200, 0);
    assert_eq!(simulation.counts(), [(0, 1), (62, 0)]);
}

#[test]
fn a_surge_panics_holds_for_a_window_and_is_let_go_by_halves() {
    let mut simulation = Simulation::new(tens(), 0);
    simulation.load(60, 10).load(66, 200).load(300, 10);
    // 6 s of 200 requests at a time: the panic window sees 73, 137 and 200 of them.
    let up = [(62, 8, Mode::Panic), (64, 14, Mode::Panic), (66, 20, Mode::Panic)];
    assert_eq!(simulation.changes[1..4], up);
    // From 66 on it is over, but 20 instances were called for until then, and the threshold of the 20 was last exceeded at 64.
    let held = simulation.changes[4].0 - 66;
    assert!((58..=64).contains(&held), "{:?}", simulation.changes);
    let down: Vec<u32> = simulation.changes[4..].iter().map(|(_, count, _)| *count).collect();
    assert_eq!(down, [10, 5, 2, 1], "at most halved in each step");
    assert!(simulation.changes[4..].iter().all(|(_, _, mode)| *mode == Mode::Stable));
}

#[test]
fn a_sawtooth_is_held_at_its_peak_while_panic_lasts() {
    let mut simulation = Simulation::new(tens(), 0);
    for tooth in 0..10 {
        simulation.load(tooth * 20 + 10, 40).load(tooth * 20 + 20, 0);
    }
    // 40 requests at a time for 10 s out of 20: on average two instances, at the peaks four. A panic lasts a window.
    let expected = [(0, 4), (62, 2), (66, 4), (128, 2), (130, 4), (192, 2)];
    assert_eq!(simulation.counts(), expected);
}

#[test]
fn a_slow_decay_is_followed() {
    let mut simulation = Simulation::new(Scale { panic_threshold: 10.0, ..tens() }, 0);
    for minute in 0..10 {
        simulation.load((minute + 1) * 60, 100 - 10 * u32::try_from(minute).unwrap());
    }
    let counts: Vec<u32> = simulation.counts().iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
}

#[test]
fn fewer_must_have_been_enough_for_the_scale_down_delay() {
    let scale = Scale { scale_down_delay: Duration::from_secs(120), window: Duration::from_secs(10), ..tens() };
    let scale = Scale { panic_window: Duration::from_secs(2), ..scale };
    let at = |simulation: &mut Simulation| simulation.load(60, 30).load(300, 5).counts();
    let delayed = at(&mut Simulation::new(scale, 0));
    let direct = at(&mut Simulation::new(Scale { scale_down_delay: Duration::ZERO, ..scale }, 0));
    assert_eq!((delayed[0], direct[0]), ((0, 3), (0, 3)));
    assert_eq!(delayed.last().unwrap().1, 1);
    assert!(delayed[1].0 >= direct[1].0 + 110, "{delayed:?} {direct:?}");
}

#[test]
fn minimum_initial_and_activation_scale() {
    let mut least = Simulation::new(Scale { min: 3, ..tens() }, 0);
    least.load(300, 0).load(310, 5).load(600, 0);
    assert_eq!(least.counts(), []);
    assert!(least.autoscaler.rests());

    let mut initial = Simulation::new(Scale { initial: 4, ..tens() }, 0);
    assert_eq!(initial.autoscaler.desired(), 4);
    initial.start = 5;
    initial.load(300, 0);
    // The initial scale is reached at 5. Then there is no load, and the window and the grace period
    // hold the last instance.
    assert_eq!(initial.counts(), [(6, 2), (8, 1), (90, 0)]);

    let mut active = Simulation::new(Scale { activation: 3, ..tens() }, 0);
    active.load(100, 1).load(400, 0);
    assert_eq!(active.counts(), [(0, 3), (160, 1), (192, 0)]);
}

#[test]
fn one_step_up_is_bounded_by_the_rate() {
    let scale = Scale { up_rate: 2.0, panic_threshold: 10.0, ..tens() };
    let mut simulation = Simulation::new(Scale { min: 1, ..scale }, 0);
    simulation.load(2, 0).load(20, 1000);
    let counts: Vec<u32> = simulation.counts().iter().map(|(_, count)| *count).collect();
    assert_eq!(counts[..4], [2, 4, 8, 16]);
}

#[test]
fn requests_a_second() {
    let scale = Scale { metric: Metric::Rps, per_instance: 100.0, utilization: 0.5, ..Scale::default() };
    let mut simulation = Simulation::new(scale, 0);
    simulation.load(100, 120).load(400, 0);
    assert_eq!(simulation.counts()[0], (0, 1), "nobody knows yet how many a second there are");
    assert_eq!(simulation.counts()[1], (2, 3));
    assert_eq!(simulation.counts().last(), Some(&(190, 0)));
}

#[test]
fn settings_may_change_at_any_time() {
    let mut simulation = Simulation::new(tens(), 0);
    simulation.load(100, 40);
    assert_eq!(simulation.autoscaler.desired(), 4);
    simulation.autoscaler.configure(Scale { max: 2, ..tens() }, 0);
    assert_eq!(simulation.autoscaler.desired(), 2, "at once");
    simulation.autoscaler.configure(Scale { min: 7, ..tens() }, 0);
    assert_eq!(simulation.autoscaler.desired(), 7);
    simulation.autoscaler.give_up();
    assert_eq!(simulation.autoscaler.desired(), 7, "the minimum is kept whatever happens");
}

/// Some settings and some series of observations, the same in every run.
fn anything(seed: u64) -> (Scale, u32, Vec<(Duration, u32, u32)>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let max = random.u32(1..60);
    let window = Duration::from_secs(random.u64(6..90));
    let scale = Scale {
        min: random.u32(0..=max.min(4)),
        max,
        initial: random.u32(0..=max.min(6)),
        activation: random.u32(1..=max.min(3)),
        metric: if random.u8(0..4) == 0 { Metric::Rps } else { Metric::Concurrency },
        per_instance: 0.5 + 20.0 * random.f64(),
        utilization: 0.3 + 0.7 * random.f64(),
        window,
        panic_window: window.mul_f64(0.05 + 0.5 * random.f64()),
        panic_threshold: 1.1 + 3.0 * random.f64(),
        scale_down_delay: Duration::from_secs(random.u64(0..3) * 20),
        last_instance: Duration::from_secs(random.u64(0..40)),
        up_rate: 1.1 + 20.0 * random.f64(),
        down_rate: 1.1 + 3.0 * random.f64(),
    };
    let mut now = Duration::ZERO;
    let steps = (0..200)
        .map(|_| {
            now += Duration::from_millis(random.u64(1..4000));
            let load = if random.bool() { 0 } else { random.u32(0..400) };
            (now, load, if random.u8(0..4) == 0 { random.u32(0..50) } else { 0 })
        })
        .collect();
    (scale, random.u32(0..5), steps)
}

/// The decisions for a series, with all instances ready at once.
fn decided(seed: u64, more: u32) -> (Scale, Vec<(Decision, u32)>) {
    let (scale, concurrency, steps) = anything(seed);
    let mut autoscaler = Autoscaler::new(scale, concurrency, Duration::ZERO);
    let (mut seen, mut before) = (Observation::default(), Duration::ZERO);
    let mut decisions = Vec::new();
    for (now, load, waiting) in steps {
        seen.request_seconds += (now - before).as_secs_f64() * f64::from(load + more);
        seen.requests += u64::from(load + more);
        (seen.in_flight, seen.waiting, before) = (load + more, waiting, now);
        let previous = autoscaler.desired();
        let decision = autoscaler.decide(now, &seen);
        // The ready instances do not depend on the decisions, so that series with more and less
        // load can be compared.
        seen.ready = u32::try_from(now.as_secs() % 20).unwrap();
        decisions.push((decision, previous));
    }
    (scale, decisions)
}

#[test]
fn never_out_of_bounds_and_never_down_in_panic_or_while_requests_wait() {
    for seed in 0..500 {
        let (scale, _, steps) = anything(seed);
        let mut panicking = false;
        for ((decision, previous), (now, _, waiting)) in decided(seed, 0).1.into_iter().zip(steps) {
            let desired = decision.desired;
            assert!((scale.min..=scale.max).contains(&desired), "seed {seed} at {now:?}: {decision:?} {scale:?}");
            let holds = decision.mode == Mode::Panic && panicking || waiting > 0;
            assert!(!holds || desired >= previous, "seed {seed} at {now:?}: from {previous} {decision:?} {scale:?}");
            assert!(waiting == 0 || desired > 0, "seed {seed} at {now:?}: {decision:?}");
            panicking = decision.mode == Mode::Panic;
        }
    }
}

#[test]
fn more_load_never_means_fewer_instances() {
    for seed in 0..500 {
        let (scale, less) = decided(seed, 0);
        let (_, more) = decided(seed, 1 + u32::try_from(seed % 100).unwrap());
        for (step, ((less, _), (more, _))) in less.iter().zip(&more).enumerate() {
            assert!(more.desired >= less.desired, "seed {seed}, step {step}: {less:?} {more:?} {scale:?}");
        }
    }
}

#[test]
fn the_same_observations_at_the_same_times_give_the_same_decisions() {
    for seed in 0..50 {
        assert_eq!(decided(seed, 0), decided(seed, 0));
    }
}
