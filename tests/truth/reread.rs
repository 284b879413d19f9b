//! The tests in a program's source, read again for a recording: a recording keeps what the source said to the reader of
//! its day, and the replay tests the present one.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use ddp_doctor::evidence::journal::{Reader, Writer};
use ddp_doctor::node::source_reader::Source;
use ddp_doctor_proto::v1::{self, event::Kind};

use crate::program::Case;
use crate::support::pytorch_jobs::variant;

/// The text that ran as a case; `None`: it is not in Python.
fn text(case: &Case) -> Option<String> {
    let program = &case.program;
    if program.path.extension()? != "py" {
        return None;
    }
    let path = match &case.scenario {
        // A program with scenarios contains both variants.
        Some(_) => program.path.clone(),
        None => variant(&format!("{}/{}.py", case.variant.name(), program.name)),
    };
    fs::read_to_string(path).ok()
}

/// Replaces the guards of the program's sites in a journal whose lines are `added` less than those of the program. Sites
/// whose source was not read remain so.
pub(crate) fn reread(case: &Case, added: u32, journal: &Path) {
    let Some(text) = text(case) else { return };
    let source = Source::parse(&text);
    let file = format!("/{}.py", case.program.name);
    let copy = journal.with_extension("reread");
    let mut from = Reader::open(journal).unwrap();
    let mut to = Writer::create(&copy).unwrap();
    let mut being_read = HashSet::new();
    while let Some(mut report) = from.read().unwrap() {
        for event in &mut report.events {
            let Some(Kind::SiteDefined(site)) = &mut event.kind else { continue };
            let was_being_read = !being_read.insert((site.process, site.id));
            let is_answer = !site.reading && (was_being_read || !site.guards.is_empty());
            if is_answer && site.file.ends_with(&file) && !site.library {
                site.guards = guards(&source, site.line, added);
            }
        }
        to.append(&report).unwrap();
    }
    drop(to);
    fs::rename(copy, journal).unwrap();
}

/// The guards of a line with the numbers that lines had in the recording.
fn guards(source: &Source, line: u32, added: u32) -> Vec<v1::Guard> {
    let found = source.guards(line + added).into_iter();
    let guards = found.map(|guard| v1::Guard {
        line: guard.line.saturating_sub(added),
        test: guard.test,
        subject: i32::from(guard.subject.number()),
        form: i32::from(guard.form.number()),
        other_first: guard.other.map(|it| it.first.saturating_sub(added)),
        other_last: guard.other.map(|it| it.last.saturating_sub(added)),
        is_called_there: guard.other.is_some_and(|it| it.makes_call),
        is_while: guard.is_while,
    });
    guards.collect()
}
