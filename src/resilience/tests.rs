//! The guard: breaker and budget together, and what they show.

use super::*;
use std::time::Duration;

fn settings() -> Resilience {
    Resilience {
        breaker_failures: 3,
        breaker_open_ms: 20,
        breaker_open_max_ms: 40,
        retry_percent: 5,
        retry_floor_per_min: 1,
    }
}

#[test]
fn an_open_breaker_refuses_and_one_answer_closes_it() {
    shards::run(async {
        let metrics = Rc::new(Metrics::default());
        let guard = Guard::new(Dependency::Redis, &settings(), metrics.clone());
        let shown = || metrics.breaker_state[Dependency::Redis as usize].each_ref().map(|gauge| gauge.get());
        assert_eq!(shown(), [1, 0, 0]);
        for _ in 0..3 {
            guard.enter().unwrap().fault();
        }
        assert!(guard.is_open() && guard.enter().is_err());
        assert_eq!(shown(), [0, 0, 1]);
        assert_eq!(metrics.breaker_refused[Dependency::Redis as usize].get(), 1);
        shards::sleep(Duration::from_millis(25)).await;
        let probe = guard.enter().unwrap();
        assert_eq!(shown(), [0, 1, 0]);
        assert!(guard.enter().is_err(), "one probe at a time");
        probe.ok();
        assert_eq!(shown(), [1, 0, 0]);
        let transitions = metrics.breaker_transitions[Dependency::Redis as usize].each_ref().map(|count| count.get());
        assert_eq!(transitions, [1, 1, 1]);
        assert_eq!(metrics.dependency_calls[Dependency::Redis as usize].get(), 4);
    });
}

#[test]
fn a_caller_who_leaves_says_nothing_about_the_dependency() {
    shards::run(async {
        let guard = Guard::new(Dependency::Postgres, &settings(), Rc::default());
        for _ in 0..100 {
            drop(guard.enter().unwrap());
        }
        assert!(!guard.is_open());
    });
}

#[test]
fn retries_are_granted_within_the_budget_only() {
    shards::run(async {
        let metrics = Rc::new(Metrics::default());
        let guard = Guard::new(Dependency::RocketMq, &settings(), metrics.clone());
        assert!(guard.may_retry());
        assert!(!guard.may_retry());
        assert_eq!(metrics.dependency_retries[Dependency::RocketMq as usize].get(), 1);
        assert_eq!(metrics.retries_refused[Dependency::RocketMq as usize].get(), 1);
    });
}
