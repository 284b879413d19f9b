//! Evidence in the forms it is kept and sent in, turned into what the engine is told.
//!
//! Whatever its source (a live stream, a journal, a black box), evidence passes through one
//! [`decode::Decoder`]: the same bytes give the same events, live and after the fact.

pub mod blackbox;
pub mod decode;
pub mod journal;
mod process;
pub mod settings;
pub mod stacks;
