//! DD603 straggler-host: ranks keep the others waiting because their host or interpreter delays them.

use ddp_doctor_proto::catalogue;

use crate::delays::lateness::{Host, Why};
use crate::findings::draft::Draft;
use crate::findings::speed::coarse::percent;
use crate::findings::speed::straggler::{self, Reason};
use crate::model::Process;
use crate::situation::Situation;
use crate::words::{self, Ranks, number};

/// DD603: late ranks that their host or interpreter delays.
pub(crate) fn draft(situation: &Situation<'_>) -> Option<Draft> {
    let late = situation.losses.straggler.as_ref()?;
    let Why::Host(host) = &late.why else { return None };
    let process = late.ranks.first().and_then(|&rank| situation.model.process_of(rank));
    let reason = reason(&late.ranks, host, process);
    Some(straggler::draft(situation, &catalogue::DD603, late, None, reason))
}

fn reason(ranks: &[u32], host: &Host, process: Option<&Process>) -> Reason {
    let who = Ranks(ranks);
    let were = number(ranks, "was", "were");
    let (because, measured, advice) = match host {
        Host::Stopped(share) => (
            "because it is stopped and continued",
            format!(
                "{} {were} stopped about {} of the time, by signals or by freezing its container.",
                words::begin(who),
                percent(*share),
            ),
            "Find out what stops the process, and let it run.",
        ),
        Host::Throttled(share) => (
            "because its container has used up its quota",
            format!(
                "The quota of its cgroup kept {who} from running about {} of the time.",
                percent(*share)
            ),
            "Raise the container's quota of CPU time (cpu.max), or give it less to do.",
        ),
        Host::Queued { own, others, processors, pressure } => (
            "because other processes use its CPUs",
            format!(
                "{} {were} ready to run and had no CPU for about {} of the time, the others for \
                 {}.{}",
                words::begin(who),
                percent(*own),
                percent(*others),
                processors_and_pressure(processors.as_deref(), *pressure),
            ),
            "Find out what else runs on its CPUs (top, ps -eLo pid,psr,pcpu,comm), and move one \
             of them.",
        ),
        Host::Stolen(share) => (
            "because its host gets less CPU time from the hypervisor",
            format!(
                "The hypervisor took CPU time from the host of {who} about {} of the time.",
                percent(*share)
            ),
            "Its virtual machine shares CPUs with others (st in top): move it, or give it dedicated \
             CPUs.",
        ),
        Host::Garbage(share) => (
            "because it collects garbage",
            format!(
                "The interpreter of {who} collects garbage about {} of the time.",
                percent(*share)
            ),
            "Call gc.freeze() once everything is loaded, or collect on all ranks in the same step: \
             gc.disable() and gc.collect().",
        ),
        Host::Paging(rate) => (
            "because its memory is read from a disk",
            format!(
                "About {:.0} pages per second are read from a disk for {who}.",
                (rate / 100.0).round() * 100.0
            ),
            "Its host has too little memory for what runs there: check swap and what uses it.",
        ),
        Host::Memory(share) => (
            "because its host is short of memory",
            format!(
                "Something on the host, or in the container, of {who} waited for memory about {} of \
                 the time.",
                percent(*share)
            ),
            "Its host, or its container, has too little memory for what runs there: check swap, \
             memory.high and what uses it.",
        ),
    };
    let on = process.map(|process| format!(" Host: {}, process {}.", process.host, process.pid));
    let advice = advice.to_owned() + &on.unwrap_or_default();
    Reason { because, measured: Some(measured), advice }
}

/// Sentences on the processors that ranks are confined to, and on the pressure for processors.
fn processors_and_pressure(processors: Option<&str>, pressure: Option<f64>) -> String {
    let processors = processors.map(|it| format!(" Its CPU affinity is {it}."));
    let pressure = pressure.map(|pressure| {
        format!(
            " Its host was short of CPU: something there waited for a CPU about {} of the time.",
            percent(pressure)
        )
    });
    processors.unwrap_or_default() + &pressure.unwrap_or_default()
}
