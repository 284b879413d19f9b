//! Updates of a job for viewers, from a coordinator or from evidence.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use ddp_doctor_dashboard::feed::{Input, Link};
use ddp_doctor_proto::v1;
use ddp_doctor_proto::viewer::Update;
use v1::viewer_service_client::ViewerServiceClient;

use super::target::{self, Live, Target};
use crate::coordinator::MAX_UPDATE;
use crate::postmortem::{self, Progress, Remark};
use crate::report::text::plain;
use crate::transport::{self, Credentials, document};

/// Time limit for a coordinator's first update.
const MAX_FIRST_UPDATE: Duration = Duration::from_secs(20);
/// First and maximum delay before the connection is tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Resolves the target, with the job selected by `job` if given.
pub(super) fn find(
    target: Option<&str>,
    job: Option<&str>,
    credentials: &Credentials,
) -> anyhow::Result<Target> {
    let mut target = Target::find(target, credentials)?;
    if let (Target::Live(live, _), Some(job)) = (&mut target, job) {
        job.clone_into(&mut live.job);
    }
    Ok(target)
}

/// The current state of a job as one update. Remarks on files are printed, unless `quiet` is 2.
pub(super) fn now(target: &Target, quiet: u8) -> anyhow::Result<Update> {
    match target {
        Target::Live(live, dir) => match runtime()?.block_on(first_update(live)) {
            // The run may have just ended.
            Err(_) if dir.as_deref().is_some_and(target::is_over) => {
                last_update(&[dir.clone().unwrap_or_else(|| ".".into())], quiet)
            }
            update => update,
        },
        Target::Evidence(path) => last_update(std::slice::from_ref(path), quiet),
    }
}

/// The final state of the newest job in files, as one update.
pub(super) fn last_update(paths: &[PathBuf], quiet: u8) -> anyhow::Result<Update> {
    let mut remarks = Vec::new();
    let report = postmortem::last_report(paths, &mut remarks);
    print(&remarks, quiet);
    let Some(report) = report else {
        bail!(nothing_in(paths));
    };
    let at = report.job.ended_at.or(report.job.started_at);
    let mut sent = crate::report::viewer::Sent::default();
    Ok(sent.update(&report, None, at.unwrap_or_default(), true))
}

async fn first_update(live: &Live) -> anyhow::Result<Update> {
    let asked = async {
        let mut updates = watch(live).await?;
        next(&mut updates, live).await?.with_context(|| {
            format!("the coordinator at {} closed the connection without an answer", live.address)
        })
    };
    let answer = tokio::time::timeout(MAX_FIRST_UPDATE, asked).await;
    answer.with_context(|| live.no_answer(MAX_FIRST_UPDATE))?
}

/// Requests the current stacks of all ranks without waiting: they arrive with the updates.
pub(super) fn request_stacks(target: &Target) {
    let Target::Live(live, _) = target.clone() else {
        return;
    };
    std::thread::spawn(move || {
        let asked = async {
            let channel = transport::connect(&live.address).await?;
            let mut client = ViewerServiceClient::new(channel);
            client.dump(v1::DumpRequest { job: live.job }).await?;
            anyhow::Ok(())
        };
        // The screen already shows that the coordinator does not answer.
        let runtime = runtime().map_err(anyhow::Error::from);
        drop(runtime.and_then(|runtime| runtime.block_on(asked)));
    });
}

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

/// Prints messages about files, unless `quiet` is 2.
pub(super) fn print(remarks: &[Remark], quiet: u8) {
    for remark in remarks.iter().filter(|_| quiet < 2) {
        let line = plain(&remark.to_string());
        // Standard error may be closed: the result counts.
        drop(writeln!(io::stderr(), "ddp-doctor: {line}"));
    }
}

/// A message about files without evidence.
pub(super) fn nothing_in(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    format!("no evidence of a job in {}", paths.join(", "))
}

async fn feed_live(live: &Live, dir: Option<PathBuf>, send: &impl Fn(Input) -> bool) {
    let mut pause = BACKOFF.0;
    loop {
        let end = follow(live, send, &mut pause).await;
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

/// How a stream of updates ended.
enum Followed {
    /// The job has ended, or the viewer is closed.
    Finished,
    /// The stream broke.
    Lost,
}

async fn follow(
    live: &Live,
    send: &impl Fn(Input) -> bool,
    pause: &mut Duration,
) -> anyhow::Result<Followed> {
    let mut updates = watch(live).await?;
    let mut is_first = true;
    while let Some(update) = next(&mut updates, live).await? {
        if std::mem::take(&mut is_first) {
            *pause = BACKOFF.0;
            if !send(Input::Link(Link::Live)) {
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

async fn watch(live: &Live) -> anyhow::Result<tonic::Streaming<v1::Document>> {
    let channel = transport::connect(&live.address).await?;
    let mut client = ViewerServiceClient::new(channel).max_decoding_message_size(MAX_UPDATE);
    let job = live.job.clone();
    let answer = client.watch(v1::WatchRequest { job, session: 0 }).await;
    Ok(answer.map_err(|it| refused(live, &it))?.into_inner())
}

async fn next(
    updates: &mut tonic::Streaming<v1::Document>,
    live: &Live,
) -> anyhow::Result<Option<Update>> {
    let document = updates.message().await.map_err(|it| refused(live, &it))?;
    let update = document.map(|it| document::decode(&it)).transpose();
    update.map_err(|it| refused(live, &it))
}

fn refused(live: &Live, status: &tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("coordinator {}: {}", live.address, plain(status.message()))
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
