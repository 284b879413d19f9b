//! What DDP does with the models of a process: their parameters, the forwards that synchronize
//! gradients, and the values of the replicas.

mod accumulation;
mod parameters;
mod replicas;

pub use accumulation::Accumulation;
pub use parameters::{Parameter, ParameterCount, ReducerReport, Replica, parse};
pub use replicas::{Comparison, Diverged, ReplicaValues, Replicas, is_apart};

pub(in crate::model) use parameters::Models;
