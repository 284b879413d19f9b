//! Checks of single recordings beyond the truth of their programs.

use std::fs;

use ddp_doctor_proto::RecordKind;
use ddp_doctor_proto::blackbox::flags;
use libtest_mimic::Trial;

use crate::program::Case;
use crate::recording::{records, replay};
use crate::support::report::leading;
use crate::{guarded, schedule};

/// Name of the check, name of its case, and the check.
type Extra = (&'static str, &'static str, fn(&Case));

const EXTRAS: [Extra; 5] = [
    ("lines_of_inlined_functions", "nccl::job::op::faulty", lines_of_inlined_functions),
    ("ranks_in_the_order_of_the_communicator", "nccl::job::missing_of_two::faulty", ranks_in_order),
    ("captured_calls_are_marked", "nccl::job::captured::healthy", captured_calls_are_marked),
    ("operators_come_from_nccl", "layers::job::reduction::faulty", operators_come_from_nccl),
    (
        "nccl_calls_belong_to_c10d_calls",
        "layers::job::missing::healthy",
        nccl_calls_belong_to_c10d_calls,
    ),
];

/// The checks as tests. Panics if a case does not exist.
pub(crate) fn trials(cases: &[std::sync::Arc<Case>]) -> Vec<Trial> {
    let trials = EXTRAS.into_iter().map(|(name, id, check)| {
        let named = cases.iter().find(|case| case.to_string() == id);
        let case = std::sync::Arc::clone(named.unwrap_or_else(|| panic!("there is no case {id}")));
        Trial::test(format!("replay::{name}"), move || {
            let _turn = schedule::replay();
            guarded(|| check(&case))
        })
    });
    trials.collect()
}

/// The calls are in different functions, one of which the compiler may have inlined.
fn lines_of_inlined_functions(case: &Case) {
    let source = fs::read_to_string(&case.program.path).unwrap();
    let line_of = |text| source.lines().position(|it| it.contains(text)).unwrap() as u32 + 1;
    let report = replay(case).report;
    let calls = leading(&report).per_rank.iter();
    let places = calls.map(|call| {
        let place = call.place.as_ref().unwrap();
        assert!(place.file.ends_with("/nccl/job.c"), "{place:?}");
        (place.line, place.function.as_str())
    });
    let common = (line_of("NCCL(ncclAllReduce(in, out, count"), "sum");
    let odd = (line_of("NCCL(ncclReduceScatter(in, out, 64"), "op");
    assert_eq!(places.collect::<Vec<_>>(), [common, odd, common]);
}

/// The keys that the ranks pass to the split put rank 1 first.
fn ranks_in_order(case: &Case) {
    let report = replay(case).report;
    let group = leading(&report).group.as_ref().unwrap();
    assert_eq!(group.ranks, [1, 0]);
}

fn captured_calls_are_marked(case: &Case) {
    let captured = u32::from(flags::CAPTURED | flags::ASYNC);
    let records = records(case);
    let issued = records.iter().filter(|it| it.flags & captured == captured);
    let numbers: Vec<u64> = issued.map(|it| it.seq).collect();
    assert_eq!(numbers, [11; 3]);
}

fn operators_come_from_nccl(case: &Case) {
    let report = replay(case).report;
    let calls = &leading(&report).per_rank;
    let operators: Vec<_> = calls.iter().map(|call| call.reduce_op.as_deref()).collect();
    assert_eq!(operators, [Some("sum"), Some("max"), Some("sum")]);
    assert_eq!(calls[1].shapes, Some(vec![vec![64]]));
}

/// Seven calls of three ranks. The first call of each rank also makes the communicator.
fn nccl_calls_belong_to_c10d_calls(case: &Case) {
    let records = records(case);
    let count = |kind: RecordKind| {
        let number = i32::from(kind.number());
        records.iter().filter(|it| it.kind == number).count()
    };
    assert_eq!(count(RecordKind::LowerCall), 7 * 3);
    assert_eq!(count(RecordKind::Within), 2 * 3);
}
