//! Evidence that other tools left behind, as events for the engine.

pub mod logs;
pub mod stack_text;
