//! Lines that are reached in the order in which something completes.

use ddp_doctor_proto::GuardForm;

use super::Source;

/// What completes where the line marked `# here` is reached.
fn completes(text: &str) -> Vec<String> {
    let line = text.lines().position(|line| line.contains("# here")).unwrap() as u32 + 1;
    let guards = Source::parse(text).guards(line).into_iter();
    let completes = guards.filter(|it| it.form == GuardForm::Completes);
    completes.map(|it| format!("{} {}", it.line, it.test)).collect()
}

#[test]
fn loops_over_what_is_ready_are_found() {
    let cases = [
        (
            "for done in asyncio.as_completed(tasks):\n    x = await done\n    dist.all_reduce(x)  # here\n",
            "1 asyncio.as_completed(tasks)",
        ),
        (
            "for job in as_completed(jobs):\n    dist.all_reduce(job.result())  # here\n",
            "1 as_completed(jobs)",
        ),
        (
            "for x in pool.imap_unordered(load, names):\n    dist.all_reduce(x)  # here\n",
            "1 pool.imap_unordered(load, names)",
        ),
        (
            "\
while pending:
    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        dist.all_reduce(task.result())  # here
",
            "2 asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)",
        ),
        (
            "\
ready, refs = ray.wait(refs)
x = ray.get(ready[0])
dist.all_reduce(x)  # here
",
            "1 ray.wait(refs)",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(completes(text), [expected], "{text}");
    }
}

#[test]
fn functions_that_run_beside_each_other_are_found() {
    let body = "    x = await fetch(name)\n    dist.all_reduce(x)  # here\n";
    let coroutine = |start: &str| format!("async def reduce(name):\n{body}{start}\n");
    for (start, expected) in [
        (
            "await asyncio.gather(*(reduce(it) for it in names))",
            "4 asyncio.gather(*(reduce(it) for it in names))",
        ),
        ("await asyncio.gather(reduce(a), other(b))", "4 asyncio.gather(reduce(a), other(b))"),
        ("for it in names:\n    group.create_task(reduce(it))", "5 group.create_task(reduce(it))"),
        (
            "one = asyncio.create_task(reduce(a))\ntwo = asyncio.create_task(other(b))",
            "4 asyncio.create_task(reduce(a))",
        ),
    ] {
        assert_eq!(completes(&coroutine(start)), [expected], "{start}");
    }
    let callback = "\
def reduce(task):
    dist.all_reduce(task.result())  # here
for task in tasks:
    task.add_done_callback(reduce)
";
    assert_eq!(completes(callback), ["4 task.add_done_callback(reduce)"]);
    let lambda = "for task in tasks:\n    task.add_done_callback(lambda it: dist.all_reduce(it.result()))  # here\n";
    assert_eq!(completes(lambda).len(), 1);
}

#[test]
fn calls_of_one_order_complete_nothing() {
    for text in [
        // Each is awaited before the next begins.
        "async def reduce(name):\n    x = await fetch(name)\n    dist.all_reduce(x)  # here\nawait reduce(a)\nawait reduce(b)\n",
        // It is the only one.
        "async def train():\n    x = await fetch()\n    dist.all_reduce(x)  # here\ntask = asyncio.create_task(train())\n",
        // Coroutines run in the order in which they were started until they wait.
        "async def reduce(x):\n    dist.all_reduce(x)  # here\n    await store(x)\nawait asyncio.gather(reduce(a), reduce(b))\n",
        "values = await asyncio.gather(fetch(a), fetch(b))\nfor x in values:\n    dist.all_reduce(x)  # here\n",
        "work = dist.all_reduce(x, async_op=True)\nout = work.wait()\ndist.all_reduce(out)  # here\n",
        "def reduce(x):\n    dist.gather(x)  # here\ndist.gather(reduce(f(x)), g(y))\n",
        "thread = threading.Thread(target=train)\ndef train():\n    dist.all_reduce(x)  # here\n",
    ] {
        assert_eq!(completes(text), [""; 0], "{text}");
    }
}
