//! Thread limits: a low descriptor limit takes many workers.

use crate::preflight::capacity::{Capacity, ThreadLimit};
use crate::preflight::check::{Check, CheckVerdict, number, verdict};
use crate::preflight::demand::{Demand, TableDemand};

/// Threads of a program besides its workers: the control plane and its blocking pool.
const SPARE: u64 = 64;

const WHY: &str = "workers and client threads, as descriptors ask for";

pub(super) fn checks(demand: &Demand, capacity: &Capacity) -> Vec<Check> {
    let on = |tables: &TableDemand, descriptors: Option<u64>| {
        let threads = descriptors.and_then(|found| tables.threads_for(demand.connections, found));
        threads.unwrap_or(tables.threads_least) + SPARE
    };
    let server = demand.server.as_ref().and_then(|server| server.tables);
    let server = server.map_or(0, |tables| on(&tables, capacity.descriptors));
    let clients = demand.clients.as_ref();
    let clients = clients.map_or(0, |clients| on(&clients.tables, capacity.own_descriptors));
    vec![check(server + clients, capacity)]
}

fn check(needed: u64, capacity: &Capacity) -> Check {
    let Some(threads) = &capacity.threads else {
        return Check::new("threads", WHY).unread(number(needed));
    };
    let is_short = threads.more < needed;
    let judged = |name| {
        let found = format!("{} more", number(threads.more));
        Check::new(name, WHY).judged(found, number(needed), verdict(is_short, CheckVerdict::Must))
    };
    match &threads.by {
        ThreadLimit::Setting(name, most) => {
            let value = if is_short { most + (needed - threads.more) } else { *most };
            judged(name).set(most, value)
        }
        ThreadLimit::Group(group) => {
            let check = judged("threads");
            let help = format!("raise pids.max of {group} (TasksMax= of a service)");
            if is_short { check.advised(help) } else { check }
        }
        ThreadLimit::User => {
            let check = judged("threads");
            let help = format!("ulimit -u {}, or LimitNPROC= of a service", needed * 2);
            if is_short { check.advised(help) } else { check }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::capacity::Threads;

    fn found(more: u64, by: ThreadLimit) -> Check {
        let capacity = Capacity {
            descriptors: Some(20_000),
            threads: Some(Threads { more, by }),
            ..Capacity::default()
        };
        checks(&Demand::server(15_000_000), &capacity).remove(0)
    }

    #[test]
    fn many_workers_need_many_threads() {
        let enough = found(5_000, ThreadLimit::User);
        assert_eq!((enough.verdict, enough.name), (CheckVerdict::Ok, "threads"));
        let short = found(500, ThreadLimit::Setting("kernel.threads-max", 600));
        assert_eq!((short.verdict, short.name), (CheckVerdict::Must, "kernel.threads-max"));
        let value: u64 = short.change().expect("a change").value.parse().expect("a number");
        assert!(value > 600 + 300, "{value}");
        let short = found(500, ThreadLimit::Group("/sys/fs/cgroup/a".to_owned()));
        assert!(short.by_hand[0].starts_with("raise pids.max of /sys/fs/cgroup/a"));
        assert!(found(500, ThreadLimit::User).by_hand[0].starts_with("ulimit -u "));
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        assert_eq!(
            checks(&Demand::both(10), &Capacity::default())[0].verdict,
            CheckVerdict::Unknown
        );
    }
}
