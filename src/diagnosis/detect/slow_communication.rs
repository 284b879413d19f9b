//! DD604 slow-communication: a collective has become slow although no rank enters it late.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CallState, Confidence, RankCall};

use super::straggler::{about_so_long, percent};
use super::view::no_call;
use super::{About, Detector, Draft, KeyPlace, order};
use crate::diagnosis::communication::Slow;
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words;

static ABOUT: About = About {
    code: &catalogue::DD604,
    order: order::HINT,
};

/// DD604: collectives that have become slow.
pub(super) struct SlowCommunication;

impl Detector for SlowCommunication {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let slow = situation.communication.slow.iter();
        slow.map(draft).collect()
    }
}

fn draft(slow: &Slow) -> Draft {
    let mut draft = Draft::new(&ABOUT, KeyPlace::Join(slow.group, 0), slow.known_at);
    draft.victims.clone_from(&slow.ranks);
    draft.confidence = Confidence::Supported;
    draft.place = Some((slow.group, 0));
    draft.op = Some(slow.call.op);
    draft.blocked_at = Some(slow.since);
    let now = about_so_long(slow.now);
    draft.per_rank = slow
        .ranks
        .iter()
        .map(|&rank| RankCall {
            state: CallState::Returned,
            waited_ms: Some(now.as_millis() as u64),
            op: slow.call.op.name().map(str::to_owned),
            numel: slow.call.numel,
            place: slow.call.place.as_deref().cloned(),
            ..no_call(rank)
        })
        .collect();
    let what = what(slow);
    let times = slow.now.as_secs_f64() / slow.before.as_secs_f64().max(1e-6);
    draft.summary = format!(
        "{what} takes about {} although no rank is late, {} times as long as before: communication is \
         slow",
        words::short_time(now),
        if times < 10.0 { "several" } else { "many" },
    );
    let (since, now, before) = (
        words::clock(slow.since),
        words::short_time(now),
        words::short_time(about_so_long(slow.before)),
    );
    let takes = match slow.buckets {
        Some(_) => format!(
            "Since {since} at least DDP waits about {now} for them after all ranks have sent the last \
             one and have nothing left to compute; before, it was {before}."
        ),
        None => format!(
            "Since {since} at least it takes about {now} after the last rank has entered it; before, \
             it took {before}."
        ),
    };
    let share = percent(slow.share);
    draft
        .why
        .push(format!("{takes} About {share} of the time is lost."));
    draft.why.push(format!(
        "The hosts are not the cause: threads of the ranks were kept from running for {} of the time, \
         and what ranks do between their calls takes as long as before.",
        percent(slow.kept),
    ));
    if slow.others > 0 {
        draft
            .why
            .push("Other collectives have become slow as well.".into());
    }
    draft.next = vec![
        "Look at the network between these hosts: speed of the links (ethtool), errors and drops (ip \
         -s link, nstat), other traffic (sar -n DEV 1)."
            .into(),
    ];
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

#[cfg(test)]
mod tests {
    use super::ABOUT;
    use crate::diagnosis::testing::{holds, shows};

    /// Steps of 0.1 s with a call that takes 10 ms, then steps of `every` seconds with a slow call.
    fn slows(host: &str, every: f64, at: f64, done: f64) -> String {
        format!(
            r#"
            world = 2
            events = """
            0.9 * host ran=500 queued=0 threads=0 stolen=0
            loop 1-40 from 1.0 every 0.1
            0.00 *   step $
            0.05 *   all_reduce f32[1048576] sum @train.py:9
            0.06 *   done
            end
            5.2 * host {host}
            loop 41-74 from 5.2 every {every}
            0.00 *   step $
            {at} *   all_reduce f32[1048576] sum @train.py:9
            {done} * done
            end
            """
            look-on = 1
            "#
        )
    }

    const IDLE: &str = "ran=200 queued=0 threads=50 stolen=0";

    #[test]
    fn example_matches_output() {
        shows(&ABOUT, &slows(IDLE, 0.3, 0.05, 0.26));
    }

    #[test]
    fn much_slower_collective_is_reported() {
        holds(&format!(
            r#"{}
            silent-until = 11.0
            verdict = "slow"
            [[expect]]
            code = "DD604"
            severity = "warning"
            effect = "slows"
            confidence = "supported"
            root = []
            victims = [0, 1]
            op = "all_reduce"
            lines = {{ 0 = "train.py:9" }}
            summary-has = "all_reduce of 4.0 MiB takes about 200 ms"
            why-has = "before, it took 10 ms"
            "#,
            slows(IDLE, 0.3, 0.05, 0.26)
        ));
    }

    /// The same with two buckets of DDP, of which the first is sent during the backward.
    fn buckets_slow(every: f64, at: f64, wait: f64, more: &str) -> String {
        let over = at + wait;
        let first = at - 0.02;
        format!(
            r#"
            world = 2
            events = """
            0.9 * host ran=500 queued=0 threads=0 stolen=0
            loop 1-40 from 1.0 every 0.1
            0.00 *   step $
            0.03 *   all_reduce f32[262144] sum hidden @train.py:9
            0.05 *   all_reduce f32[524288] sum hidden @train.py:9
            0.06 *   buckets 0.01
            end
            5.2 * host {IDLE}
            loop 41-74 from 5.2 every {every}
            0.00 *   step $
            {first} * all_reduce f32[262144] sum hidden @train.py:9
            {at} *   all_reduce f32[524288] sum hidden @train.py:9
            {more}
            {over:.2} * buckets {wait}
            end
            """
            look-on = 1
            "#
        )
    }

    #[test]
    fn much_slower_buckets_are_reported_together() {
        holds(&format!(
            r#"{}
            silent-until = 11.0
            verdict = "slow"
            [[expect]]
            code = "DD604"
            severity = "warning"
            confidence = "supported"
            root = []
            victims = [0, 1]
            lines = {{ 0 = "train.py:9" }}
            summary-has = "averaging gradients (2 buckets of DDP's, 3.0 MiB) takes about 200 ms"
            why-has = "before, it was 10 ms"
            "#,
            buckets_slow(0.3, 0.05, 0.2, "")
        ));
    }

    #[test]
    fn slow_buckets_on_a_busy_host_are_ignored() {
        let slow = buckets_slow(0.3, 0.05, 0.2, "");
        let busy = slow.replace("threads=50", "threads=600");
        assert_ne!(slow, busy);
        holds(&busy);
    }

    #[test]
    fn computation_after_the_last_bucket_is_ignored() {
        // Both ranks begin to wait long after they have sent their last bucket.
        let soon = buckets_slow(0.3, 0.05, 0.01, "");
        let late = soon.replace(
            "0.06 * buckets 0.01\n            end\n            \"",
            "0.26 * buckets 0.01\n            end\n            \"",
        );
        assert_ne!(soon, late);
        holds(&late);
    }

    #[test]
    fn changed_number_of_buckets_is_not_compared() {
        let more = "0.05 * all_reduce f32[524288] sum hidden @train.py:9";
        holds(&buckets_slow(0.3, 0.05, 0.2, more));
    }

    #[test]
    fn slow_buckets_on_one_rank_are_ignored() {
        let slow = buckets_slow(0.3, 0.05, 0.2, "");
        let one = slow.replace(
            "0.25 * buckets 0.2",
            "0.06 1 buckets 0.01\n0.25 0 buckets 0.2",
        );
        assert_ne!(slow, one);
        holds(&one);
    }

    #[test]
    fn late_bucket_is_a_straggler() {
        holds(
            r#"
            world = 2
            events = """
            0.9 * host ran=500 queued=0 threads=0 stolen=0
            loop 1-40 from 1.0 every 0.1
            0.00 *   step $
            0.05 *   all_reduce f32[524288] sum hidden @train.py:9
            0.06 *   buckets 0.01
            end
            loop 41-74 from 5.2 every 0.3
            0.00 *   step $
            0.05 0   all_reduce f32[524288] sum hidden @train.py:9
            0.25 1   all_reduce f32[524288] sum hidden @train.py:9
            0.26 0   buckets 0.21
            0.26 1   buckets 0.01
            end
            """
            look-on = 1
            [[expect]]
            code = "DD601"
            root = [1]
            "#,
        );
    }

    #[test]
    fn host_with_runnable_threads_is_busy() {
        holds(&slows(
            "ran=200 queued=0 threads=600 stolen=0",
            0.3,
            0.05,
            0.26,
        ));
    }

    #[test]
    fn host_with_stolen_time_is_busy() {
        holds(&slows(
            "ran=200 queued=0 threads=0 stolen=500",
            0.3,
            0.05,
            0.26,
        ));
    }

    #[test]
    fn host_with_cpu_pressure_is_busy() {
        holds(&slows("ran=200 stolen=0 cpu=700", 0.3, 0.05, 0.26));
    }

    #[test]
    fn host_without_samples_may_be_busy() {
        holds(
            &slows(IDLE, 0.3, 0.05, 0.26)
                .replace(" threads=0 stolen=0", "")
                .replace(" stolen=0", ""),
        );
    }

    #[test]
    fn host_short_of_memory_is_ignored() {
        holds(&slows(
            "ran=200 threads=0 stolen=0 memory=500",
            0.3,
            0.05,
            0.26,
        ));
        holds(&slows(
            "ran=200 threads=0 stolen=0 faults=300",
            0.3,
            0.05,
            0.26,
        ));
    }

    #[test]
    fn uniform_slowdown_is_not_the_network() {
        holds(&slows(IDLE, 0.9, 0.40, 0.70));
    }

    #[test]
    fn slowdown_by_a_factor_of_two_is_ignored() {
        holds(&slows(IDLE, 0.1, 0.05, 0.07));
    }

    #[test]
    fn alternating_durations_are_not_a_slowdown() {
        holds(
            r#"
            world = 2
            events = """
            0.9 * host ran=500 queued=0 threads=0 stolen=0
            loop 1-40 from 1.0 every 0.4
            0.00 *   all_reduce f32[1048576] sum @train.py:9
            0.01 *   done
            0.02 *   all_reduce f32[1048576] sum @train.py:9
            0.35 *   done
            end
            """
            look-on = 1
            "#,
        );
    }

    #[test]
    fn late_rank_is_a_straggler() {
        holds(
            r#"
            world = 2
            events = """
            0.9 * host ran=500 queued=0 threads=0 stolen=0
            loop 1-40 from 1.0 every 0.1
            0.05 *   all_reduce f32[1048576] sum @train.py:9
            0.06 *   done
            end
            loop 41-74 from 5.2 every 0.3
            0.05 0   all_reduce f32[1048576] sum @train.py:9
            0.25 1   all_reduce f32[1048576] sum @train.py:9
            0.26 *   done
            end
            """
            look-on = 1
            [[expect]]
            code = "DD601"
            root = [1]
            "#,
        );
    }
}
