//! Descriptor limits, which count for each table.

use throng_units::format::{count, counted};

use crate::preflight::check::{Check, Verdict, number, verdict};
use crate::preflight::room::Room;
use crate::preflight::wanted::{Tables, Wanted};

const SERVER: &str = "descriptor limit (server)";
const CLIENTS: &str = "descriptor limit (clients)";

pub(super) fn checks(wanted: &Wanted, room: &Room) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(tables) = wanted.server.as_ref().and_then(|server| server.tables) {
        let limit = limit_to_set(&tables, wanted.connections, room.nr_open);
        checks.push(server(&tables, wanted.connections, room.descriptors, limit));
        checks.extend(room.nr_open.filter(|&most| most < limit).map(|most| nr_open(most, limit)));
    }
    checks.extend(
        wanted.clients.as_ref().map(|clients| {
            clients_check(&clients.tables, wanted.connections, room.own_descriptors)
        }),
    );
    checks
}

fn server(tables: &Tables, connections: u64, found: Option<u64>, limit: u64) -> Check {
    let least = tables.descriptors_least(connections);
    let Some(found) = found else {
        return Check::new(SERVER, "each worker has a table of its own").unread(number(least));
    };
    let workers = tables.threads_for(connections, found);
    let why = match workers {
        Some(workers) => {
            let workers = counted(workers, "worker", "workers");
            format!("{workers}, each with a table of its own")
        }
        None => format!("each of at most {} workers has its own table", count(tables.threads_max)),
    };
    let (allows, threads) = tables.most(found);
    let each = count(tables.each(found, threads));
    let because = format!("{} × {each} descriptors", counted(threads, "worker", "workers"));
    let check = Check::new(SERVER, why)
        .judged(number(found), number(least), verdict(workers.is_none(), Verdict::Must))
        .limited(allows, because);
    if workers.is_some() {
        return check;
    }
    check.advised(format!("ulimit -n {limit}, or LimitNOFILE={limit} in the service's unit"))
}

/// One worker a core is best where the limit may be raised as far.
fn limit_to_set(tables: &Tables, connections: u64, nr_open: Option<u64>) -> u64 {
    let least = tables.descriptors_least(connections);
    let best = tables.descriptors_with(connections, tables.threads_least);
    best.min(nr_open.unwrap_or(best)).max(least)
}

fn nr_open(found: u64, limit: u64) -> Check {
    Check::new("fs.nr_open", "the most that a descriptor limit may be")
        .judged(number(found), number(limit), Verdict::Must)
        .set(found, limit)
}

fn clients_check(tables: &Tables, connections: u64, found: Option<u64>) -> Check {
    let Some(found) = found else {
        let least = number(tables.descriptors_least(connections));
        return Check::new(CLIENTS, "each client thread has a table of its own").unread(least);
    };
    let threads = tables.threads_for(connections, found);
    let used = threads.unwrap_or(tables.threads_max);
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
        verdict(threads.is_none(), Verdict::Must),
    );
    // With any number of threads only the machine is a limit.
    if tables.threads_max < u64::MAX || threads.is_none() {
        check = check.limited(tables.most(found).0, because);
    }
    if threads.is_some() {
        return check;
    }
    let enough = Tables { threads_max: u64::MAX, ..*tables }.threads_for(connections, found);
    let threads = enough.map_or(String::new(), |threads| format!("take {threads} threads, or "));
    check.advised(format!("{threads}ulimit -Hn {needed}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::wanted::Clients;

    fn server_wanted(connections: u64) -> Wanted {
        let mut wanted = Wanted::server(connections);
        let server = wanted.server.as_mut().expect("a server");
        server.tables = Some(Tables { threads_least: 2, ..Tables::server() });
        wanted
    }

    fn room(limit: u64) -> Room {
        Room {
            descriptors: Some(limit),
            own_descriptors: Some(limit),
            nr_open: Some(1 << 20),
            ..Room::default()
        }
    }

    #[test]
    fn the_limit_holds_for_each_worker() {
        let found = &checks(&server_wanted(1_000_000), &room(20_000))[0];
        assert_eq!(found.verdict, Verdict::Ok);
        assert_eq!(found.why, "51 workers, each with a table of its own");
        let limit = found.limit.as_ref().expect("a limit");
        assert_eq!(
            (limit.allows, limit.because.as_str()),
            (17_137_664, "1,024 workers × 16,736 descriptors")
        );
    }

    #[test]
    fn a_low_limit_is_told_with_what_to_write() {
        let found = checks(&server_wanted(1_000_000), &room(1_024));
        assert_eq!((found.len(), found[0].verdict), (1, Verdict::Must));
        assert_eq!(
            found[0].by_hand,
            ["ulimit -n 500198, or LimitNOFILE=500198 in the service's unit"]
        );
        // With more than any limit allows, the limit of limits is first.
        let found = checks(&server_wanted(u64::from(u32::MAX)), &room(1_024));
        assert_eq!(found[1].name, "fs.nr_open");
        let setting = found[1].change().expect("a change");
        assert!(found[0].by_hand[0].contains(&format!("ulimit -n {}", setting.value)));
    }

    #[test]
    fn client_threads_that_were_chosen_are_a_limit() {
        let mut wanted = Wanted::clients(1_000_000);
        assert_eq!(checks(&wanted, &room(20_000))[0].verdict, Verdict::Ok);
        assert_eq!(checks(&wanted, &room(20_000))[0].limit, None);
        wanted.clients =
            wanted.clients.map(|clients| Clients { tables: Tables::clients_on(64), ..clients });
        let found = &checks(&wanted, &room(20_000))[0];
        assert_eq!(found.limit.as_ref().map(|limit| limit.allows), Some(64 * 19_488));
        let found = &checks(&wanted, &room(1_024))[0];
        assert_eq!(found.by_hand, ["take 1954 threads, or ulimit -Hn 16137"]);
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        for wanted in [Wanted::server(1_000), Wanted::clients(1_000)] {
            let found = &checks(&wanted, &Room::default())[0];
            assert_eq!((found.verdict, &found.found), (Verdict::Unknown, &None));
        }
    }
}
