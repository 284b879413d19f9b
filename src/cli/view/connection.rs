//! The connection of a viewer to a coordinator.

use std::io;

use ddp_doctor_proto::v1;
use ddp_doctor_proto::viewer::Update;
use v1::viewer_service_client::ViewerServiceClient;

use super::target::{Live, Target};
use crate::coordinator::MAX_UPDATE;
use crate::diagnosis::model::MAX_WORLD;
use crate::report::text::plain;
use crate::transport::{self, document};

/// Requests the updates of a job, preceded by earlier states of its ranks with `past`.
pub(super) async fn watch(
    live: &Live,
    past: bool,
) -> anyhow::Result<tonic::Streaming<v1::Document>> {
    let channel = transport::connect(&live.address).await?;
    let mut client = ViewerServiceClient::new(channel).max_decoding_message_size(MAX_UPDATE);
    let job = live.job.clone();
    let answer = client.watch(v1::WatchRequest { job, session: 0, past }).await;
    Ok(answer.map_err(|it| refused(live, &it))?.into_inner())
}

/// The next update; `None`: there are no more.
pub(super) async fn next(
    updates: &mut tonic::Streaming<v1::Document>,
    live: &Live,
) -> anyhow::Result<Option<Update>> {
    let document = updates.message().await.map_err(|it| refused(live, &it))?;
    let update: Option<Update> =
        document.map(|it| document::decode(&it)).transpose().map_err(|it| refused(live, &it))?;
    Ok(update.map(|it| with_plain_codes(with_ranks_below(MAX_WORLD, it))))
}

/// Leaves out ranks that no job has, of which a viewer would remember each: another user may have made the coordinator.
fn with_ranks_below(limit: u32, mut update: Update) -> Update {
    update.ranks.retain(|it| it.rank < limit);
    update.details.retain(|it| it.rank < limit);
    update.evidence.missing_ranks.retain(|&it| it < limit);
    update
}

/// Replaces control characters in the codes of findings, which are printed as they are.
fn with_plain_codes(mut update: Update) -> Update {
    for finding in update.findings.iter_mut().flatten() {
        finding.code = plain(&finding.code);
    }
    update
}

fn refused(live: &Live, status: &tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("coordinator {}: {}", live.address, plain(status.message()))
}

pub(super) fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
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

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::{Evidence, Finding, Rank};
    use ddp_doctor_proto::viewer::RankDetail;

    use super::*;

    #[test]
    fn codes_control_no_terminal() {
        let hostile = Finding { code: "DD102\u{1b}[31m\n".into(), ..Finding::default() };
        let update = Update { findings: Some(vec![hostile]), ..Update::default() };
        let code = with_plain_codes(update).findings.unwrap().remove(0).code;
        assert!(code.starts_with("DD102") && !code.contains(char::is_control), "{code:?}");
    }

    #[test]
    fn ranks_that_no_job_has_are_left_out() {
        let ranks = [3, 4, u32::MAX];
        let update = Update {
            ranks: ranks.map(|rank| Rank { rank, ..Rank::default() }).to_vec(),
            details: ranks.map(|rank| RankDetail { rank, ..RankDetail::default() }).to_vec(),
            evidence: Evidence { missing_ranks: ranks.to_vec(), ..Evidence::default() },
            ..Update::default()
        };
        let left = with_ranks_below(4, update);
        assert_eq!(left.ranks.iter().map(|it| it.rank).collect::<Vec<_>>(), [3]);
        assert_eq!(left.details.iter().map(|it| it.rank).collect::<Vec<_>>(), [3]);
        assert_eq!(left.evidence.missing_ranks, [3]);
    }
}
