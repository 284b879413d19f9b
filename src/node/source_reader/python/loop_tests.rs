//! Loops, what they run over, and how they end.

use ddp_doctor_proto::GuardForm;

use super::Source;
use super::tests::{counts, guards};

#[test]
fn loops_are_found_with_what_they_run_over() {
    let text = "\
def train(self):
    for step in range(10):
        kept = [it for it in groups if it.std() > 0]
        limit = 4
        for group in kept[:limit]:
            loss = self.loss(group)
            dist.all_reduce(loss)  # here
";
    assert_eq!(
        counts(text),
        [
            "computes other 6 loss = self.loss(group)",
            "repeats input 5 kept[:limit]",
            "computes other 3 kept = [it for it in groups if it.std() > 0]",
        ],
        "a loop over a number runs the same number of times on all ranks, and a constant is equal on all"
    );
    let of_another = "def f():\n    x = g()\ndef h(x):\n    dist.all_reduce(x)  # here\n";
    assert_eq!(counts(of_another), [""; 0]);
}

#[test]
fn end_of_an_input_is_known_by_its_item() {
    let text = |test: &str, exit: &str| {
        format!(
            "while True:\n    item = jobs.get()\n    if {test}:\n        {exit}\n    dist.all_reduce(x)  # here\n"
        )
    };
    for test in ["item is None", "item == END", "not item"] {
        assert_eq!(guards(&text(test, "break")), [format!("leaves input 3 {test}")]);
    }
    for test in ["item is not None", "item.stop", "done is None"] {
        assert!(!guards(&text(test, "break"))[0].contains("input"), "{test}");
    }
    assert_eq!(guards(&text("item is None", "return")), ["returns input 3 item is None"]);
    assert_eq!(guards(&text("item is None", "continue")), ["skips other 3 item is None"]);
}

#[test]
fn clocks_are_followed_to_the_durations_that_are_computed_from_them() {
    let text = "\
start = time.monotonic()
for batch in loader:
    elapsed = time.monotonic() - start
    if elapsed > batch_budget:
        break
    dist.all_reduce(x)  # here
";
    assert_eq!(guards(text), ["leaves clock 4 elapsed > batch_budget"]);
    assert_eq!(guards("if not local:\n    dist.barrier()  # here\n"), ["holds state 1 not local"]);
}

#[test]
fn handler_that_goes_on_with_the_next_iteration_is_found() {
    let text = "\
for batch in loader:
    try:
        loss = model(batch)
    except RuntimeError:
        bad += 1
        continue
    loss.backward()  # here
";
    assert_eq!(guards(text), ["catches other 4 except RuntimeError:"]);
    assert_eq!(guards(&text.replace("continue", "raise")), [""; 0]);
}

#[test]
fn locks_are_known_at_their_header_and_in_its_suite() {
    let text = |at: [&str; 2]| format!("with lock:{}\n    log('half way'){}\n", at[0], at[1]);
    assert_eq!(guards(&text(["", "  # here"])), ["keeps other 1 lock"]);
    assert_eq!(guards(&text(["  # here", ""])), ["keeps other 1 lock"]);
    assert_eq!(guards("with torch.no_grad():\n    f(x)  # here\n"), [""; 0]);
}

#[test]
fn test_of_no_sync_decides_on_backward() {
    let named = "
for batch in data:
    boundary = tokens >= budget
    context = nullcontext() if boundary else model.no_sync()
    with context:
        loss.backward()
";
    let direct = "
for batch in data:
    with model.no_sync() if tokens < budget else nullcontext():
        loss.backward()
";
    for (source, at, line, test, form) in [
        (named, 6, 4, "boundary", GuardForm::Holds),
        (direct, 4, 3, "tokens < budget", GuardForm::Fails),
    ] {
        let guards = Source::parse(source).guards(at);
        let first = guards.iter().find(|it| it.form != GuardForm::Computes).unwrap();
        assert_eq!((first.line, first.test.as_str(), first.form), (line, test, form));
    }
}

#[test]
fn method_without_arguments_decides_on_state() {
    let subject = |parameters: &str| {
        let text = format!(
            "class Actor:\n    def finished({parameters}):\n        return self.done >= target\nwhile not actor.finished():\n    dist.barrier()  # here\n"
        );
        guards(&text)
    };
    assert_eq!(subject("self"), ["holds state 4 not actor.finished()"]);
    assert_eq!(subject("self, target"), ["holds data 4 not actor.finished()"]);
}
