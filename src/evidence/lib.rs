//! Decoding of evidence into events of the engine.
//!
//! Evidence from any source (a live stream, a journal, a black box) passes through one
//! [`decode::Decoder`]: the same bytes yield the same events, live and after the fact.

pub mod blackbox;
pub mod decode;
mod device_calls;
pub mod digest;
mod gpus;
pub mod journal;
mod limits;
pub mod members;
mod memory;
pub mod ports;
mod process_decoder;
pub mod settings;
pub mod stacks;
pub mod values;
