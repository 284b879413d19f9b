//! Updates of a job for the screens, from a coordinator or from evidence.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ddp_doctor_dashboard::feed::{Input, Link};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::viewer::Update;

use super::connection::{next, runtime, watch};
use super::target::{self, Live, Target};
use crate::cli::evidence_files::nothing_in;
use crate::host::input_files;
use crate::postmortem::{self, Progress};
use crate::report::text::plain;
use crate::transport::Credentials;

/// First and maximum delay before the connection is tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Maximum size of a journal that is read before the screens appear.
const MAX_HISTORY_BYTES: u64 = 64 << 20;

/// Feeds a viewer until there are no more updates, or the viewer is closed.
pub(super) fn feed(mut target: Target, send: impl Fn(Input) -> bool) {
    loop {
        match target {
            Target::Live(live, dir) => {
                let Ok(runtime) = runtime() else { return };
                return runtime.block_on(feed_live(&live, dir, &send));
            }
            Target::Evidence(path) if feed_evidence(&path, &send) => return,
            // A run that has just begun has no evidence yet.
            Target::Evidence(path) => {
                std::thread::sleep(BACKOFF.0);
                let found = Target::find(path.to_str(), &Credentials::default());
                target = found.unwrap_or(Target::Evidence(path));
            }
        }
    }
}

/// Feeds a viewer from evidence. Returns false if there is no evidence yet.
fn feed_evidence(path: &Path, send: &impl Fn(Input) -> bool) -> bool {
    let paths = [path.to_owned()];
    // The terminal shows the screens: it has no place for remarks.
    let mut remarks = Vec::new();
    let Some(recording) = postmortem::record(&paths, &mut remarks, &Progress::default()) else {
        let why = nothing_in(&paths);
        return !send(Input::Link(Link::Lost { why }));
    };
    replay(recording.updates, send);
    true
}

/// Feeds a viewer the updates of a recorded job.
pub(super) fn replay(updates: Vec<Update>, send: impl Fn(Input) -> bool) {
    if send(Input::Link(Link::Recorded)) {
        let mut updates = updates.into_iter();
        updates.all(|update| send(Input::Update(Box::new(update))));
    }
}

async fn feed_live(live: &Live, dir: Option<PathBuf>, send: &impl Fn(Input) -> bool) {
    let mut pause = BACKOFF.0;
    loop {
        let end = follow(live, dir.as_deref(), send, &mut pause).await;
        let why = match end {
            Ok(Followed::Finished) => return,
            Ok(Followed::Lost) => {
                format!("the coordinator at {} closed the connection", live.address)
            }
            Err(error) => format!("{error:#}"),
        };
        // A run that has ended has left complete evidence.
        if let Some(dir) = dir.as_deref().filter(|dir| target::is_over(dir))
            && feed_evidence(dir, send)
        {
            return;
        }
        let why = plain(&why);
        if !send(Input::Link(Link::Lost { why })) {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(BACKOFF.1);
    }
}

/// Whether the files of a run are small enough to be read before the screens appear.
fn is_small(dir: &Path) -> bool {
    let files = input_files::entries(dir).into_iter().flatten();
    let bytes: u64 = files.filter_map(|it| Some(input_files::metadata(&it).ok()?.len())).sum();
    bytes <= MAX_HISTORY_BYTES
}

/// States of the ranks before a time, from the journal of a run.
fn history(dir: &Path, before: Timestamp) -> Vec<Update> {
    let recorded = postmortem::record(&[dir.to_owned()], &mut Vec::new(), &Progress::default());
    let mut updates = recorded.map(|it| it.updates).unwrap_or_default();
    // The last concludes that the evidence ends.
    updates.pop();
    updates.retain(|it| it.at < before);
    for update in &mut updates {
        // The coordinator numbers groups on its own, and its first update has all of them.
        update.groups.clear();
        update.ended = false;
    }
    updates
}

/// How a stream of updates ended.
enum Followed {
    /// The job has ended, or the viewer is closed.
    Finished,
    /// The stream broke.
    Lost,
}

async fn follow(
    live: &Live,
    dir: Option<&Path>,
    send: &impl Fn(Input) -> bool,
    pause: &mut Duration,
) -> anyhow::Result<Followed> {
    // A journal has more than the samples that a coordinator keeps.
    let dir = dir.filter(|dir| is_small(dir));
    let mut updates = watch(live, dir.is_none()).await?;
    let mut is_first = true;
    while let Some(update) = next(&mut updates, live).await? {
        if std::mem::take(&mut is_first) {
            *pause = BACKOFF.0;
            let past = dir
                .map(|dir| history(dir, update.at))
                .unwrap_or_default()
                .into_iter()
                .map(|it| Input::Update(Box::new(it)));
            if !std::iter::once(Input::Link(Link::Live)).chain(past).all(send) {
                return Ok(Followed::Finished);
            }
        }
        let ended = update.ended;
        if !send(Input::Update(Box::new(update))) || ended {
            return Ok(Followed::Finished);
        }
    }
    Ok(Followed::Lost)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn history_ends_before_the_first_live_update() {
        let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
        let file = std::fs::File::open(recordings.join("process/killed.faulty.gz")).unwrap();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
        let head = bytes.iter().position(|&byte| byte == b'\n').unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("journal.ddpj"), &bytes[head + 1..]).unwrap();
        let all = history(dir.path(), Timestamp(u64::MAX));
        let states = all.iter().flat_map(|it| &it.ranks).count();
        assert!(all.len() > 2 && states > 0, "{} updates, {states} states", all.len());
        assert!(all.iter().all(|it| !it.ended && it.groups.is_empty()));
        let (first, last) = (all[0].at, all[all.len() - 1].at);
        assert_eq!(history(dir.path(), first), []);
        assert_eq!(history(dir.path(), last).len(), all.iter().filter(|it| it.at < last).count());
    }
}
