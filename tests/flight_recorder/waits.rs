//! `analyze` on dumps of ranks that wait for each other: which of them is named.

use ddp_doctor_proto::report::{Confidence, Verdict};
use serde_json::{Value, json};

use crate::support::dumps::{Entry, analyze, dump, findings, report};

/// Two groups of the same two ranks.
const PAIR: &[(&str, &str)] = &[("0", "[0, 1]"), ("1", "[0, 1]")];
/// Two groups of the same four ranks.
const FOUR: &[(&str, &str)] = &[("0", "[0, 1, 2, 3]"), ("1", "[0, 1, 2, 3]")];

fn call(group: &str, seq: u64) -> Entry {
    Entry::new("nccl:all_reduce", group, seq)
}

/// A call at a line of the program.
fn at(line: u64, entry: Entry) -> Entry {
    let frame = json!([{ "name": "step", "filename": "/job/train.py", "line": line }]);
    entry.with("frames", frame)
}

#[track_caller]
fn found(dumps: &[Value]) -> Vec<(String, Vec<u32>, Vec<u32>)> {
    let analysis = analyze(dumps);
    let report = report(&analysis);
    let initiating = findings(report).into_iter().map(|(code, _, root)| {
        let finding = report.findings.iter().find(|it| it.ranks.root == root);
        (code, root, finding.unwrap().ranks.victims.clone())
    });
    initiating.collect()
}

fn expect(code: &str, root: &[u32], victims: &[u32]) -> Vec<(String, Vec<u32>, Vec<u32>)> {
    vec![(code.into(), root.to_vec(), victims.to_vec())]
}

#[test]
fn rank_with_one_more_call_than_its_peers_is_named() {
    let goes_on = [call("1", 1), call("0", 1), call("1", 2), call("0", 2).open()];
    let one_more =
        [call("1", 1), call("0", 1), call("1", 2), call("1", 3).open(), call("0", 2).open()];
    let mut dumps = vec![dump(FOUR, &goes_on); 3];
    dumps.push(dump(FOUR, &one_more));
    assert_eq!(found(&dumps), expect("DD111", &[3], &[0, 1, 2]));
    // Of two ranks, either may be at fault.
    let dumps = [dump(PAIR, &goes_on), dump(PAIR, &one_more)];
    assert_eq!(found(&dumps), expect("DD111", &[0, 1], &[]));
}

#[test]
fn rank_without_a_call_of_its_peers_is_named() {
    let goes_on = [call("1", 1), call("0", 1), call("0", 2).open()];
    let waits = [call("1", 1), call("0", 1), call("1", 2).open(), call("0", 2).open()];
    let mut dumps = vec![dump(FOUR, &waits); 3];
    dumps.push(dump(FOUR, &goes_on));
    assert_eq!(found(&dumps), expect("DD111", &[3], &[0, 1, 2]));
}

#[test]
fn stage_that_skips_a_message_on_both_sides_is_named() {
    let groups = &[("0", "[0, 1, 2]")];
    let message = |name: &str, nth| Entry::message(&format!("nccl:{name}"), "0", nth);
    let sync = || call("0", 2).open();
    let dumps = [
        dump(groups, &[message("send 0->1", 1), message("send 0->1", 2).open(), sync()]),
        dump(groups, &[message("recv 1<-0", 1), message("send 1->2", 2), sync()]),
        dump(groups, &[message("recv 2<-1", 1), message("recv 2<-1", 2).open(), sync()]),
    ];
    assert_eq!(found(&dumps), expect("DD112", &[1], &[0, 2]));
}

#[test]
fn rank_between_two_that_contradict_each_other_is_not_named() {
    let groups = &[("0", "[0, 1, 2]"), ("1", "[0, 2]")];
    let message = |name: &str, nth| Entry::message(&format!("nccl:{name}"), "0", nth);
    // Rank 1 waits for a message of rank 2, which waits for rank 0, which waits for rank 1.
    let dumps = [
        dump(groups, &[message("recv 0<-1", 1).open(), call("1", 1).open()]),
        dump(groups, &[message("recv 1<-2", 1).open(), message("send 1->0", 2).open()]),
        dump(groups, &[call("1", 1).open()]),
    ];
    assert_eq!(found(&dumps), expect("DD112", &[1, 2], &[0]));
}

#[test]
fn thread_of_autograd_makes_calls_of_the_same_device() {
    let of_autograd = |entry: Entry| entry.with("thread_id", json!("pt_autograd_0"));
    let of_main = |entry: Entry| entry.with("thread_id", json!("python3"));
    let waits =
        [of_main(call("0", 1)), of_autograd(call("1", 1).open()), of_main(call("0", 2).open())];
    let skips = [of_main(call("0", 1)), of_main(call("0", 2).open())];
    let mut dumps = vec![dump(FOUR, &waits); 3];
    dumps.push(dump(FOUR, &skips));
    assert_eq!(found(&dumps), expect("DD111", &[3], &[0, 1, 2]));
}

#[test]
fn ranks_that_wait_for_two_at_odds_are_not_named() {
    let groups = &[("0", "[0, 1, 2, 3]"), ("1", "[0, 1]"), ("2", "[2, 3]")];
    // Ranks 2 and 3 are at odds in the same way as ranks 0 and 1, which close the smallest cycle.
    let first = |own: &str| dump(groups, &[call("0", 1), call(own, 1).open()]);
    let second = || dump(groups, &[call("0", 1), call("0", 2).open()]);
    let dumps = [first("1"), second(), first("2"), second()];
    let found = found(&dumps);
    assert_eq!(found[0].0, "DD111");
    assert_eq!(found[0].1.len(), 2, "{found:?}");
}

#[test]
fn lone_rank_in_a_call_is_named_if_the_others_stopped_at_one() {
    let idle = [at(40, call("0", 1)), at(47, call("0", 2))];
    let lone = [at(40, call("0", 1)), at(47, call("0", 2)), at(55, call("0", 3)).open()];
    let mut dumps = vec![dump(FOUR, &idle); 3];
    dumps.insert(2, dump(FOUR, &lone));
    assert_eq!(found(&dumps), expect("DD101", &[2], &[]));
    // The others have stopped after different calls.
    let groups = &[FOUR[0], ("2", "[0, 1]")];
    let further = [idle[0].clone(), idle[1].clone(), at(50, call("2", 1))];
    let dumps =
        [dump(groups, &further), dump(groups, &further), dump(FOUR, &lone), dump(FOUR, &idle)];
    assert_eq!(found(&dumps), expect("DD101", &[0, 1, 3], &[2]));
    // As many ranks wait as are missing.
    let dumps = [dump(PAIR, &idle), dump(PAIR, &lone)];
    assert_eq!(found(&dumps), expect("DD101", &[0], &[1]));
}

#[test]
fn call_that_may_be_queued_behind_another_is_not_stuck_inside() {
    let groups = |shard, replicas| [(["1", "2"][shard], ["[0, 1]", "[2, 3]"][shard]), replicas];
    let rank = |shard: usize, replicas: (&'static str, &'static str), gradients: Entry| {
        let name = ["1", "2"][shard];
        let gather = |seq| call(name, seq);
        dump(&groups(shard, replicas), &[gather(1), gradients, gather(2), gather(3).open()])
    };
    let (even, odd) = (("3", "[0, 2]"), ("4", "[1, 3]"));
    let half = |entry: Entry| {
        entry.with("input_dtypes", json!(["Half"])).with("output_dtypes", json!(["Half"]))
    };
    let mut dumps = [
        rank(0, even, half(call("3", 1)).open()),
        rank(0, odd, call("4", 1)),
        rank(1, even, call("3", 1).open()),
        rank(1, odd, call("4", 1)),
    ];
    let [(code, root, _)] = &found(&dumps)[..] else {
        panic!("{:?}", found(&dumps));
    };
    assert_eq!((&code[..], &root[..]), ("DD105", &[0, 2][..]));
    // The dumps record that the call has started: nothing is queued.
    for dump in &mut dumps {
        dump["entries"][3]["state"] = json!("started");
    }
    let codes = found(&dumps).into_iter().map(|(code, ..)| code);
    assert_eq!(codes.collect::<Vec<_>>(), ["DD105", "DD116", "DD116"]);
}

#[test]
fn dtypes_that_differ_block_ranks_whose_call_is_incomplete() {
    let groups = &[("0", "[0, 1, 2]")];
    let dtype = |entry: Entry, name: &str| {
        entry.with("input_dtypes", json!([name])).with("output_dtypes", json!([name]))
    };
    let rank = |name, is_open: bool| {
        let own = dtype(call("0", 1), name);
        dump(groups, &[if is_open { own.open() } else { own }])
    };
    let open = [rank("Float", true), rank("Half", true), rank("Float", true)];
    assert_eq!(found(&open), expect("DD105", &[1], &[0, 2]));
    assert_eq!(report(&analyze(&open)).verdict, Verdict::Hang);
    let done = [rank("Float", false), rank("Half", false), rank("Float", false)];
    assert_eq!(report(&analyze(&done)).verdict, Verdict::Wrong);
}

#[test]
fn sizes_of_an_all_to_all_that_may_differ_explain_no_wait() {
    let world = &[("0", "[0, 1, 2]"), ("1", "[0, 1]")];
    let exchange = |inputs: u64, outputs: u64| {
        let entry = Entry::new("nccl:all_to_all", "0", 1).open();
        entry.sizes(json!([[inputs]]), json!([[outputs]]))
    };
    // Rank 2 has no dump.
    let dumps = [
        dump(world, &[exchange(30, 40), call("1", 1).open()]),
        dump(world, &[exchange(50, 40), call("1", 1).open()]),
    ];
    let codes = found(&dumps).into_iter().map(|(code, root, _)| (code, root));
    assert_eq!(codes.collect::<Vec<_>>(), [("DD901".to_owned(), vec![2])]);
}

#[test]
fn sizes_of_an_all_to_all_are_compared_in_total() {
    let world = &[("0", "[0, 1, 2]")];
    let rank = |inputs: u64| {
        let entry = Entry::new("nccl:all_to_all", "0", 1).open();
        dump(world, &[entry.sizes(json!([[inputs, 8]]), json!([[30, 8]]))])
    };
    let dumps = [rank(30), rank(36), rank(30)];
    let analysis = analyze(&dumps);
    let expected = ("DD108".to_owned(), "supported".to_owned(), Vec::new());
    assert_eq!(findings(report(&analysis)), [expected]);
    assert_eq!(report(&analysis).findings[0].ranks.victims, [0, 1, 2]);
    // Sizes that fit in total may be right.
    let dumps = [rank(30), rank(36), rank(24)];
    assert_eq!(found(&dumps), expect("DD116", &[], &[0, 1, 2]));
}

/// An `all_to_all` of these many elements at a line of the program.
fn exchange(line: u64, seq: u64, dtype: &str, [sent, expected]: [u64; 2]) -> Entry {
    let entry = Entry::new("nccl:all_to_all", "0", seq).sizes(json!([[sent]]), json!([[expected]]));
    let dtypes = json!([dtype]);
    at(line, entry.with("input_dtypes", dtypes.clone()).with("output_dtypes", dtypes))
}

#[test]
fn all_to_all_that_a_rank_leaves_out_leads_those_after_it() {
    let rank = |there: [u64; 2], back: [u64; 2]| {
        dump(
            FOUR,
            &[
                exchange(37, 1, "Long", [4, 4]),
                exchange(38, 2, "BFloat16", there).open(),
                exchange(52, 3, "BFloat16", back).open(),
            ],
        )
    };
    let skips = dump(
        FOUR,
        &[
            exchange(37, 1, "Long", [4, 4]),
            exchange(52, 2, "BFloat16", [100, 90]).open(),
            exchange(37, 3, "Long", [4, 4]).open(),
        ],
    );
    let dumps =
        [rank([90, 80], [80, 90]), rank([90, 110], [110, 90]), skips, rank([90, 120], [120, 90])];
    let analysis = analyze(&dumps);
    let report = report(&analysis);
    assert_eq!(report.verdict, Verdict::Hang);
    let places = report.findings.iter().map(|it| (&*it.code, it.seq, &it.caused_by[..]));
    assert_eq!(
        places.collect::<Vec<_>>(),
        [("DD108", Some(2), &[][..]), ("DD108", Some(3), &[0][..])]
    );
    let lead = &report.findings[0];
    assert_eq!(lead.ranks.root, [2]);
    assert_eq!(lead.ranks.victims, [0, 1, 3]);
    assert_eq!(lead.ranks.root_confidence, Confidence::Suspected);
    assert!(
        lead.next[0].contains("Check the conditions and loops around the two lines"),
        "{lead:?}"
    );
}

#[test]
fn rank_that_leaves_out_an_all_to_all_is_known_from_the_call_after_it() {
    let rank = |sizes, last: Entry| {
        let first = Entry::new("nccl:all_to_all", "0", 1).open();
        let [sent, expected]: [u64; 2] = sizes;
        let first = first.sizes(json!([[sent]]), json!([[expected]]));
        dump(FOUR, &[first, last.open()])
    };
    let goes_on = |sizes| rank(sizes, call("0", 2));
    let skips = |sizes| rank(sizes, Entry::new("nccl:broadcast", "0", 2));
    let dumps = [goes_on([40, 30]), skips([50, 30]), goes_on([30, 30]), goes_on([30, 30])];
    assert_eq!(found(&dumps), expect("DD108", &[1], &[0, 2, 3]));
    // Two of them differ from two.
    let dumps = [goes_on([40, 30]), skips([50, 30]), skips([30, 30]), goes_on([30, 30])];
    assert_eq!(found(&dumps), expect("DD108", &[], &[0, 1, 2, 3]));
}

#[test]
fn sizes_of_an_all_to_all_precede_its_dtypes() {
    let rank = |dtype, sizes| dump(FOUR, &[exchange(37, 1, dtype, sizes).open()]);
    let long = || rank("Long", [4, 4]);
    let dumps = [long(), rank("BFloat16", [400, 300]), long(), long()];
    assert_eq!(found(&dumps), expect("DD108", &[1], &[0, 2, 3]));
    // Sizes that fit in total.
    let dumps = [long(), rank("BFloat16", [400, 400]), long(), long()];
    assert_eq!(found(&dumps), expect("DD105", &[1], &[0, 2, 3]));
}

#[test]
fn rank_at_a_line_that_never_met_that_of_the_others_is_suspected() {
    let broadcast = |seq: u64, line: u64| at(line, Entry::new("nccl:broadcast", "0", seq));
    let rank = |lines: [u64; 5]| {
        let mut entries: Vec<Entry> =
            (1..).zip(lines).map(|(seq, line)| broadcast(seq, line)).collect();
        entries[4] = entries[4].clone().open();
        dump(FOUR, &entries)
    };
    // Dumps do not show which rank sends. Rank 2 leaves out the call of line 10.
    let goes_on = || rank([10, 12, 10, 12, 10]);
    let dumps = [goes_on(), goes_on(), rank([10, 12, 10, 12, 12]), goes_on()];
    assert_eq!(found(&dumps), expect("DD116", &[2], &[0, 1, 3]));
    // These lines always meet.
    let dumps = [goes_on(), goes_on(), rank([20, 22, 20, 22, 20]), goes_on()];
    assert_eq!(found(&dumps), expect("DD116", &[], &[0, 1, 2, 3]));
    // They have not been reached before.
    let dumps = [
        rank([10, 12, 10, 12, 14]),
        rank([10, 12, 10, 12, 14]),
        rank([10, 12, 10, 12, 16]),
        rank([10, 12, 10, 12, 14]),
    ];
    assert_eq!(found(&dumps), expect("DD116", &[], &[0, 1, 2, 3]));
    // Two ranks disagree with two.
    let skips = || rank([10, 12, 10, 12, 12]);
    let dumps = [goes_on(), skips(), skips(), goes_on()];
    assert_eq!(found(&dumps), expect("DD116", &[], &[0, 1, 2, 3]));
}

/// The dump of a rank whose ring has lost its first calls that are not complete, and its counters: calls
/// that were made and completed, by group.
fn overrun(entries: &[Entry], counters: &[(&str, [u64; 2])]) -> Value {
    let mut dump = dump(FOUR, entries);
    let entries = dump["entries"].as_array_mut().unwrap();
    for (entry, record) in entries.iter_mut().zip(7..) {
        entry["record_id"] = record.into();
    }
    for (group, [made, completed]) in counters {
        dump["pg_status"][group] = json!({
            "last_enqueued_collective": made,
            "last_completed_collective": completed,
        });
    }
    dump
}

#[test]
fn rank_whose_counters_alone_show_its_wait_is_named() {
    // Rank 3 has left out a call of the second group.
    let waits = || dump(FOUR, &[call("0", 1), call("0", 2), call("1", 2).open()]);
    let goes_on = |last: [u64; 2]| {
        let entries = [call("0", 5).open(), call("1", 2).open(), call("0", 6).open()];
        overrun(&entries, &[("0", [6, 2]), ("1", [2, 1]), ("2", last)])
    };
    let dumps = [waits(), waits(), waits(), goes_on([3, 3])];
    assert_eq!(found(&dumps), expect("DD101", &[3], &[0, 1, 2]));
    let analysis = analyze(&dumps);
    let waiting = report(&analysis).ranks[3].waiting_in.as_ref().unwrap();
    assert_eq!((&*waiting.group, waiting.seq), ("0", Some(3)));
    // It may wait in a call of a group that none of its entries is of.
    let dumps = [waits(), waits(), waits(), goes_on([4, 3])];
    assert_eq!(report(&analyze(&dumps)).verdict, Verdict::Insufficient);
    // The others have left out a call of the first group.
    let dumps = [waits(), goes_on([3, 3]), goes_on([3, 3]), goes_on([3, 3])];
    assert_eq!(report(&analyze(&dumps)).verdict, Verdict::Insufficient);
}

#[test]
fn rank_whose_counters_show_that_it_waits_is_no_culprit() {
    // All wait for rank 2. The ring of rank 3 has lost its call.
    let waits = || dump(FOUR, &[call("0", 1), call("0", 2).open(), call("1", 1).open()]);
    let entries = [call("1", 1).open(), call("1", 2).open(), call("0", 3).open()];
    let lost = overrun(&entries, &[("0", [3, 1]), ("1", [2, 0])]);
    let dumps = [waits(), waits(), dump(FOUR, &[call("0", 1)]), lost];
    assert_eq!(found(&dumps), expect("DD101", &[2], &[0, 1, 3]));
    // Rank 3 is ahead of all: it waits in a call that no other rank has made.
    let entries = [call("1", 4).open(), call("0", 2).open()];
    let ahead = || overrun(&entries, &[("0", [2, 1]), ("1", [4, 0])]);
    let waits = || dump(FOUR, &[call("0", 1), call("0", 2).open()]);
    let dumps = [waits(), waits(), dump(FOUR, &[call("0", 1)]), ahead()];
    assert_eq!(found(&dumps), expect("DD101", &[2], &[0, 1, 3]));
    // It waits for rank 2 in another group, and neither has reached the call that the others wait in.
    let groups = &[("0", "[0, 1, 2, 3]"), ("1", "[2, 3]")];
    let behind = dump(groups, &[call("0", 1), call("1", 1)]);
    let entries = [call("1", 4).open(), call("1", 5).open()];
    let mut lost = overrun(&entries, &[("1", [5, 1])]);
    lost["pg_config"]["1"]["ranks"] = "[2, 3]".into();
    let waits = || dump(&groups[..1], &[call("0", 1), call("0", 2).open()]);
    let dumps = [waits(), waits(), behind, lost];
    assert_eq!(found(&dumps), expect("DD101", &[2], &[0, 1, 3]));
    // The rings of all ranks that wait have lost it.
    let lost = || {
        let entries = [call("0", 5).open(), call("0", 6).open()];
        overrun(&entries, &[("0", [6, 2])])
    };
    let idle = dump(FOUR, &[call("0", 1), call("0", 2)]);
    let dumps = [lost(), lost(), idle, lost()];
    assert_eq!(found(&dumps), expect("DD101", &[2], &[0, 1, 3]));
}

#[test]
fn device_that_has_not_started_a_call_is_named() {
    let started = || call("0", 2).open().with("state", "started");
    let rank = |last: Entry, starts: i64| {
        let mut dump = dump(FOUR, &[call("0", 1), last]);
        dump["pg_status"] = json!({"0": {
            "last_enqueued_collective": 2,
            "last_started_collective": starts,
            "last_completed_collective": 1,
        }});
        dump
    };
    let mut dumps = vec![rank(started(), 2); 4];
    dumps[2] = rank(call("0", 2).open(), 1);
    assert_eq!(found(&dumps), expect("DD116", &[2], &[0, 1, 3]));
    // The dump of rank 2 does not record starts.
    dumps[2] = rank(call("0", 2).open(), -1);
    assert_eq!(found(&dumps), expect("DD116", &[], &[0, 1, 2, 3]));
    // Most ranks have not started it.
    let dumps = [1, 1, 1, 2].map(|starts| match starts {
        1 => rank(call("0", 2).open(), 1),
        _ => rank(started(), 2),
    });
    assert_eq!(found(&dumps), expect("DD116", &[], &[0, 1, 2, 3]));
}

#[test]
fn message_of_both_ranks_that_does_not_arrive_is_stuck_inside() {
    let groups = &[("0", "[0, 1]")];
    let message = |name: &str, nth| Entry::message(&format!("nccl:{name}"), "0", nth);
    let sender = [message("send 0->1", 1), message("send 0->1", 2).open(), call("0", 2).open()];
    let receiver = [message("recv 1<-0", 1), message("recv 1<-0", 2).open(), call("0", 2).open()];
    let mut dumps = [dump(groups, &sender), dump(groups, &receiver)];
    assert_eq!(found(&dumps), expect("DD116", &[], &[0, 1]));
    let analysis = analyze(&dumps);
    assert_eq!(report(&analysis).verdict, Verdict::Hang);
    let mut waiting = report(&analysis).ranks.iter().map(|it| &it.waiting_in);
    assert!(waiting.all(|it| it.as_ref().is_some_and(|it| it.seq == Some(2))));
    // The device of rank 0 has not started it.
    dumps[1]["entries"][1]["state"] = json!("started");
    for dump in &mut dumps {
        dump["pg_status"] = json!({"0": {"last_started_collective": 1}});
    }
    assert_eq!(found(&dumps), expect("DD116", &[0], &[1]));
    // The message is complete.
    let done = |entries: [Entry; 3]| entries.map(|it| it.with("state", "completed"));
    let dumps = [dump(groups, &done(sender)), dump(groups, &done(receiver))];
    assert_eq!(report(&analyze(&dumps)).verdict, Verdict::Healthy);
}

#[test]
fn dump_older_than_a_completed_call_counts_as_missing() {
    let behind = [call("0", 1), call("0", 2).open()];
    let newer = [call("0", 1), call("0", 2), call("0", 3), call("0", 4).open()];
    let mut dumps = vec![dump(FOUR, &newer); 4];
    // Either it lacks a call that others completed, or an earlier one is not complete.
    let also_made = [&behind[..], &[call("0", 3).open()]].concat();
    for older in [&behind[..], &also_made] {
        dumps[1] = dump(FOUR, older);
        assert_eq!(found(&dumps), expect("DD901", &[1], &[]));
        let analysis = analyze(&dumps);
        assert_eq!(report(&analysis).verdict, Verdict::Insufficient);
        let summary = &report(&analysis).findings[0].summary;
        assert!(
            summary.contains("the dump is older than those of other ranks: all_reduce #3"),
            "{summary}"
        );
    }
    // The culprit is another rank.
    dumps[3] = dump(FOUR, &newer[..3]);
    let named = expect("DD101", &[3], &[0, 2]);
    assert_eq!(found(&dumps)[..1], named);
    // A rank may complete a broadcast before another one has made it.
    let broadcast = |seq| Entry::new("nccl:broadcast", "0", seq);
    let dumps = [
        dump(FOUR, &[call("0", 1), broadcast(2), call("0", 3).open()]),
        dump(FOUR, &[call("0", 1)]),
        dump(FOUR, &[call("0", 1), broadcast(2), call("0", 3).open()]),
        dump(FOUR, &[call("0", 1), broadcast(2), call("0", 3).open()]),
    ];
    assert_eq!(found(&dumps), expect("DD101", &[1], &[0, 2, 3]));
}

#[test]
fn dumps_that_are_older_than_each_other_are_all_read() {
    let dumps = [
        dump(PAIR, &[call("0", 1), call("0", 2), call("1", 1)]),
        dump(PAIR, &[call("0", 1), call("1", 1), call("1", 2)]),
    ];
    let analysis = analyze(&dumps);
    assert_eq!(report(&analysis).evidence.records, 6);
}

#[test]
fn dump_without_calls_of_a_group_that_completed_some_counts_as_missing() {
    let waits = [call("0", 1), call("0", 2).open()];
    let mut dumps = vec![dump(FOUR, &waits); 4];
    dumps[1] = dump(FOUR, &[]);
    dumps[2] = dump(FOUR, &waits[..1]);
    let found = found(&dumps);
    assert_eq!(found[..1], expect("DD101", &[2], &[0, 3]));
    assert_eq!(found[1..], expect("DD901", &[1], &[]));
}

#[test]
fn group_with_other_members_on_one_rank_is_a_creation_mismatch() {
    let groups = |members| [("0", "[0, 1, 2, 3]"), ("1", members)];
    let with_description = |mut dump: Value| {
        dump["pg_config"]["1"]["desc"] = "debug".into();
        dump
    };
    let three = dump(&groups("[0, 1, 2]"), &[call("0", 1), call("1", 1), call("0", 2).open()]);
    let four = dump(&groups("[0, 1, 2, 3]"), &[call("0", 1), call("1", 1).open()]);
    let mut dumps = vec![with_description(three); 3];
    dumps.push(with_description(four));
    assert_eq!(found(&dumps), expect("DD114", &[3], &[0, 1, 2]));
    let analysis = analyze(&dumps);
    let summary = &report(&analysis).findings[0].summary;
    assert!(
        summary.contains(
            "rank 3 has created it with ranks 0–3, ranks 0–2 have created it with ranks 0–2"
        ),
        "{summary}"
    );
}
