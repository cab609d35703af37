//! Whole machines, made up and real.

use super::*;

/// Clients on this machine against a server that runs on it already.
fn flood(connections: u64) -> Wanted {
    let mut wanted = Wanted::both(connections);
    let server = wanted.server.as_mut().expect("a server");
    (server.tables, server.burst) = (None, 1_000);
    wanted.clients.as_mut().expect("clients").tables = Tables::clients_on(64);
    wanted
}

fn memory(bytes: u64) -> Option<Memory> {
    Some(Memory { bytes, group: None })
}

fn roomy() -> Room {
    Room {
        descriptors: Some(20_000),
        own_descriptors: Some(20_000),
        nr_open: Some(1 << 20),
        files_max: Some(i64::MAX as u64),
        files_open: 1_000,
        threads: Some(Threads { more: 32_000, by: ThreadLimit::User }),
        local_ports: Some((32_768, 60_999)),
        reserved_ports: Some(String::new()),
        tw_reuse: Some(2),
        firewall: Firewall::Absent,
        somaxconn: Some(4_096),
        syn_backlog: Some(4_096),
        syncookies: Some(1),
        netdev_backlog: Some((1_000, 0)),
        established_buckets: Some(4_194_304),
        tcp_pages: Some([1_500_000, 2_000_000, 3_000_000]),
        memory: memory(20 << 30),
    }
}

/// As a small virtual machine comes.
fn small() -> Room {
    Room {
        descriptors: Some(1_024),
        own_descriptors: Some(1_024),
        files_max: Some(100_000),
        files_open: 0,
        threads: Some(Threads { more: 500, by: ThreadLimit::Setting("kernel.threads-max", 600) }),
        firewall: Firewall::Follows { now: 1, most: 262_144, buckets: Some(65_536) },
        somaxconn: Some(128),
        syn_backlog: Some(256),
        syncookies: Some(0),
        netdev_backlog: Some((1_000, 5)),
        established_buckets: Some(4_194_304),
        tcp_pages: Some([22_000, 29_000, 44_000]),
        memory: memory(1 << 30),
        ..roomy()
    }
}

#[test]
fn a_million_fits_where_there_is_room() {
    for wanted in [flood(1_000_000), Wanted::server(1_000_000), Wanted::both(1_000_000)] {
        let found = roomy().check(&wanted);
        assert_eq!(found.refusal(), None);
        assert_eq!(found.warnings(), [""; 0]);
        assert!(found.is_possible());
        assert!(found.checks.iter().all(|check| check.verdict == Verdict::Ok), "{found:#?}");
    }
    assert_eq!(
        roomy().check(&flood(1_000_000)).summary(),
        "room for 1,247,232 connections: 64 client threads × 19,488 descriptors"
    );
}

#[test]
fn too_few_ports_is_one_sentence_with_what_helps() {
    let text = roomy().check(&Wanted::clients(1_000_000)).refusal().expect("refused");
    assert_eq!(
        text,
        "1,000,000 connections are wanted and there is room for 28,232: 1 local address × 28,232 \
         local ports × 1 target port. What helps:\n  sysctl -w \
         net.ipv4.ip_local_port_range=\"1024 65535\"\n  give 16 local addresses, or more target \
         ports"
    );
}

#[test]
fn every_hard_limit_is_named_with_its_setting() {
    let text = small().check(&flood(1_000_000)).refusal().expect("refused");
    assert!(text.starts_with("1,000,000 connections are wanted and there is room for 32,768: "));
    for help in [
        "take 1954 threads, or ulimit -Hn 16137",
        "sysctl -w fs.file-max=2250000",
        "sysctl -w net.netfilter.nf_conntrack_max=1125001",
        "take a machine with more memory",
    ] {
        assert!(text.contains(help), "{help} is not in {text}");
    }
}

#[test]
fn what_spoils_figures_is_warned_of() {
    let found = small().check(&flood(1_000_000));
    let all = found.warnings().join("\n");
    for expected in [
        "sysctl -w net.core.somaxconn=1024",
        "sysctl -w net.ipv4.tcp_max_syn_backlog=1024",
        "sysctl -w net.ipv4.tcp_syncookies=1",
        "sysctl -w net.core.netdev_max_backlog=16384",
        "sysctl -w net.ipv4.tcp_mem=\"750000 1000000 1500000\"",
    ] {
        assert!(all.contains(expected), "{expected} is not in {all}");
    }
}

#[test]
fn a_few_connections_need_no_advice() {
    assert_ne!(small().check(&flood(MANY + 1)).warnings(), [""; 0]);
    let few = small().check(&flood(MANY));
    assert!(few.with(Verdict::Should).next().is_some(), "the doctor still says so");
    assert_eq!(few.warnings(), [""; 0]);
}

#[test]
fn what_fits_is_the_last_number_that_is_possible() {
    for room in [small(), roomy()] {
        for wanted in [Wanted::server, Wanted::clients, Wanted::both] {
            let fits = room.fits(u64::from(u32::MAX), wanted);
            assert!(fits > 1_000 && fits < u64::from(u32::MAX), "{fits}");
            assert!(room.check(&wanted(fits)).is_possible());
            assert!(!room.check(&wanted(fits + 1)).is_possible());
        }
    }
    assert_eq!(Room::default().fits(7, Wanted::server), 7, "what is unknown refuses nothing");
}

#[test]
fn what_is_not_known_is_neither_refused_nor_called_enough() {
    let found = Room::default().check(&Wanted::both(u64::from(u32::MAX)));
    assert_eq!(found.refusal(), None);
    assert_eq!(found.warnings(), [""; 0]);
    assert!(found.with(Verdict::Ok).next().is_none(), "{found:#?}");
    assert!(found.summary().starts_with("room for 4,294,967,295 connections and more"));
}

#[test]
fn nothing_is_ever_lowered() {
    for room in [small(), roomy()] {
        for wanted in [Wanted::server, Wanted::clients, Wanted::both] {
            for connections in [1, 1_000, 1_000_000, u64::from(u32::MAX)] {
                for check in room.check(&wanted(connections)).checks {
                    assert_change_widens(&check);
                }
            }
        }
    }
}

fn assert_change_widens(check: &Check) {
    let Some(Setting { name, found, value }) = &check.setting else { return };
    assert_eq!(found != value, check.verdict >= Verdict::Should, "{check:?}");
    let numbers = |text: &str| -> Vec<u64> {
        text.split_whitespace().map(|number| number.parse().expect("a number")).collect()
    };
    match *name {
        "net.ipv4.ip_local_reserved_ports" => {
            let ports = |text| crate::sysctl::reserved_within(text, 0, u16::MAX);
            assert!(ports(value) >= ports(found), "{check:?}");
        }
        "net.ipv4.ip_local_port_range" => {
            let (found, value) = (numbers(found), numbers(value));
            assert!(value[0] <= found[0] && value[1] >= found[1], "{check:?}");
        }
        // 2 allows it for loopback, 1 for all.
        "net.ipv4.tcp_tw_reuse" => assert!(found == value || value == "1"),
        _ => {
            let pairs = numbers(found).into_iter().zip(numbers(value));
            assert!(pairs.into_iter().all(|(found, value)| value >= found), "{check:?}");
        }
    }
}

#[test]
fn this_machine_has_room_for_a_few() {
    let found = check(&flood(100));
    assert_eq!(found.refusal(), None);
    // Nothing was changed to find that out.
    assert_eq!(check(&flood(100)).checks.len(), found.checks.len());
}
