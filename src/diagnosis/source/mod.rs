//! What the user's source says about a divergence: tests around a line, branches, causes.

pub mod branches;
pub mod cause;
pub mod guards;
pub mod python;
