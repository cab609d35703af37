//! The number of workers, and the connections of each: from the cores, the descriptor limit and the
//! settings.

use throng_core::ConnectionName;
use throng_host::environment::raise_descriptors;

use super::error::StartError;
use crate::limits::{RESERVE, WORKERS_MAX};
use crate::settings::Settings;

/// Descriptors of a worker's table that are not subscribers: those that the process has open at the
/// start, some spare ones, and the reserve.
pub const DESCRIPTORS_APART: u64 = 56 + RESERVE as u64;

/// Descriptors that each worker takes in every table.
pub const DESCRIPTORS_PER_WORKER: u64 = 3;

/// A limit above this, or none, counts as this: the kernel's own (`fs.nr_open`) is at most 2^31.
const DESCRIPTORS_MAX: u64 = 1 << 30;

/// Raises the soft descriptor limit as far as allowed, and returns the size of a table.
pub(super) fn descriptors_max() -> u64 {
    raise_descriptors(0).min(DESCRIPTORS_MAX)
}

/// The number of subscribers that one of `workers` can hold with a table of `descriptors_max`.
pub(super) fn max_worker_connections(descriptors_max: u64, workers: usize) -> usize {
    let apart = DESCRIPTORS_APART + DESCRIPTORS_PER_WORKER * workers as u64;
    // Connection names have no room for higher indices, whatever the limit.
    let descriptors_max = descriptors_max.min(ConnectionName::INDICES_MAX as u64);
    descriptors_max.saturating_sub(apart) as usize
}

/// The number of workers that are started even if fewer could hold all connections: by the
/// settings, or the cores.
pub(super) fn workers_min(settings: &Settings) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    if settings.workers == 0 { cores() } else { settings.workers }
}

/// The capacity of each worker. There are more than [`workers_min`] if these would not hold enough
/// connections.
pub(super) fn capacities(
    settings: &Settings,
    descriptors_max: u64,
) -> Result<Vec<u32>, StartError> {
    let mut workers = workers_min(settings);
    if max_worker_connections(descriptors_max, workers) == 0 {
        return Err(StartError::NoRoom(descriptors_max));
    }
    let max_total = |workers| workers * max_worker_connections(descriptors_max, workers);
    // Ends one above the maximum if that does not suffice.
    while settings.max_connections > max_total(workers) && workers <= WORKERS_MAX {
        workers += 1;
    }
    if workers > WORKERS_MAX {
        // At least one, because it divides.
        let per_worker = max_worker_connections(descriptors_max, WORKERS_MAX).max(1);
        return Err(StartError::TooMany {
            connections: settings.max_connections,
            workers: settings.max_connections.div_ceil(per_worker),
            per_worker,
        });
    }
    let total =
        if settings.max_connections == 0 { max_total(workers) } else { settings.max_connections };
    let share = |worker| (total / workers + usize::from(worker < total % workers)) as u32;
    Ok((0..workers).map(share).collect())
}

/// The capacity of each worker of a process that takes over from `running` workers. More can be
/// added; fewer cannot: `None` if the settings ask for that. What only follows from this machine,
/// such as fewer cores, keeps the workers that there are.
pub(super) fn capacities_after(
    running: usize,
    settings: &Settings,
    descriptors_max: u64,
) -> Result<Option<Vec<u32>>, StartError> {
    let wanted = capacities(settings, descriptors_max)?;
    if wanted.len() >= running {
        return Ok(Some(wanted));
    }
    if settings.workers != 0 {
        return Ok(None);
    }
    let as_many = Settings { workers: running, ..settings.clone() };
    capacities(&as_many, descriptors_max).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(workers: usize, max_connections: usize) -> Settings {
        Settings { workers, max_connections, ..Settings::for_tests() }
    }

    #[test]
    fn capacity_is_shared_out_to_the_last_connection() {
        let shares = capacities(&settings(3, 10), 1024).unwrap();
        assert_eq!(shares, [4, 3, 3]);
    }

    #[test]
    fn a_low_descriptor_limit_is_met_with_more_workers() {
        let shares = capacities(&settings(2, 1_000_000), 20_000).unwrap();
        assert_eq!(shares.iter().sum::<u32>(), 1_000_000);
        let per_worker = max_worker_connections(20_000, shares.len());
        assert!(shares.iter().all(|&share| share as usize <= per_worker));
    }

    #[test]
    fn the_descriptor_limit_decides_where_the_settings_do_not() {
        let shares = capacities(&settings(2, 0), 1024).unwrap();
        let per_worker = max_worker_connections(1024, 2) as u32;
        assert_eq!(shares, [per_worker, per_worker]);
    }

    #[test]
    fn a_process_that_takes_over_has_no_fewer_workers() {
        let after = |running, settings| {
            let capacities = capacities_after(running, &settings, 1024).unwrap();
            capacities.map(|capacities| capacities.len())
        };
        assert_eq!(after(2, settings(3, 0)), Some(3));
        assert_eq!(after(2, settings(1, 2000)), Some(3), "they hold as many");
        assert_eq!(after(4, settings(3, 0)), None);
        let more = std::thread::available_parallelism().unwrap().get() + 1;
        let of_fewer_cores = capacities_after(more, &settings(0, 0), 1 << 20).unwrap();
        assert_eq!(of_fewer_cores.map(|capacities| capacities.len()), Some(more));
        assert!(capacities_after(1, &settings(2, 0), 64).is_err());
    }

    #[test]
    fn a_limit_that_is_too_low_is_named_with_the_numbers() {
        let refused = |settings, limit| capacities(&settings, limit).unwrap_err().to_string();
        assert!(refused(settings(2, 0), 64).contains("the descriptor limit is 64"));
        let message = refused(settings(2, 1_000_000_000), 20_000);
        assert!(message.contains("1000000000 connections would take"), "{message}");
    }
}
