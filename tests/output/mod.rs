//! What commands print and write.
//!
//! * `formats`: formats and options of commands, and their standard output.
//! * `pages`: `analyze --format html`, `perfetto` and `csv`; the page in a browser.
//! * `layout`: the layout of that page, on wide and narrow screens.
//! * `schemas`: SARIF and Perfetto against their schemas.
//! * `large_jobs`: reports of jobs with many ranks.

mod formats;
mod large_jobs;
mod layout;
mod pages;
mod schemas;
