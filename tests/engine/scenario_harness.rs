//! Tests of the scenario harness: a scenario with a wrong expectation must fail with a message about
//! the difference.

use crate::support::scenario::Scenario;

const EARLY_EXIT: &str = r#"
about = "rank 1 ends while rank 0 waits"
world = 2
events = """
1.0 0 all_reduce f32[8] sum @train.py:9
2.0 1 exits 0
"""
"#;

#[track_caller]
fn fails(scenario: &str, because: &str) {
    let failure = Scenario::parse(scenario).and_then(|scenario| scenario.check()).unwrap_err();
    assert!(failure.contains(because), "failed for another reason: {failure}");
}

#[test]
fn unexpected_finding_fails() {
    fails(EARLY_EXIT, "DD102 was not expected");
}

#[test]
fn unmet_expectation_fails() {
    let with = |expect: &str| format!("{EARLY_EXIT}\n[[expect]]\n{expect}");
    fails(&with("code = \"DD103\""), "no DD103 was found");
    fails(&with("code = \"DD102\"\nroot = [0]"), "root is [1], not [0]");
    fails(&with("code = \"DD102\"\nvictims = [1]"), "victims are [0], not [1]");
    fails(&with("code = \"DD102\"\nseq = 7"), "seq is Some(1), not Some(7)");
    fails(&with("code = \"DD102\"\ndetected = 1.0"), "detected at 2 s, not 1 s");
    fails(&with("code = \"DD102\"\nconfidence = \"suspected\""), "confidence is proved");
    fails(
        &with("code = \"DD102\"\nlines = { 0 = \"train.py:10\" }"),
        "line of rank 0 is train.py:9",
    );
    fails(&with("code = \"DD102\"\nstates = { 0 = \"returned\" }"), "state of rank 0 is waiting");
    let met = with("code = \"DD102\"\nroot = [1]\ndetected = 2.0\nlines = { 0 = \"train.py:9\" }");
    Scenario::parse(&met).unwrap().check().unwrap();
}

#[test]
fn example_without_its_finding_fails() {
    let example = format!("example = \"DD103\"\n{EARLY_EXIT}\n[[expect]]\ncode = \"DD102\"");
    fails(&example, "no DD103 was found");
}

#[test]
fn finding_during_the_silent_period_fails() {
    let early = format!("silent-until = 3.0\n{EARLY_EXIT}\n[[expect]]\ncode = \"DD102\"");
    fails(&early, "a finding appeared at 2 s, before 3 s");
}

#[test]
fn wrong_verdict_fails() {
    let wrong = format!("verdict = \"crash\"\n{EARLY_EXIT}\n[[expect]]\ncode = \"DD102\"");
    fails(&wrong, "verdict hang, not crash");
}

#[test]
fn unreadable_scenario_fails_with_the_reason() {
    let scenario =
        |events: &str| format!("about = \"wrong in some way\"\nworld = 2\nevents = '{events}'");
    fails(&scenario("1.0 0 all_reduse"), "unknown event \"all_reduse\"");
    fails(&scenario("1.0 2 barrier"), "rank 2 is not in a world of 2");
    fails(&scenario("1.0 0 barrier sideways"), "unknown word \"sideways\"");
    fails(&scenario("1.0 0 barrier/sub"), "not in a group \"sub\"");
    fails(&scenario("1.0 0 done h"), "no call is labeled \"h\"");
    fails(&scenario("soon 0 barrier"), "no time");
    fails(&scenario("1.0 0 raises uncaught \"oops"), "a quote is open");
    fails(&format!("{}\nworlds = 3", scenario("")), "unknown field");
    let backwards = "about = \"wrong in some way\"\nworld = 2\nevents = \"\"\"\n2.0 0 barrier\n1.0 1 barrier\n\"\"\"";
    fails(backwards, "time runs backwards");
}
