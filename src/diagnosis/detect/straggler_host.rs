//! DD603 straggler-host: a rank keeps the others waiting because its host or interpreter delays it.

use ddp_doctor_proto::catalogue;

use super::straggler;
use super::{About, Detector, Draft, order};
use crate::diagnosis::lateness::{Host, Why};
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words::{Capital, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD603,
    order: order::HINT,
};

/// DD603: stragglers delayed by their host or interpreter.
pub(super) struct StragglerHost;

impl Detector for StragglerHost {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let straggler = situation.straggler.iter();
        straggler
            .filter_map(|straggler| {
                let Why::Host(host) = &straggler.why else {
                    return None;
                };
                let (because, why, next) = words(host, &straggler.ranks);
                let mut draft = straggler::draft(&ABOUT, situation, straggler, because, None);
                let process = situation.model.process_of(*straggler.ranks.first()?);
                let on = process
                    .map(|process| format!(" Host: {}, process {}.", process.host, process.pid));
                draft.why.push(why);
                draft.next = vec![next + &on.unwrap_or_default()];
                Some(draft)
            })
            .collect()
    }
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
            "Its host has too little memory for what runs there: look at swap and at what uses it."
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
            "Its host, or its container, has too little memory for what runs there: look at swap, at \
             memory.high and at what uses it."
                .into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::ABOUT;
    use crate::diagnosis::testing::{holds, shows};

    /// A scenario in which rank 1 is late, with samples of both hosts.
    fn late(host: &str) -> String {
        format!(
            r#"
            world = 2
            events = """
            {host}
            loop 1-40 from 1.0 every 0.2
            0.00 *   forward $
            0.05 0   all_reduce hidden f32[1024] sum @train.py:9
            0.15 1   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            "#
        )
    }

    fn is_host(scenario: &str, says: &str) {
        holds(&format!(
            r#"{scenario}
            verdict = "slow"
            [[expect]]
            code = "DD603"
            severity = "warning"
            root = [1]
            victims = [0]
            summary-has = "{says}"
            "#
        ));
    }

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            &late("0.9 0 host ran=300 queued=0 on=0\n0.9 1 host ran=300 queued=600 on=1"),
        );
    }

    #[test]
    fn processors_used_by_others_explain_a_straggler() {
        let hog = late("0.9 0 host ran=300 queued=0 on=0-1\n0.9 1 host ran=300 queued=600 on=0-1");
        is_host(&hog, "others use its processors");
    }

    #[test]
    fn exhausted_quota_explains_a_straggler() {
        let quota = late("0.9 0 host ran=300 throttled=0\n0.9 1 host ran=300 throttled=600");
        is_host(&quota, "quota");
    }

    #[test]
    fn page_faults_explain_a_straggler() {
        let swap = late("0.9 0 host ran=300 faults=0\n0.9 1 host ran=300 faults=900");
        is_host(&swap, "read from a disk");
    }

    #[test]
    fn stolen_time_explains_a_straggler() {
        let host = "0.9 0 host ran=300 stolen=0\n0.9 1 host ran=300 stolen=600";
        is_host(&late(host), "given to others");
    }

    #[test]
    fn memory_pressure_explains_a_straggler() {
        let host = "0.9 0 host ran=300 memory=0\n0.9 1 host ran=300 memory=600";
        is_host(&late(host), "short of memory");
    }

    #[test]
    fn cpu_pressure_is_reported() {
        let host =
            "0.9 0 host ran=300 queued=0 on=0 cpu=0\n0.9 1 host ran=300 queued=600 on=1 cpu=700";
        holds(&format!(
            r#"{}
            [[expect]]
            code = "DD603"
            root = [1]
            why-has = "Its host was short of CPU: something there waited for a processor about 70 %"
            "#,
            late(host)
        ));
    }

    #[test]
    fn repeated_stops_explain_a_straggler() {
        is_host(
            r#"
            world = 2
            events = """
            loop 1-40 from 1.0 every 0.2
            0.00 *   forward $
            0.02 1   stops
            0.05 0   all_reduce hidden f32[1024] sum @train.py:9
            0.12 1   continues
            0.15 1   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            "#,
            "stopped and continued",
        );
    }

    #[test]
    fn garbage_collection_explains_a_straggler() {
        is_host(
            r#"
            world = 2
            events = """
            loop 1-40 from 1.0 every 0.2
            0.00 *   forward $
            0.05 0   all_reduce hidden f32[1024] sum @train.py:9
            0.12 1   garbage 0.1
            0.15 1   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            "#,
            "garbage",
        );
    }

    #[test]
    fn slightly_more_work_on_a_busy_host_is_ignored() {
        holds(&late(
            "0.9 0 host ran=200 queued=300 on=0-1\n0.9 1 host ran=300 queued=400 on=0-1",
        ));
    }

    #[test]
    fn host_that_is_busy_for_all_ranks_is_ignored() {
        holds(&late(
            "0.9 0 host ran=300 queued=300 on=0-1\n0.9 1 host ran=300 queued=700 on=0-1",
        ));
    }

    #[test]
    fn own_processors_shared_with_others_explain_a_straggler() {
        is_host(
            &late("0.9 0 host ran=300 queued=200 on=0\n0.9 1 host ran=300 queued=700 on=1"),
            "others use its processors",
        );
    }

    #[test]
    fn much_more_work_on_a_busy_host_is_a_compute_straggler() {
        holds(&format!(
            r#"{}
            [[expect]]
            code = "DD601"
            root = [1]
            "#,
            late("0.9 0 host ran=200 queued=100\n0.9 1 host ran=600 queued=300"),
        ));
    }
}
