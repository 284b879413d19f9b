//! A table of the causes in the heads of programs and those that the recordings lead to, with headlines and
//! advice:
//! `DDP_DOCTOR_CAUSES=1 cargo test --workspace --all-features --test truth`.

use ddp_doctor_proto::report::{Confidence, Role};

use crate::program::Case;
use crate::recording;

/// Prints a line for each faulty case that has a finding, how many of the causes that heads state are right, and how
/// many findings have a cause.
pub(crate) fn print(cases: &[Case]) {
    let (mut stated, mut right, mut wrong_supported) = (0, 0, 0);
    let (mut findings, mut given_causes) = (0, 0);
    for case in cases.iter().filter(|it| !it.is_silent()) {
        if recording::staleness(case).is_some() {
            continue;
        }
        let report = recording::replay(case).report;
        // Several initiating findings fail the test of the recording.
        let Some(finding) = report.findings.iter().find(|it| it.role == Role::Initiating) else {
            continue;
        };
        let given = finding.cause.map(|cause| cause.kind.as_str());
        let expected = case.truth.cause.as_deref();
        findings += 1;
        given_causes += u32::from(given.is_some_and(|it| it != "unknown"));
        let is_right = expected.is_none_or(|expected| given == Some(expected));
        let supported = finding.cause.is_some_and(|it| it.confidence == Confidence::Supported);
        if expected.is_some() {
            stated += 1;
            right += u32::from(is_right);
        }
        wrong_supported += u32::from(!is_right && supported);
        println!(
            "{} {case} {}: expected {}, given {}{}",
            if is_right { " " } else { "!" },
            finding.code,
            expected.unwrap_or("-"),
            given.unwrap_or("none"),
            if supported { " (supported)" } else { "" },
        );
        println!("    > {}", finding.title());
        for reason in &finding.why {
            println!("      {reason}");
        }
        for advice in &finding.next {
            println!("      + {advice}");
        }
    }
    println!("{right} of {stated} causes are right; {wrong_supported} wrong ones are supported");
    println!("{given_causes} of {findings} findings have a cause");
}
