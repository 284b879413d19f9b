//! Tests of the vocabulary.

use super::*;

#[test]
fn names_and_numbers_convert_back_to_the_value() {
    for &op in Op::ALL {
        assert_eq!(Op::from_number(op.number()), op);
        assert_eq!(op.name().and_then(Op::from_name), Some(op));
    }
    for &dtype in DType::ALL {
        assert_eq!(DType::from_number(dtype.number()), dtype);
    }
    assert_eq!(Op::from_number(200), Op::Unspecified);
    assert_eq!(Op::from_name("allreduce"), None);
    assert_eq!(Op::Unspecified.to_string(), "unknown");
}

#[cfg(feature = "messages")]
#[test]
fn numbers_match_the_protocol_messages() {
    fn agree<T>(
        ours: &[(u8, &str)],
        prefix: &str,
        theirs: impl Fn(i32) -> Option<T>,
        name: impl Fn(T) -> &'static str,
    ) {
        for (number, text) in ours {
            let found = theirs(i32::from(*number)).map(&name).unwrap_or_default();
            let wanted = format!("{prefix}_{}", text.to_uppercase().replace([' ', '-'], "_"));
            assert_eq!(found, wanted);
        }
        assert!(theirs(0).is_some());
    }
    macro_rules! check {
        ($ours:ident, $theirs:ident, $prefix:literal) => {
            let all: Vec<_> = $ours::ALL.iter().map(|v| (v.number(), v.name().unwrap())).collect();
            agree(&all, $prefix, |n| crate::v1::$theirs::try_from(n).ok(), |v| v.as_str_name());
        };
    }
    check!(Op, Op, "OP");
    check!(DType, DType, "D_TYPE");
    check!(ReduceOp, ReduceOp, "REDUCE_OP");
    check!(RecordKind, RecordKind, "RECORD_KIND");
    check!(ParameterFact, ParameterFact, "PARAMETER_FACT");
    check!(Spending, Spending, "SPENDING");
    check!(ProcessState, ProcessState, "PROCESS_STATE");
    check!(NoteKind, NoteKind, "NOTE_KIND");
    check!(GuardSubject, GuardSubject, "GUARD_SUBJECT");
    check!(GuardForm, GuardForm, "GUARD_FORM");
    check!(BlockKind, BlockKind, "BLOCK_KIND");
    check!(GpuSlowdown, GpuSlowdown, "GPU_SLOWDOWN");
    check!(PortKind, PortKind, "PORT_KIND");
    for &kind in ExceptionKind::ALL {
        assert!(crate::v1::ExceptionKind::try_from(i32::from(kind.number())).is_ok());
    }
}
