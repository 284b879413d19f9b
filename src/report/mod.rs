//! A diagnosis in the forms people and programs read.

pub mod text;
