//! Output of a diagnosis in the formats that users and programs read.

pub mod dump;
pub mod explain;
pub mod json;
pub mod live;
pub mod markdown;
pub mod sarif;
pub mod status;
pub mod text;
pub mod viewer;

#[cfg(test)]
mod testing;
