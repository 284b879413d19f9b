//! DD603 straggler-host: a rank keeps the others waiting because its host or interpreter delays it.

use ddp_doctor_proto::catalogue;

use crate::findings::draft::Draft;
use crate::findings::speed::straggler;
use crate::situation::Situation;
use crate::speed::lateness::{Host, Why};
use crate::words::{Capital, Ranks, number};

/// DD603: stragglers delayed by their host or interpreter.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let straggler = situation.straggler.iter();
    straggler
        .filter_map(|straggler| {
            let Why::Host(host) = &straggler.why else {
                return None;
            };
            let (because, why, next) = words(host, &straggler.ranks);
            let mut draft =
                straggler::draft(&catalogue::DD603, situation, straggler, because, None);
            let process = situation.model.process_of(*straggler.ranks.first()?);
            let on =
                process.map(|process| format!(" Host: {}, process {}.", process.host, process.pid));
            draft.why.push(why);
            draft.next = vec![next + &on.unwrap_or_default()];
            Some(draft)
        })
        .collect()
}

/// End of the summary, reason and advice.
fn words(host: &Host, ranks: &[u32]) -> (&'static str, String, String) {
    let ranks_are = |one, several| Capital(Ranks(ranks)).to_string() + number(ranks, one, several);
    match host {
        Host::Stopped(share) => (
            "because it is stopped and continued",
            format!(
                "{} stopped about {} of the time, by signals or by freezing its container.",
                ranks_are(" was", " were"),
                straggler::percent(*share),
            ),
            "Find out what stops the process, and let it run.".into(),
        ),
        Host::Throttled(share) => (
            "because its container has used up its quota",
            format!(
                "The quota of its cgroup kept {} from running about {} of the time.",
                Ranks(ranks),
                straggler::percent(*share),
            ),
            "Raise the container's quota of processor time (cpu.max), or give it less to do.".into(),
        ),
        Host::Queued {
            own,
            others,
            processors,
            pressure,
        } => (
            "because others use its processors",
            format!(
                "{} ready to run and had no processor for about {} of the time, the others for {}.{}{}",
                ranks_are(" was", " were"),
                straggler::percent(*own),
                straggler::percent(*others),
                processors.as_ref().map_or_else(String::new, |processors| format!(
                    " Its CPU affinity is {processors}."
                )),
                pressure.map_or_else(String::new, |pressure| format!(
                    " Its host was short of CPU: something there waited for a processor about {} of \
                     the time.",
                    straggler::percent(pressure),
                )),
            ),
            "Find out what else runs on its processors (top, ps -eLo pid,psr,pcpu,comm), and move one \
             of them."
                .into(),
        ),
        Host::Stolen(share) => (
            "because the processors of its host are given to others",
            format!(
                "A hypervisor gave the processors of the host of {} to others about {} of the time.",
                Ranks(ranks),
                straggler::percent(*share),
            ),
            "Its virtual machine shares processors with others (st in top): move it, or give it \
             dedicated processors."
                .into(),
        ),
        Host::Garbage(share) => (
            "because it collects garbage",
            format!(
                "The interpreter of {} collects garbage about {} of the time.",
                Ranks(ranks),
                straggler::percent(*share),
            ),
            "Call gc.freeze() once everything is loaded, or collect on all ranks in the same step: \
             gc.disable() and gc.collect()."
                .into(),
        ),
        Host::Paging(rate) => (
            "because its memory is read from a disk",
            format!(
                "About {:.0} pages a second are read from a disk for {}.",
                (rate / 100.0).round() * 100.0,
                Ranks(ranks),
            ),
            "Its host has too little memory for what runs there: check swap and what uses it."
                .into(),
        ),
        Host::Memory(share) => (
            "because its host is short of memory",
            format!(
                "Something on the host, or in the container, of {} waited for memory about {} of the \
                 time.",
                Ranks(ranks),
                straggler::percent(*share),
            ),
            "Its host, or its container, has too little memory for what runs there: check swap, \
             memory.high and what uses it."
                .into(),
        ),
    }
}
