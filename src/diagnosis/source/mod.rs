//! What the user's source says about a divergence: branches and causes.

pub mod branches;
pub mod cause;

pub use crate::guards::python;
