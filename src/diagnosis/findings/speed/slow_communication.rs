//! DD604 slow-communication: a collective has become slow although no rank enters it late.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CallState, RankCall};

use crate::delays::communication::Slow;
use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::speed::coarse::{about, about_so_long, percent};
use crate::findings::view::no_call;
use crate::situation::Situation;
use crate::words;

/// DD604: collectives that have become slow.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let slow = situation.losses.communication.slow.iter();
    slow.map(|slow| draft(situation, slow)).collect()
}

fn draft(situation: &Situation<'_>, slow: &Slow) -> Draft {
    let mut draft = Draft::new(&catalogue::DD604, KeyPlace::Join(slow.group, 0), slow.known_at);
    draft.victims.clone_from(&slow.ranks);
    draft.place = Some((slow.group, 0));
    draft.op = Some(slow.call.op);
    draft.blocked_at = Some(slow.since);
    let waited = about_so_long(slow.now).as_millis() as u64;
    draft.per_rank = slow
        .ranks
        .iter()
        .map(|&rank| RankCall {
            state: CallState::Returned,
            waited_ms: Some(waited),
            op: slow.call.op.name().map(str::to_owned),
            numel: slow.call.numel,
            place: slow.call.place.as_deref().cloned(),
            ..no_call(rank)
        })
        .collect();
    let what = what(slow);
    let now = about(slow.now);
    let times = slow.now.as_secs_f64() / slow.before.as_secs_f64().max(1e-6);
    draft.summary = format!(
        "{what} takes about {now} although no rank is late, {} times as long as before: communication is \
         slow",
        if times < 10.0 { "several" } else { "many" },
    );
    let (since, before) = (words::clock(slow.since), about(slow.before));
    let takes = match slow.buckets {
        Some(_) => format!(
            "Since at least {since}, DDP waits about {now} for them after all ranks have sent the last \
             one and have nothing left to compute; before, it was {before}."
        ),
        None => format!(
            "Since at least {since}, it takes about {now} after the last rank has entered it; before, \
             it took {before}."
        ),
    };
    let share = percent(slow.share);
    draft.say(format!("{takes} About {share} of the time is lost."));
    draft.say(format!(
        "The hosts are not the cause: threads of the ranks were kept from running for {} of the time, \
         and work between calls takes as long as before.",
        percent(slow.kept),
    ));
    if slow.others > 0 {
        draft.say("Other collectives have become slow as well.");
    }
    draft.advise(if situation.model.nodes() == 1 {
        "Check the paths that messages take within the host: traffic control of its interfaces (tc -s qdisc), links between its \
         GPUs (nvidia-smi topo -m, nvidia-smi nvlink -s), other jobs that load them or its memory."
    } else {
        "Check the network between these hosts: speed of the links (ethtool), errors and drops (ip \
         -s link, nstat), other traffic (sar -n DEV 1)."
    });
    draft
}

/// "all_reduce of 4.0 MiB".
fn what(slow: &Slow) -> String {
    let size = slow.bytes.filter(|&bytes| bytes > 0).map(words::bytes);
    match slow.buckets {
        Some(buckets) => {
            let size = size.map(|size| format!(", {size}")).unwrap_or_default();
            let plural = if buckets == 1 { "" } else { "s" };
            format!("averaging gradients ({buckets} bucket{plural} of DDP's{size})")
        }
        None => {
            let size = size.map(|size| format!(" of {size}")).unwrap_or_default();
            format!("{}{size}", slow.call.op)
        }
    }
}
