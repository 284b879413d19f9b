//! An engine with the rules of somebody else.

use ddp_doctor::diagnosis::findings::{Draft, KeyPlace, Precedence, ReportPolicy, Rule, RuleInput};
use ddp_doctor::diagnosis::situation::Situation;
use ddp_doctor::diagnosis::{Config, Engine};
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Timestamp;

static RULES: [Rule; 1] = [Rule {
    code: &catalogue::DD904,
    precedence: Precedence::Hint,
    policy: ReportPolicy::Always,
    input: RuleInput::Job(without_processes),
}];

/// A finding about a job that has none.
fn without_processes(situation: &Situation<'_>) -> Option<Draft> {
    let mut draft = Draft::new(&catalogue::DD904, KeyPlace::Job, situation.now);
    draft.summary = "the job has no process".into();
    situation.model.processes.is_empty().then_some(draft)
}

#[test]
fn engine_applies_the_rules_that_it_is_given() {
    let summaries = |mut engine: Engine| {
        engine.handle_timeout(Timestamp(1_000_000_000));
        engine.poll_change();
        engine.report().findings.into_iter().map(|it| it.summary).collect::<Vec<_>>()
    };
    assert_eq!(
        summaries(Engine::with_rules(Config::default(), &RULES)),
        ["the job has no process"]
    );
    let own = "the job has no process".to_owned();
    assert!(!summaries(Engine::new(Config::default())).contains(&own));
}
