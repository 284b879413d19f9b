//! The current or final state of a job, as one update.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use ddp_doctor_proto::viewer::Update;

use super::connection::{next, runtime, watch};
use super::target::{self, Live, Target};
use crate::cli::evidence_files::{nothing_in, print_remarks};
use crate::postmortem;

/// Time limit for a coordinator's first update.
const MAX_FIRST_UPDATE: Duration = Duration::from_secs(20);

/// The current state of a job as one update. Remarks on files are printed, unless `quiet` is 2.
pub(super) fn now(target: &Target, quiet: u8) -> anyhow::Result<Update> {
    match target {
        Target::Live(live, dir) => match runtime()?.block_on(first_update(live)) {
            // The run may have just ended.
            Err(_) if dir.as_deref().is_some_and(target::is_over) => {
                Ok(last_update(&[dir.clone().unwrap_or_else(|| ".".into())], quiet)?.0)
            }
            update => update,
        },
        Target::Evidence(path) => Ok(last_update(std::slice::from_ref(path), quiet)?.0),
    }
}

/// The final state of the newest job in files, as one update, and the paths with its evidence.
pub(super) fn last_update(
    paths: &[PathBuf],
    quiet: u8,
) -> anyhow::Result<(Update, BTreeSet<PathBuf>)> {
    let mut remarks = Vec::new();
    let report = postmortem::last_report(paths, &mut remarks);
    print_remarks(&remarks, quiet);
    let Some((report, paths)) = report else {
        bail!(nothing_in(paths));
    };
    let at = report.job.ended_at.or(report.job.started_at);
    let mut sent = crate::report::viewer::Sent::default();
    Ok((sent.update(&report, None, at.unwrap_or_default(), true), paths))
}

async fn first_update(live: &Live) -> anyhow::Result<Update> {
    let asked = async {
        let mut updates = watch(live, false).await?;
        next(&mut updates, live).await?.with_context(|| {
            format!("the coordinator at {} closed the connection without an answer", live.address)
        })
    };
    let answer = tokio::time::timeout(MAX_FIRST_UPDATE, asked).await;
    answer.with_context(|| live.no_answer(MAX_FIRST_UPDATE))?
}
