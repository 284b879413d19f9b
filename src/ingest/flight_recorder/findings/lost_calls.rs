//! Missing ranks whose dumps have lost the calls in which the ranks may wait.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Finding;

use crate::diagnosis::words;
use crate::ingest::flight_recorder::replay::Replay;

/// Adds to a finding about a missing rank in which calls that rank may wait.
pub(super) fn explain(finding: &mut Finding, replay: &Replay<'_>) {
    if finding.code != catalogue::DD101.code {
        return;
    }
    for rank in &finding.ranks.root {
        let Some(dump) = replay.job.ranks.get(rank) else {
            continue;
        };
        let entries = dump.entries.iter().take_while(|it| it.is_counted());
        let calls = entries.filter_map(|it| {
            let group = &replay.groups.all[replay.groups.of_kind(*rank, it)?];
            Some(format!("#{} of {}", group.seq(it), words::group(&group.info)))
        });
        let calls: Vec<String> = calls.collect();
        if !calls.is_empty() {
            finding.why.push(format!(
                "The dump of rank {rank} begins after its first incomplete calls: its counters show \
                 that they are {}.",
                calls.join(" and "),
            ));
            // Its last call is one of these.
            let about_it = format!("Rank {rank}: ");
            finding.why.retain(|it| !it.starts_with(&about_it));
            finding.next = vec![format!(
                "Compare the calls of rank {rank} with those of its peers in these groups: it may have \
                 left out a call, or made one more."
            )];
        }
    }
}
