//! Branches that make the other side of a message, and those that end the process.

use super::Source;
use super::tests::guards;

#[test]
fn branch_with_the_other_side_of_a_message_is_its_counterpart() {
    let makes_call = |text: &str| -> Vec<bool> {
        let line = text.lines().position(|line| line.contains("# here")).unwrap() as u32 + 1;
        let guards = Source::parse(text).guards(line);
        guards.iter().filter_map(|it| Some(it.other?.makes_call)).collect()
    };
    let across = "if rank == 1:\n    dist.recv(x, 0)  # here\ndist.all_reduce(x)\nif rank == 0:\n    dist.send(x, 1)\n";
    assert_eq!(makes_call(across), [true]);
    assert_eq!(makes_call(&across.replace("dist.send", "dist.isend")), [true]);
    assert_eq!(makes_call(&across.replace("dist.send", "dist.broadcast")), [false; 0]);
    let beside = "if first:\n    work = dist.isend(x, 1)  # here\nelse:\n    dist.recv(x, 0)\n";
    assert_eq!(makes_call(beside), [true]);
    assert_eq!(makes_call(&beside.replace("dist.recv", "queue.recv")), [false]);
}

#[test]
fn branch_that_ends_the_process_leads_around_later_lines() {
    for end in ["os._exit(0)", "sys.exit(1)", "exit()"] {
        let text = format!(
            "for step in steps:\n    if rank == 1 and late:\n        stamp()\n        {end}\n    dist.all_reduce(x)  # here\n"
        );
        assert_eq!(guards(&text)[0], "leaves rank 2 rank == 1 and late", "{end}");
    }
    let text = "for step in steps:\n    if rank == 1:\n        exit_code(0)\n    dist.all_reduce(x)  # here\n";
    assert!(!guards(text).iter().any(|it| it.contains("leaves")));
}
