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
            let mut draft =
                straggler::draft(&catalogue::DD603, situation, straggler, because(host), None);
            let process = situation.model.process_of(*straggler.ranks.first()?);
            let on =
                process.map(|process| format!(" Host: {}, process {}.", process.host, process.pid));
            draft.why.push(why(host, &straggler.ranks));
            draft.next = vec![format!("{}{}", advice(host), on.unwrap_or_default())];
            Some(draft)
        })
        .collect()
}

/// End of the summary.
const fn because(host: &Host) -> &'static str {
    match host {
        Host::Stopped(_) => "because it is stopped and continued",
        Host::Throttled(_) => "because its container has used up its quota",
        Host::Queued { .. } => "because others use its processors",
        Host::Stolen(_) => "because the processors of its host are given to others",
        Host::Garbage(_) => "because it collects garbage",
        Host::Paging(_) => "because its memory is read from a disk",
        Host::Memory(_) => "because its host is short of memory",
    }
}

/// The measurement.
fn why(host: &Host, ranks: &[u32]) -> String {
    let were = number(ranks, "was", "were");
    match host {
        Host::Stopped(share) => format!(
            "{} {were} stopped about {} of the time, by signals or by freezing its container.",
            Capital(Ranks(ranks)),
            straggler::percent(*share),
        ),
        Host::Throttled(share) => format!(
            "The quota of its cgroup kept {} from running about {} of the time.",
            Ranks(ranks),
            straggler::percent(*share),
        ),
        Host::Queued { own, others, processors, pressure } => format!(
            "{} {were} ready to run and had no processor for about {} of the time, the others for {}.{}{}",
            Capital(Ranks(ranks)),
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
        Host::Stolen(share) => format!(
            "A hypervisor gave the processors of the host of {} to others about {} of the time.",
            Ranks(ranks),
            straggler::percent(*share),
        ),
        Host::Garbage(share) => format!(
            "The interpreter of {} collects garbage about {} of the time.",
            Ranks(ranks),
            straggler::percent(*share),
        ),
        Host::Paging(rate) => format!(
            "About {:.0} pages a second are read from a disk for {}.",
            (rate / 100.0).round() * 100.0,
            Ranks(ranks),
        ),
        Host::Memory(share) => format!(
            "Something on the host, or in the container, of {} waited for memory about {} of the \
             time.",
            Ranks(ranks),
            straggler::percent(*share),
        ),
    }
}

const fn advice(host: &Host) -> &'static str {
    match host {
        Host::Stopped(_) => "Find out what stops the process, and let it run.",
        Host::Throttled(_) => {
            "Raise the container's quota of processor time (cpu.max), or give it less to do."
        }
        Host::Queued { .. } => {
            "Find out what else runs on its processors (top, ps -eLo pid,psr,pcpu,comm), and move one \
             of them."
        }
        Host::Stolen(_) => {
            "Its virtual machine shares processors with others (st in top): move it, or give it \
             dedicated processors."
        }
        Host::Garbage(_) => {
            "Call gc.freeze() once everything is loaded, or collect on all ranks in the same step: \
             gc.disable() and gc.collect()."
        }
        Host::Paging(_) => {
            "Its host has too little memory for what runs there: check swap and what uses it."
        }
        Host::Memory(_) => {
            "Its host, or its container, has too little memory for what runs there: check swap, \
             memory.high and what uses it."
        }
    }
}
