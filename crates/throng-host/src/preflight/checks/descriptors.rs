//! Descriptor limits, which apply per descriptor table.

use throng_units::format::{count, counted};

use crate::preflight::capacity::Capacity;
use crate::preflight::check::{Check, CheckVerdict, number, verdict};
use crate::preflight::demand::{Demand, TableDemand};

const SERVER: &str = "descriptor limit (server)";
const CLIENTS: &str = "descriptor limit (clients)";

pub(super) fn checks(demand: &Demand, capacity: &Capacity) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(tables) = demand.server.as_ref().and_then(|server| server.tables) {
        let limit = limit_to_set(&tables, demand.connections, capacity.nr_open);
        checks.push(server(&tables, demand.connections, capacity.descriptors, limit));
        checks
            .extend(capacity.nr_open.filter(|&most| most < limit).map(|most| nr_open(most, limit)));
    }
    checks.extend(demand.clients.as_ref().map(|clients| {
        clients_check(&clients.tables, demand.connections, capacity.own_descriptors)
    }));
    checks
}

fn server(tables: &TableDemand, connections: u64, found: Option<u64>, limit: u64) -> Check {
    let least = tables.descriptors_least(connections);
    let Some(found) = found else {
        return Check::new(SERVER, "each worker has its own table").unread(number(least));
    };
    let workers = tables.threads_for(connections, found);
    let why = match workers {
        Some(workers) => {
            let workers = counted(workers, "worker", "workers");
            format!("{workers}, each with its own table")
        }
        None => format!("each of at most {} workers has its own table", count(tables.max_threads)),
    };
    let (allows, threads) = tables.most(found);
    let each = count(tables.each(found, threads));
    let because = format!("{} × {each} descriptors", counted(threads, "worker", "workers"));
    let check = Check::new(SERVER, why)
        .judged(number(found), number(least), verdict(workers.is_none(), CheckVerdict::Must))
        .limited(allows, because);
    if workers.is_some() {
        return check;
    }
    check.advised(format!("ulimit -n {limit}, or LimitNOFILE={limit} in the service's unit"))
}

/// The limit to recommend: enough for one worker per core if `fs.nr_open` permits, else the least.
fn limit_to_set(tables: &TableDemand, connections: u64, nr_open: Option<u64>) -> u64 {
    let least = tables.descriptors_least(connections);
    let best = tables.descriptors_with(connections, tables.threads_least);
    best.min(nr_open.unwrap_or(best)).max(least)
}

fn nr_open(found: u64, limit: u64) -> Check {
    Check::new("fs.nr_open", "the most that a descriptor limit may be")
        .judged(number(found), number(limit), CheckVerdict::Must)
        .set(found, limit)
}

fn clients_check(tables: &TableDemand, connections: u64, found: Option<u64>) -> Check {
    let Some(found) = found else {
        let least = number(tables.descriptors_least(connections));
        return Check::new(CLIENTS, "each client thread has its own table").unread(least);
    };
    let threads = tables.threads_for(connections, found);
    let used = threads.unwrap_or(tables.max_threads);
    let because = format!(
        "{} × {} descriptors",
        counted(used, "client thread", "client threads"),
        count(tables.each(found, used)),
    );
    let why = format!("{}, each with its table", counted(used, "client thread", "client threads"));
    let needed = tables.descriptors_with(connections, used);
    let mut check = Check::new(CLIENTS, why).judged(
        number(found),
        number(needed),
        verdict(threads.is_none(), CheckVerdict::Must),
    );
    // Without a maximum number of threads, the descriptor limit is not a hard limit.
    if tables.max_threads < u64::MAX || threads.is_none() {
        check = check.limited(tables.most(found).0, because);
    }
    if threads.is_some() {
        return check;
    }
    let enough = TableDemand { max_threads: u64::MAX, ..*tables }.threads_for(connections, found);
    let threads = enough.map_or(String::new(), |threads| format!("take {threads} threads, or "));
    check.advised(format!("{threads}ulimit -Hn {needed}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::demand::ClientDemand;

    fn server_demand(connections: u64) -> Demand {
        let mut demand = Demand::server(connections);
        let server = demand.server.as_mut().expect("a server");
        server.tables = Some(TableDemand { threads_least: 2, ..TableDemand::server() });
        demand
    }

    fn capacity(limit: u64) -> Capacity {
        Capacity {
            descriptors: Some(limit),
            own_descriptors: Some(limit),
            nr_open: Some(1 << 20),
            ..Capacity::default()
        }
    }

    #[test]
    fn the_limit_applies_per_worker() {
        let found = &checks(&server_demand(1_000_000), &capacity(20_000))[0];
        assert_eq!(found.verdict, CheckVerdict::Ok);
        assert_eq!(found.why, "51 workers, each with its own table");
        let limit = found.limit.as_ref().expect("a limit");
        assert_eq!(
            (limit.allows, limit.because.as_str()),
            (17_137_664, "1,024 workers × 16,736 descriptors")
        );
    }

    #[test]
    fn advice_for_a_low_limit_names_the_new_one() {
        let found = checks(&server_demand(1_000_000), &capacity(1_024));
        assert_eq!((found.len(), found[0].verdict), (1, CheckVerdict::Must));
        assert_eq!(
            found[0].by_hand,
            ["ulimit -n 500198, or LimitNOFILE=500198 in the service's unit"]
        );
        // Above `fs.nr_open`, that setting must be raised as well.
        let found = checks(&server_demand(u64::from(u32::MAX)), &capacity(1_024));
        assert_eq!(found[1].name, "fs.nr_open");
        let setting = found[1].change().expect("a change");
        assert!(found[0].by_hand[0].contains(&format!("ulimit -n {}", setting.value)));
    }

    #[test]
    fn a_fixed_number_of_client_threads_is_a_limit() {
        let mut demand = Demand::clients(1_000_000);
        assert_eq!(checks(&demand, &capacity(20_000))[0].verdict, CheckVerdict::Ok);
        assert_eq!(checks(&demand, &capacity(20_000))[0].limit, None);
        demand.clients = demand
            .clients
            .map(|clients| ClientDemand { tables: TableDemand::clients_on(64), ..clients });
        let found = &checks(&demand, &capacity(20_000))[0];
        assert_eq!(found.limit.as_ref().map(|limit| limit.allows), Some(64 * 19_488));
        let found = &checks(&demand, &capacity(1_024))[0];
        assert_eq!(found.by_hand, ["take 1954 threads, or ulimit -Hn 16137"]);
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        for demand in [Demand::server(1_000), Demand::clients(1_000)] {
            let found = &checks(&demand, &Capacity::default())[0];
            assert_eq!((found.verdict, &found.found), (CheckVerdict::Unknown, &None));
        }
    }
}
