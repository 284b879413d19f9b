//! Jobs whose collectives are told by PyTorch's own recorder, as those of a PyTorch without hooks are.
//!
//! The PyTorch of the tests has hooks, so that it is told not to use them. A real old one is used where
//! `DDP_DOCTOR_OLD_PYTORCH` names an environment with it (2.10 to 2.13).

use std::fs;
use std::path::Path;

use ddp_doctor_proto::report::{Report, Role};

use crate::pytorch::{aborted_at_its_end, jobs, run_in, truth, venv};
use crate::support::process::Finished;

/// Takes calls from the recorder although there are hooks.
const RECORDER: [(&str, &str); 1] = [("DDP_DOCTOR_CAPTURE", "recorder")];

macro_rules! recorded {
    ($($kind:ident { $($name:ident)* })*) => {
        $(mod $kind {
            $(#[test]
            fn $name() {
                let Some(venv) = super::venv() else { return };
                let name = concat!(stringify!($kind), "/", stringify!($name), ".py");
                super::check(venv, name, &super::RECORDER);
            })*
        })*

        /// Jobs that are tested.
        const TESTED: &[&str] = &[$($(concat!(stringify!($kind), "/", stringify!($name), ".py"),)*)*];
    };
}

recorded! {
    faulty { op_mismatch two_groups_in_opposite_order uneven_then_exit }
    healthy { asynchronous_groups_in_opposite_order uneven_then_exit }
}

#[test]
fn jobs_of_a_real_old_pytorch() {
    let Some(venv) = std::env::var_os("DDP_DOCTOR_OLD_PYTORCH") else {
        eprintln!("skipped: DDP_DOCTOR_OLD_PYTORCH names no environment with PyTorch 2.10 to 2.13");
        return;
    };
    for name in TESTED {
        check(Path::new(&venv), name, &[]);
    }
}

/// The program's finding and its culprits, or silence. The recorder knows no places in the program.
fn check(venv: &Path, name: &str, environment: &[(&str, &str)]) {
    let program = jobs().join(name);
    let truth = truth(&fs::read_to_string(&program).unwrap(), "# ");
    let (scratch, finished) = (0..3)
        .map(|_| run_in(venv, &program, &truth, environment))
        .find(|(_, finished)| !(truth.healthy && aborted_at_its_end(finished)))
        .unwrap_or_else(|| panic!("{name} aborts on its way out every time"));
    let report = fs::read_to_string(scratch.path().join("report.json"));
    let report = report.unwrap_or_else(|e| panic!("{name}: no report: {e}\n{finished}"));
    let report: Report = serde_json::from_str(&report).unwrap();
    let show = || format!("{name}\n{report:#?}\n{finished}");
    assert_eq!(report.evidence.layers, ["flight-recorder"], "{}", show());
    assert_eq!(report.evidence.records_lost, 0, "{}", show());
    assert_eq!(report.ranks.len(), truth.nproc as usize, "{}", show());
    if truth.healthy {
        assert_eq!(finished.status, Some(0), "{}", show());
        assert_eq!(report.verdict.as_str(), "healthy", "{}", show());
        assert!(report.findings.is_empty(), "{}", show());
        assert_eq!(ours(&finished).len(), 2, "{}", show());
    } else {
        let mut findings = report.findings.iter();
        let finding = findings.find(|it| it.role == Role::Initiating);
        let finding = finding.unwrap_or_else(|| panic!("no finding\n{}", show()));
        let told = (Some(finding.code.to_string()), Some(&finding.ranks.root));
        assert_eq!(
            told,
            (truth.code.clone(), truth.root.as_ref()),
            "{}",
            show()
        );
        for call in finding.per_rank.iter().filter(|call| call.seq.is_some()) {
            assert!(
                call.reduce_op.is_none() && call.root.is_none(),
                "{}",
                show()
            );
        }
    }
    crate::postmortem::is_as_live(&scratch.path().join("run"));
    let left = fs::read_dir(scratch.path().join("run/boxes")).unwrap();
    for entry in left {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.ends_with(".box"), "{name} was left behind");
    }
}

/// Lines that ddp-doctor prints, or that name what is its own.
fn ours(finished: &Finished) -> Vec<&str> {
    let lines = finished.stderr.lines();
    lines.filter(|line| line.contains("ddp-doctor")).collect()
}
