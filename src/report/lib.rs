//! Output of a diagnosis in the formats that users and programs read.

pub mod csv;
pub mod dump;
pub mod explain;
pub mod html;
pub mod json;
pub mod jsonl;
pub mod markdown;
pub mod perfetto;
pub mod sarif;
pub mod status;
pub mod text;
pub mod timeline;
pub mod viewer;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
