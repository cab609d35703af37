//! How often each thing happens: a table of ratios, and worlds in which some of them are others.

use super::World;

/// Something that may happen next, to one of the nodes or to all.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) name: &'static str,
    /// How often, beside the others.
    pub(super) ratio: usize,
    pub(super) run: fn(&mut World, usize),
}

/// In fair weather a node does some hundred things between two faults.
const STEPS: [Step; 31] = [
    step("carry_up", 300, World::carry_up),
    step("carry_down", 300, World::carry_down),
    step("tick", 110, World::tick),
    step("publish", 100, World::publish),
    step("publish_batch", 20, World::publish_batch),
    step("follow", 40, World::follow),
    step("unfollow", 15, World::unfollow),
    step("read", 30, World::read),
    step("change_log", 15, World::change_log),
    step("read_log", 10, World::read_log),
    step("end_log", 10, World::end_log),
    step("erase", 8, World::erase),
    step("read_state", 25, World::read_state),
    step("change_key", 15, World::change_key),
    step("ask", 10, World::ask),
    step("change_table", 5, World::change_table),
    step("change_state", 10, World::change_state),
    step("connect", 15, World::connect),
    step("disconnect", 5, World::disconnect),
    step("go_elsewhere", 2, World::go_elsewhere),
    step("late_copy", 13, |world, _| world.late_copy()),
    step("lose_live", 10, World::lose_live),
    step("swap_live", 5, World::swap_live),
    step("elect", 2, |world, _| world.elect()),
    step("refuse", 1, |world, _| world.refuse()),
    step("expire", 2, |world, _| world.expire()),
    step("forget", 1, |world, _| world.forget()),
    step("stall", 2, |world, _| world.stall()),
    step("lag", 1, |world, _| world.lag()),
    step("succeed", 1, World::succeed),
    step("ask_names", 0, World::ask_names),
];

/// The ratios of worlds in which nodes learn which channels there are.
const OF_NAMES: &[(&str, usize)] = &[
    ("ask_names", 40),
    ("follow", 0),
    ("unfollow", 0),
    ("read", 0),
    ("read_state", 0),
    ("change_key", 0),
    ("change_log", 0),
    ("read_log", 0),
    ("end_log", 0),
    ("erase", 0),
    ("succeed", 0),
];

const fn step(name: &'static str, ratio: usize, run: fn(&mut World, usize)) -> Step {
    Step { name, ratio, run }
}

/// Ratios that replace the ones of [`STEPS`].
const WEATHERS: [&[(&str, usize)]; 10] = [
    &[],
    // Connections that do not last.
    &[("disconnect", 40), ("connect", 40), ("go_elsewhere", 15), ("late_copy", 40)],
    // Servers that change.
    &[("elect", 20), ("stall", 10), ("lag", 10), ("refuse", 10)],
    // A network that loses and reorders.
    &[("lose_live", 60), ("swap_live", 60)],
    // A stream with little room.
    &[("publish", 250), ("publish_batch", 60), ("expire", 10)],
    // Much is changed, erased and read.
    &[
        ("change_log", 60),
        ("read_log", 30),
        ("erase", 60),
        ("read", 100),
        ("publish", 60),
        ("carry_up", 900),
        ("carry_down", 900),
        ("connect", 30),
        ("disconnect", 2),
        ("forget", 0),
    ],
    // Logs whose messages have all expired are changed.
    &[("change_log", 60), ("read_log", 30), ("expire", 10)],
    // Channels end and are opened again while all publish.
    &[
        ("end_log", 60),
        ("read_log", 60),
        ("publish", 200),
        ("read", 120),
        ("elect", 4),
        ("carry_up", 600),
        ("carry_down", 600),
    ],
    // States that are changed, erased and read.
    &[
        ("read_state", 120),
        ("change_key", 80),
        ("publish", 200),
        ("publish_batch", 40),
        ("erase", 20),
        ("expire", 4),
        ("lag", 5),
        ("carry_up", 700),
        ("carry_down", 700),
        ("forget", 0),
    ],
    // Upgrades of a busy node.
    &[("succeed", 20), ("publish", 200), ("follow", 80), ("unfollow", 60)],
];

/// The ratios of one world.
pub(super) struct Weather([Step; STEPS.len()]);

impl Weather {
    /// Half of all worlds have fair weather.
    pub(super) fn of(seed: u64) -> Weather {
        let others = WEATHERS.len() as u64 - 1;
        let number = if seed.is_multiple_of(2) { 0 } else { 1 + seed / 2 % others };
        Weather::with(WEATHERS[number as usize])
    }

    pub(super) fn of_names() -> Weather {
        Weather::with(OF_NAMES)
    }

    fn with(ratios: &[(&str, usize)]) -> Weather {
        let mut steps = STEPS;
        for (name, ratio) in ratios {
            let step = steps.iter_mut().find(|step| step.name == *name);
            step.unwrap_or_else(|| panic!("no step {name}")).ratio = *ratio;
        }
        Weather(steps)
    }

    pub(super) fn steps(&self) -> [Step; STEPS.len()] {
        self.0
    }
}
