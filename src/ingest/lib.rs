//! Evidence that other tools left behind, as events for the engine.

mod dtypes;
mod file_names;
pub mod flight_recorder;
pub mod logs;
mod observer;
pub mod own_dump;
mod progress;
mod remark;
pub mod stack_text;

pub use observer::Observer;
pub(crate) use observer::process;
pub use progress::Progress;
pub use remark::Remark;
