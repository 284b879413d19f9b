//! The lines of a text file, bounded and decompressed (`text`), whole where a terminal broke them (`wraps`), without
//! the labels that name the process (`label`) and the time (`timestamps`).

mod label;
mod text;
mod timestamps;
mod wraps;

pub(super) use label::{
    BEFORE, Form, Label, Line, Name, Worker, bracketed_rank, named_stamp, of_title,
};
pub(super) use text::{Lines, is_text};
pub(super) use timestamps::{Year, in_year_of, kernel_time, report_time};
