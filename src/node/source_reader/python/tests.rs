use super::*;

/// The guards of the line marked `# here`, without those of [`counts`], as "form subject line test".
pub(super) fn guards(text: &str) -> Vec<String> {
    of_forms(text, |form| !matches!(form, GuardForm::Repeats | GuardForm::Computes))
}

/// The loops around the line marked `# here`, and the assignments to what it and they use.
pub(super) fn counts(text: &str) -> Vec<String> {
    of_forms(text, |form| matches!(form, GuardForm::Repeats | GuardForm::Computes))
}

fn of_forms(text: &str, is_shown: fn(GuardForm) -> bool) -> Vec<String> {
    let line = text.lines().position(|line| line.contains("# here")).unwrap() as u32 + 1;
    Source::parse(text)
        .guards(line)
        .into_iter()
        .filter(|it| is_shown(it.form))
        .map(|it| format!("{} {} {} {}", it.form, it.subject, it.line, it.test))
        .collect()
}

#[test]
fn enclosing_tests_are_found_innermost_first() {
    let found = guards(
        "\
import torch
for step in range(10):
    if rank == 0:
        while not done():
            dist.barrier()  # here
",
    );
    assert_eq!(found, ["holds other 4 not done()", "holds rank 3 rank == 0"]);
}

#[test]
fn earlier_branches_fail_for_later_ones() {
    let text = |marked: u32| {
        (1..=6).fold(String::new(), |text, i| {
            let line =
                ["if args.rank == 0:", "    a()", "elif rank < 4:", "    b()", "else:", "    c()"]
                    [i as usize - 1];
            let mark = if i == marked { "  # here" } else { "" };
            text + line + mark + "\n"
        })
    };
    assert_eq!(guards(&text(2)), ["holds rank 1 args.rank == 0"]);
    assert_eq!(guards(&text(4)), ["holds rank 3 rank < 4", "fails rank 1 args.rank == 0"]);
    assert_eq!(guards(&text(6)), ["fails rank 3 rank < 4", "fails rank 1 args.rank == 0"]);
}

#[test]
fn line_after_an_exit_is_guarded_by_its_test() {
    let found = guards(
        "\
def train(loader):
    if not is_main_process():
        return
    for x in loader:
        loss = model(x)
        if not torch.isfinite(loss):
            print('skipped')
            continue
        if x.numel() == 0: continue
        if stop.exists():
            break
        loss.backward()  # here
        if loss.item() < best:
            log()
            break
",
    );
    assert_eq!(
        found,
        [
            "leaves state 10 stop.exists()",
            "skips data 9 x.numel() == 0",
            "skips finite 6 not torch.isfinite(loss)",
            "ends state 13 loss.item() < best",
            "returns rank 2 not is_main_process()",
        ]
    );
}

#[test]
fn names_assigned_from_a_rank_are_followed() {
    let found = guards(
        "\
rank, world = dist.get_rank(), dist.get_world_size()
me: int = int(os.environ['RANK'])
boss = me == 0
writer = boss and not dry
device = f'cuda:{rank}'
seed = 1000 + rank
if seed:
    if device:
        if writer:
            save()  # here
",
    );
    assert_eq!(found, ["holds rank 9 writer", "holds other 8 device", "holds state 7 seed"]);
}

#[test]
fn similar_names_do_not_refer_to_a_rank() {
    for test in
        ["lora_rank > 0", "torch.linalg.matrix_rank(m) == 2", "ranking", "frank", "world_size == 1"]
    {
        let found = guards(&format!("if {test}:\n    call()  # here\n"));
        assert!(!found[0].contains("holds rank"), "{found:?}");
    }
}

#[test]
fn what_is_computed_for_a_rank_is_no_rank() {
    let test = |assigned: &str, test: &str| {
        let text = format!("{assigned}\nif {test}:\n    dist.barrier()  # here\n");
        guards(&text)[0].split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(test("part = shard(everything, dist.get_rank())", "part.over"), "other");
    assert_eq!(test("part = load(n if rank == 0 else 1)", "part.over"), "other");
    assert_eq!(test("first = int(os.environ.get('RANK')) == 0", "first"), "rank");
    assert_eq!(test("first = not (dist.get_rank(group) or local)", "first"), "rank");
    assert_eq!(test("def first(r): return r == rank\nmine = first(3)", "mine"), "other");
    assert_eq!(test("", "args.should_save"), "rank");
    assert_eq!(test("", "should_save(signals)"), "other");
}

#[test]
fn test_on_the_line_itself_is_found() {
    assert_eq!(
        guards("dist.barrier() if rank == 0 else None  # here\n"),
        ["holds rank 1 rank == 0"]
    );
    assert_eq!(
        guards("x = None if rank == 0 else dist.barrier()  # here\n"),
        ["fails rank 1 rank == 0"]
    );
    assert_eq!(guards("rank == 0 and dist.barrier()  # here\n"), ["holds rank 1 rank == 0"]);
    assert_eq!(guards("if rank == 0: dist.barrier()  # here\n"), ["holds rank 1 rank == 0"]);
    // A conditional argument does not make the call conditional, but decides on a value.
    assert_eq!(
        guards("dist.all_reduce(a if rank == 0 else b)  # here\n"),
        ["chooses rank 1 rank == 0"]
    );
    assert_eq!(
        guards("t = torch.ones(3)[0 if rank == 0 else 1]; f(t)  # here\n"),
        ["chooses rank 1 rank == 0"]
    );
}

#[test]
fn handlers_are_classified_by_their_effect() {
    let found = guards(
        "\
for x in loader:
    try:
        step(x)  # here
    except RuntimeError:
        print('bad batch')
    except KeyboardInterrupt:
        raise
",
    );
    assert_eq!(found, ["catches other 4 except RuntimeError:"]);
    let found = guards(
        "\
try:
    step(x)  # here
except RuntimeError as error:
    log(error)
    raise
finally:
    close()
",
    );
    assert!(found.is_empty());
    let found = guards(
        "\
try:
    step(x)
except RuntimeError:
    dist.barrier()  # here
",
    );
    assert_eq!(found, ["handles other 3 except RuntimeError:"]);
    let found = guards(
        "\
try:
    step(x)
except RuntimeError:
    dist.barrier()  # here
    raise
",
    );
    assert!(found.is_empty());
}

#[test]
fn handler_that_raises_only_under_a_condition_goes_on() {
    let found = guards(
        "\
for attempt in range(3):
    try:
        step(x)  # here
    except OSError:
        if attempt == 2:
            raise
        time.sleep(1)
",
    );
    assert_eq!(found, ["catches other 4 except OSError:"]);
}

#[test]
fn loop_over_a_dict_is_named_unless_it_is_sorted() {
    let over = |it: &str| {
        guards(&format!("for name, value in {it}:\n    dist.all_reduce(value)  # here\n"))
    };
    assert_eq!(over("self.sums.items()"), ["iterates data 1 self.sums.items()"]);
    assert_eq!(over("os.listdir(folder)"), ["iterates state 1 os.listdir(folder)"]);
    assert!(over("sorted(self.sums.items())").is_empty());
    assert!(over("zip(names, values)").is_empty());
}

#[test]
fn test_of_a_counter_of_iterations_is_no_guard() {
    let test_in_a_loop = |test: &str| {
        guards(&format!(
            "for i, x in enumerate(xs):\n    if {test}:\n        dist.all_reduce(x)  # here\n"
        ))
    };
    for test in ["i % 2 == 0", "i and i % args.log_every == 0", "not i"] {
        assert!(test_in_a_loop(test).is_empty(), "{test}");
    }
    for test in ["i == 3 and rank == 0", "i % len(xs) == 0", "self.i % 2 == 0"] {
        assert_eq!(test_in_a_loop(test).len(), 1, "{test}");
    }
}

#[test]
fn cached_function_is_a_guard() {
    let decorated = |decorator: &str| {
        guards(&format!(
            "@once\n{decorator}\n@torch.no_grad()\ndef f(x):\n    if x:\n        dist.barrier()  # here\n"
        ))
    };
    let holds = "holds other 5 x";
    for name in ["@functools.lru_cache(maxsize=None)", "@cache", "@cached_property"] {
        let caches = format!("caches other 2 {name}");
        assert_eq!(decorated(name), [holds, &caches]);
    }
    assert_eq!(decorated("@timed(cache=False)"), [holds]);
}

#[test]
fn test_on_the_length_of_a_loop_is_found() {
    let found = guards(
        "\
start = 0
if os.path.exists(path):
    start = load(path)
for step in range(start, 6):
    dist.all_reduce(x)  # here
",
    );
    assert_eq!(found, ["bounds state 2 os.path.exists(path)"]);
    let found = guards(
        "\
steps = 8
if rank == 0:
    steps = 9
while done < steps:
    if rank == 1:
        steps = 3
    dist.all_reduce(x)  # here
",
    );
    assert_eq!(
        found,
        ["holds other 4 done < steps", "bounds rank 2 rank == 0"],
        "an assignment within the loop follows its header"
    );
}

#[test]
fn function_that_returns_a_test_has_its_subject() {
    let found = guards(
        "\
class Arguments:
    @property
    def saves(self):
        'Whether this process writes.'
        return self.process_index == 0

    def device(self):
        return f'cuda:{rank}'

    def count(self):
        self.n += 1
        return rank == 0
if args.saves:
    if args.device:
        if args.count():
            dist.barrier()  # here
",
    );
    assert_eq!(
        found,
        ["holds state 15 args.count()", "holds state 14 args.device", "holds rank 13 args.saves"]
    );
}

#[test]
fn constant_test_is_no_guard() {
    let found = guards(
        "\
while True:
    try:
        x = next(batches)
    except StopIteration:
        break
    dist.all_reduce(x)  # here
",
    );
    assert!(found.is_empty(), "{found:?}");
    let found = guards("if __name__ == '__main__':\n    main()  # here\n");
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn exit_within_a_context_is_an_exit() {
    let found = guards(
        "\
def load(path):
    if os.path.exists(path):
        with open(path) as file:
            return json.load(file)
    dist.broadcast(x, 0)  # here
",
    );
    assert_eq!(found, ["returns state 2 os.path.exists(path)"]);
}

#[test]
fn match_case_is_a_test() {
    let found = guards(
        "\
match dist.get_rank():
    case 0:
        dist.barrier()  # here
",
    );
    assert_eq!(found, ["holds rank 2 dist.get_rank() == 0"]);
}

#[test]
fn multi_line_statements_are_one_logical_line() {
    let found = guards(
        "\
'''
if rank == 0:
'''
if (rank == 0 and  # the main one
        step % 10 == 0):
    text = \"\"\"
else:
\"\"\"
    dist.all_reduce(
        tensor,
        op=dist.ReduceOp.SUM,  # here
    )
",
    );
    assert_eq!(found, ["holds rank 4 (rank == 0 and step % 10 == 0)"]);
    let found = guards("if rank == 0 and \\\n   save:\n\tdist.barrier()  # here\n");
    assert_eq!(found, ["holds rank 1 rank == 0 and save"]);
}

#[test]
fn tests_outside_the_function_do_not_count() {
    let found = guards(
        "\
if rank == 0:
    def save():
        dist.barrier()  # here
",
    );
    assert!(found.is_empty());
}

#[test]
fn malformed_files_are_parsed_without_panic() {
    let deep: String = (0..2000).map(|i| format!("{}if rank:\n", " ".repeat(i))).collect();
    for text in [
        "",
        "\u{0}\u{fffd}\n((((((",
        "'''",
        "\"\\",
        "if",
        "if :",
        "else:\n  x()",
        "elif a:\n  x()",
        "case 1:\n  x()",
        "\\\n\\\n",
        "é = 'é' if rank else 'ü'\n",
        deep.as_str(),
    ] {
        let source = Source::parse(text);
        for line in 0..3000 {
            assert!(source.guards(line).len() <= MAX_GUARDS);
        }
    }
}

#[test]
fn tests_that_decide_on_values_are_found() {
    let cases = [
        ("dist.all_reduce(x, op=SUM if rank == 0 else MAX)  # here\n", "chooses rank 1 rank == 0"),
        (
            "\
size = 4
x = torch.ones(256, dtype=float32 if rank == 0 else int32)
dist.all_reduce(x)  # here
",
            "chooses rank 2 rank == 0",
        ),
        (
            "\
for ranks in reversed(groups) if rank == 1 else groups:
    dist.new_group(ranks)  # here
",
            "chooses rank 1 rank == 1",
        ),
        (
            "\
if rank == 1:
    layers.insert(2, Linear(32, 32))
model = DistributedDataParallel(Sequential(*layers))  # here
",
            "chooses rank 1 rank == 1",
        ),
        (
            "\
if rank == 0:
    batch = 30
else:
    batch = 31
dist.all_reduce(torch.ones(batch))  # here
",
            "chooses rank 1 rank == 0",
        ),
        (
            "\
loss = model(batch, not (rank == 1 and step == 3)).sum()
loss.backward()  # here
",
            "chooses rank 1 not (rank == 1 and step == 3)",
        ),
        (
            "\
trainer = Trainer(model, saves=rank == 0)
trainer.fit(3)  # here
",
            "chooses rank 1 rank == 0",
        ),
        (
            "\
model.sync = (batch + 1 if rank == 0 else batch) % 3 == 0
model(inputs)  # here
",
            "chooses rank 1 rank == 0",
        ),
        (
            "\
class Model(Module):
    def __init__(self):
        for name in (['b', 'a'] if dist.get_rank() == 1 else ['a', 'b']):
            self.add_module(name, Linear(4, 4))
model = DistributedDataParallel(Model())  # here
",
            "chooses rank 3 dist.get_rank() == 1",
        ),
        (
            "\
def batch_of(rank):
    if rank == 1:
        return ones(3)
    return ones(4)
dist.all_reduce(batch_of(rank))  # here
",
            "chooses rank 2 rank == 1",
        ),
        (
            "\
class Model:
    def size(self):
        return 3 if rank == 0 else 4
class Trainer:
    def step(self):
        dist.all_reduce(ones(self.size()))  # here
    def size(self):
        return 3 if rank == 1 else 4
",
            "chooses rank 8 rank == 1",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(guards(text), [expected], "{text}");
    }
}

#[test]
fn tests_that_decide_on_nothing_the_line_uses_are_no_choices() {
    for text in [
        "if rank == 0:\n    log = open('log')\ndist.all_reduce(x)  # here\n",
        "y = a if rank == 0 else b\ndist.all_reduce(x)  # here\n",
        "dist.all_reduce([x for x in xs if rank == 0])  # here\n",
        "def f():\n    x = a if rank == 0 else b\ndef g(x):\n    dist.all_reduce(x)  # here\n",
        "dist.all_reduce(x, note='a if rank == 0 else b')  # here\n",
        "x = ones(3)\nif rank == 0:\n    x.fill(2)\n    dist.all_reduce(x)  # here\n",
        "for x in tqdm(xs, disable=rank != 0):\n    dist.all_reduce(x)  # here\n",
        "for x in tqdm(xs) if rank == 0 else xs:\n    dist.all_reduce(x)  # here\n",
        "bar = tqdm.tqdm(xs) if is_main_process() else xs\nfor x in bar:\n    dist.all_reduce(x)  # here\n",
        "class A:\n    def n(self):\n        return 3 if rank == 0 else 4\nclass B:\n    def f(self):\n        dist.all_reduce(ones(self.n()))  # here\n",
        "def f(x):\n    if rank == 0:\n        print(x)\n    return x\ndist.all_reduce(f(x))  # here\n",
        "x = f(note='rank == 0')\ndist.all_reduce(x)  # here\n",
    ] {
        let found = guards(text);
        assert!(found.iter().all(|it| !it.starts_with("chooses")), "{text}: {found:?}");
    }
}

#[test]
fn other_branches_are_known_by_their_lines_and_calls() {
    let others = |text: &str| -> Vec<Option<(u32, u32, bool)>> {
        let line = text.lines().position(|line| line.contains("# here")).unwrap() as u32 + 1;
        let guards = Source::parse(text).guards(line);
        guards.iter().map(|it| it.other.map(|it| (it.first, it.last, it.makes_call))).collect()
    };
    let both = "if rank == 0:\n    dist.broadcast(x, 0)  # here\nelse:\n    x = new()\n    work = dist.broadcast(x, 0)\nx()\n";
    assert_eq!(others(both), [Some((3, 5, true))]);
    assert_eq!(others(&both.replace("work = dist", "work = mydist")), [Some((3, 5, false))]);
    assert_eq!(
        others(&both.replace("dist.broadcast(x, 0)\nx", "dist.broadcast\nx")),
        [Some((3, 5, false))]
    );
    let last = "if a:\n    f()\nelif b:\n    g()\nelse:\n    y = f(1)  # here\n";
    assert_eq!(others(last), [Some((3, 4, false)), Some((1, 2, true))]);
    let middle = "if a:\n    f()\nelif b:\n    f()  # here\nelif c:\n    g()\nelse:\n    h()\n";
    assert_eq!(others(middle), [Some((5, 8, false)), Some((1, 2, true))]);
    assert_eq!(others("if a:\n    f()  # here\nf()\n"), [None]);
    let pair = "def first():\n    if rank != 0:\n        dist.barrier()  # here\n    yield\n    if rank == 0:\n        dist.barrier()\n";
    assert_eq!(others(pair), [Some((5, 6, true))]);
    assert_eq!(others(&pair.replace("rank == 0", "step == 0")), [None]);
    assert_eq!(others(&pair.replace("    yield\n", "def second():\n")), [None]);
    assert_eq!(others("while a:\n    f()  # here\nelse:\n    f()\n"), [None]);
}

#[test]
fn periods_of_steps_decide_nothing() {
    for test in [
        "step % period == 0",
        "self.global_step % self.every",
        "not epoch % 2",
        "(step + 1) % args.save_every == 0",
        "state.step % self.config.every == self.config.offset",
    ] {
        let text = format!("def f(self, step):\n    if {test}:\n        save()  # here\n");
        assert_eq!(guards(&text), [""; 0], "{text}");
    }
    for test in ["step % world == rank", "loss % 2 == 0", "step % period == 0 and found(x)"] {
        let text = format!("def f(self, step):\n    if {test}:\n        save()  # here\n");
        assert_eq!(guards(&text).len(), 1, "{text}");
    }
}

#[test]
fn part_of_a_collection_for_the_rank_is_content() {
    let subject = |test: &str| {
        let text = format!("if {test}:\n    save()  # here\n");
        Source::parse(&text).guards(2)[0].subject
    };
    for test in ["counts[self.rank] == n", "0 < sizes[dist.get_rank()]", "len(parts[rank]) > 3"] {
        assert_eq!(subject(test), GuardSubject::Data, "{test}");
    }
    for test in [
        "roles[rank] == \"trainer\"",
        "os.environ[\"RANK\"] == zero",
        "stages[rank] == 0",
        "counts[rank] == rank",
        "rank in ranks[0]",
    ] {
        assert_eq!(subject(test), GuardSubject::Rank, "{test}");
    }
}
