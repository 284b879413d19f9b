//! Evidence in the forms it is kept and sent in, turned into what the engine is told.
//!
//! Whatever its source (a live stream, a journal, a black box, PyTorch's recorder), evidence passes through one
//! [`decode::Decoder`]: the same bytes give the same events, live and after the fact.

mod above;
pub mod blackbox;
pub mod decode;
pub mod journal;
mod process;
mod recorded;
pub mod recorder;
pub mod settings;
pub mod stacks;
