//! Whether a process should get work, and if not, for want of what.

use super::Role;
use crate::observe::metrics::{BreakerState, Dependency, Metrics};

/// What a role cannot do without. An api that cannot reach RocketMQ still takes orders (recovery mode), and a query process
/// without Redis still answers from PostgreSQL.
fn needs(role: Role) -> &'static [Dependency] {
    match role {
        Role::All => &[Dependency::Redis, Dependency::Postgres],
        Role::Api => &[Dependency::Redis],
        Role::Worker => &[Dependency::RocketMq, Dependency::Postgres],
        Role::Query => &[],
    }
}

/// Every reason why this process is not ready; none: it is. A dependency counts when no shard reaches it.
pub(super) fn why_not(started: bool, role: Role, services: bool, shards: &[Metrics]) -> Vec<String> {
    let mut reasons = Vec::new();
    if !started {
        reasons.push("starting or stopping".to_owned());
    }
    if shards.is_empty() {
        reasons.push("no shard answers".to_owned());
        return reasons;
    }
    if services {
        for dependency in needs(role) {
            let open =
                |shard: &&Metrics| shard.breaker_state[*dependency as usize][BreakerState::Closed as usize].get() == 0;
            let ill = shards.iter().filter(open).count();
            if ill == shards.len() {
                let name = Dependency::TEXTS[*dependency as usize];
                reasons.push(format!("{name}: the breaker is open on all {ill} shards"));
            }
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sources, load};
    use crate::resilience::Guards;
    use std::rc::Rc;

    #[test]
    fn one_shard_that_reaches_it_is_enough() {
        shards::run(async {
            let settings = load(&Sources::default()).unwrap().resilience;
            let (well, ill) = (Rc::new(Metrics::default()), Rc::new(Metrics::default()));
            let (_well, guards) = (Guards::new(&settings, &well), Guards::new(&settings, &ill));
            (0..settings.breaker_failures).for_each(|_| guards.redis.enter().unwrap().fault());
            let both = [(*well).clone(), (*ill).clone()];
            assert!(why_not(true, Role::Api, true, &both).is_empty());
            let reasons = why_not(true, Role::Api, true, &both[1..]);
            assert_eq!(reasons, ["redis: the breaker is open on all 1 shards"]);
            assert!(why_not(true, Role::Worker, true, &both[1..]).is_empty(), "a worker can do without");
            assert!(why_not(true, Role::Api, false, &both[1..]).is_empty(), "embedded has none");
            assert_eq!(why_not(false, Role::Query, true, &both), ["starting or stopping"]);
            assert_eq!(why_not(true, Role::Query, true, &[]), ["no shard answers"]);
        });
    }
}
