//! Engines and launchers that name the worker which ended: vLLM and Composer.

use ddp_doctor_proto::report::Timestamp;

use super::of_rank;
use crate::logs::facts::{ExitStatus, Facts, Statement};
use crate::logs::lines::Line;
use crate::logs::scan::{after, rank, until};

/// What precedes the rank in a line of vLLM about a worker.
const VLLM: &str = "Worker proc VllmWorker-";
/// What precedes the rank in a line of Composer.
const COMPOSER: &str = "composer.cli.launcher:Rank ";

/// What precedes the rank in another line of Composer.
const EXITED: &str = "Global rank ";

/// A line between which Composer repeats the output of a rank.
pub(in super::super) enum Section {
    Begin(u32),
    End,
}

/// The section that a line begins or ends: "----------Begin global rank 3 STDERR----------".
pub(in super::super) fn section(text: &str) -> Option<Section> {
    let text = text.strip_prefix("----------")?;
    if text.starts_with("End global rank ") {
        return Some(Section::End);
    }
    rank(text.strip_prefix("Begin global rank ")?).map(Section::Begin)
}

/// Reads one line.
pub(super) fn read(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    if let Some(own) = after(line.text, VLLM)
        && own.contains(" died unexpectedly")
        && let Some(rank) = rank(own)
    {
        let what = Statement::Ended(ExitStatus::default());
        facts.add(of_rank(&Line { label: <_>::default(), ..*line }, Some(rank)), at, what);
    }
    let composer = after(line.text, COMPOSER).or_else(|| line.text.strip_prefix(EXITED));
    if let Some(own) = composer
        && let Some(status) =
            after(own, " crashed with exit code ").or_else(|| after(own, ") exited with code "))
        && let Some(rank) = rank(own)
        && let Ok(status) = until(status, &[' ']).trim_end_matches('.').parse::<i32>()
        && (-64..=255).contains(&status)
    {
        let what = Statement::Ended(ExitStatus::of_status(status));
        facts.add(of_rank(line, Some(rank)), at, what);
    }
}
