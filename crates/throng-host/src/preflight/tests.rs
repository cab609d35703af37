//! Checks of whole machines, simulated and real.

use super::*;

/// Clients on this machine, and a server that already runs on it.
fn flood(connections: u64) -> Demand {
    let mut demand = Demand::both(connections);
    let server = demand.server.as_mut().expect("a server");
    (server.tables, server.burst) = (None, 1_000);
    demand.clients.as_mut().expect("clients").tables = TableDemand::clients_on(64);
    demand
}

fn memory(bytes: u64) -> Option<AvailableMemory> {
    Some(AvailableMemory { bytes, group: None })
}

fn large() -> Capacity {
    Capacity {
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

/// A small virtual machine with default settings.
fn small() -> Capacity {
    Capacity {
        descriptors: Some(1_024),
        own_descriptors: Some(1_024),
        files_max: Some(100_000),
        files_open: 0,
        threads: Some(Threads { more: 500, by: ThreadLimit::Setting("kernel.threads-max", 600) }),
        firewall: Firewall::Tracking { now: 1, most: 262_144, buckets: Some(65_536) },
        somaxconn: Some(128),
        syn_backlog: Some(256),
        syncookies: Some(0),
        netdev_backlog: Some((1_000, 5)),
        established_buckets: Some(4_194_304),
        tcp_pages: Some([22_000, 29_000, 44_000]),
        memory: memory(1 << 30),
        ..large()
    }
}

#[test]
fn a_million_fits_on_a_large_machine() {
    for demand in [flood(1_000_000), Demand::server(1_000_000), Demand::both(1_000_000)] {
        let found = large().check(&demand);
        assert_eq!(found.refusal(), None);
        assert_eq!(found.warnings(), [""; 0]);
        assert!(found.is_possible());
        assert!(found.checks.iter().all(|check| check.verdict == CheckVerdict::Ok), "{found:#?}");
    }
    assert_eq!(
        large().check(&flood(1_000_000)).summary(),
        "1,247,232 connections fit: 64 client threads × 19,488 descriptors"
    );
}

#[test]
fn too_few_ports_is_one_sentence_with_what_helps() {
    let text = large().check(&Demand::clients(1_000_000)).refusal().expect("refused");
    assert_eq!(
        text,
        "1,000,000 connections requested, but only 28,232 fit: 1 local address × 28,232 local \
         ports × 1 target port. To change that:\n  sysctl -w \
         net.ipv4.ip_local_port_range=\"1024 65535\"\n  give 16 local addresses, or more target \
         ports"
    );
}

#[test]
fn every_hard_limit_is_named_with_its_setting() {
    let text = small().check(&flood(1_000_000)).refusal().expect("refused");
    assert!(text.starts_with("1,000,000 connections requested, but only 32,768 fit: "));
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
fn settings_that_slow_connections_are_warned_of() {
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
fn few_connections_get_no_warnings() {
    assert_ne!(small().check(&flood(MANY + 1)).warnings(), [""; 0]);
    let few = small().check(&flood(MANY));
    assert!(few.with(CheckVerdict::Should).next().is_some(), "the doctor still says so");
    assert_eq!(few.warnings(), [""; 0]);
}

#[test]
fn fits_is_the_largest_possible_number() {
    for capacity in [small(), large()] {
        for demand in [Demand::server, Demand::clients, Demand::both] {
            let fits = capacity.fits(u64::from(u32::MAX), demand);
            assert!(fits > 1_000 && fits < u64::from(u32::MAX), "{fits}");
            assert!(capacity.check(&demand(fits)).is_possible());
            assert!(!capacity.check(&demand(fits + 1)).is_possible());
        }
    }
    assert_eq!(Capacity::default().fits(7, Demand::server), 7, "what is unknown refuses nothing");
}

#[test]
fn unknown_values_neither_refuse_nor_pass() {
    let found = Capacity::default().check(&Demand::both(u64::from(u32::MAX)));
    assert_eq!(found.refusal(), None);
    assert_eq!(found.warnings(), [""; 0]);
    assert!(found.with(CheckVerdict::Ok).next().is_none(), "{found:#?}");
    assert!(found.summary().starts_with("at least 4,294,967,295 connections fit"));
}

#[test]
fn no_setting_is_lowered() {
    for capacity in [small(), large()] {
        for demand in [Demand::server, Demand::clients, Demand::both] {
            for connections in [1, 1_000, 1_000_000, u64::from(u32::MAX)] {
                for check in capacity.check(&demand(connections)).checks {
                    assert_change_widens(&check);
                }
            }
        }
    }
}

fn assert_change_widens(check: &Check) {
    let Some(Setting { name, found, value }) = &check.setting else { return };
    assert_eq!(found != value, check.verdict >= CheckVerdict::Should, "{check:?}");
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
        // 2 permits reuse on loopback, 1 everywhere.
        "net.ipv4.tcp_tw_reuse" => assert!(found == value || value == "1"),
        _ => {
            let pairs = numbers(found).into_iter().zip(numbers(value));
            assert!(pairs.into_iter().all(|(found, value)| value >= found), "{check:?}");
        }
    }
}

#[test]
fn this_machine_can_hold_a_hundred() {
    let found = check(&flood(100));
    assert_eq!(found.refusal(), None);
    // The first check changed nothing.
    assert_eq!(check(&flood(100)).checks.len(), found.checks.len());
}
