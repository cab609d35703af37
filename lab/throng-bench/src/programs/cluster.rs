//! Several nodes over NATS: beside one server under the same load, and with faults.

mod faults;
mod hot;
mod jetstream;
mod join;
mod nats;
mod nodes;
mod prober;

use crate::context::{Abort, Context, Watch};
use crate::file::{Run, figure_name};

pub(super) use faults::{broker_killed, leader_killed, node_killed};
pub(super) use hot::hot;
pub(super) use join::join;
use nodes::{BROKERS, Cluster};

/// Rounds of each run: in every other one the servers come in the opposite order.
const ROUNDS: usize = 3;

/// A server that is compared with others; `None` is the context's own.
type Side = (String, Option<Cluster>);

/// Ends the load when any nats-server or node has.
struct Sides<'a>(&'a mut [Side]);

impl Watch for Sides<'_> {
    fn step(&mut self) -> Option<String> {
        self.0.iter_mut().find_map(|(_, cluster)| cluster.as_mut()?.ended())
    }
}

/// Puts a load on several servers in turn, several times. The figures of a side belong to a run of
/// its name.
pub(crate) fn beside(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    context.serve(run)?;
    let mut sides = Vec::new();
    for side in &run.beside {
        let cluster = match side.as_str() {
            "memory" => None,
            "one" => Some(Cluster::start(context, run, 1)?),
            "three" if context.choice.is_single => continue,
            "three" => Some(Cluster::start(context, run, BROKERS)?),
            _ => return Err(Abort::Failed(format!("{side:?} is none of memory, one, three"))),
        };
        sides.push((format!("{}_{side}", figure_name(&run.name)), cluster));
    }
    for round in 0..ROUNDS {
        for nth in 0..sides.len() {
            let side = if round % 2 == 1 { sides.len() - 1 - nth } else { nth };
            let (name, cluster) = &sides[side];
            let target = match cluster {
                None => context.target(run),
                Some(cluster) => cluster.target()?,
            };
            context.begin(&name.clone());
            context.load_watched(run, &target, &mut Sides(&mut sides))?;
        }
    }
    Ok(())
}
