//! Statistics of time: who keeps the others waiting, and how long collectives take.

pub mod communication;
pub mod lateness;
