//! DD306 environment-skew: environment variables that must agree differ between ranks.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Effect, Severity};

use crate::findings::draft::{Draft, Key};
use crate::findings::startup::settings::{self, Peers, Skew};
use crate::findings::startup::{rendezvous_incomplete, skew};
use crate::model::Process;
use crate::situation::Situation;
use crate::words::{Capital, Ranks, number};

/// Variables that make a rank wait for all others inside `init_process_group`.
const WAIT_IN_INIT: [&str; 2] = ["TORCH_DISTRIBUTED_DEBUG", "TORCH_DIST_INIT_BARRIER"];

/// DD306: different values of variables that must agree.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let worlds = settings::worlds(situation.model);
    let drafts = worlds.iter().filter_map(|it| draft(situation, it));
    drafts.collect()
}

fn draft(situation: &Situation<'_>, peers: &Peers<'_>) -> Option<Draft> {
    let variables = peers.variables()?;
    let mut draft = skew::draft(situation, &catalogue::DD306, peers, &variables)?;
    let said = skew::said(&variables, |name, value| match value {
        Some(value) => format!("{name}={value}"),
        None => format!("no {name}"),
    });
    draft.summary = format!("settings that must agree differ between ranks: {said}");
    let names: Vec<&str> = variables.sides[0]
        .has
        .iter()
        .map(|(name, _)| *name)
        .collect();
    for &name in &names {
        draft.why.extend(meaning(name).map(str::to_owned));
    }
    if names.iter().any(|name| name.starts_with("NCCL_")) {
        draft.why.push(
            "NCCL decides on each rank separately how a call is executed. Ranks that decide \
             differently cannot communicate."
                .into(),
        );
    }
    draft.next = vec![format!(
        "Set {} identically on all ranks: in the launch script, not per node, and have the launcher \
         pass {} on.",
        match &names[..] {
            [one] => (*one).to_owned(),
            names => format!("these {} variables", names.len()),
        },
        match names.len() {
            1 => "it",
            _ => "them",
        }
    )];
    let stuck = rendezvous_incomplete::drafts(situation);
    let stuck = stuck
        .iter()
        .find(|it| it.follows.as_ref() == Some(&draft.key));
    if let Some(stuck) = stuck {
        // The difference is the reason why ranks wait.
        draft.effect = Effect::Blocks;
        draft.severity = Severity::Error;
        draft.blocked_at = stuck.blocked_at;
        draft.victims = peers.ranks.keys().copied().collect();
        draft.victims.retain(|rank| !draft.root.contains(rank));
        draft.why.push(format!(
            "{} {} not returned from init_process_group.",
            Capital(Ranks(&stuck.root)),
            number(&stuck.root, "has", "have"),
        ));
    }
    Some(draft)
}

/// Key of the finding that explains ranks which do not return from `init_process_group`: all of
/// them have set a variable of [`WAIT_IN_INIT`], and other ranks have not.
pub(crate) fn keeps_from_joining(
    situation: &Situation<'_>,
    waiting: &[u32],
    one_of_them: &Process,
) -> Option<Key> {
    let worlds = settings::worlds(situation.model);
    let peers = worlds.iter().find(|peers| {
        let mut ranks = peers.ranks.values();
        ranks.any(|other| other.id == one_of_them.id)
    })?;
    let variables = peers.variables()?;
    let explains = |name: &&str| {
        let with = have(&variables, name);
        !with.is_empty() && waiting.iter().all(|rank| with.contains(rank))
    };
    WAIT_IN_INIT.iter().find(|name| explains(name))?;
    Some(Key {
        code: catalogue::DD306.code,
        place: skew::place(situation, one_of_them)?,
    })
}

/// Ranks whose value of the variable has an effect.
fn have(variables: &Skew<'_>, name: &str) -> Vec<u32> {
    let sides = variables.sides.iter();
    let with = sides.filter(|side| {
        let value = side.has.iter().find(|(it, _)| *it == name);
        value.is_some_and(|(_, value)| settings::means_something(name, *value))
    });
    with.flat_map(|side| side.ranks.iter().copied()).collect()
}

/// Consequence of a difference in this variable.
fn meaning(name: &str) -> Option<&'static str> {
    Some(match name {
        "TORCH_DISTRIBUTED_DEBUG" => {
            "With DETAIL, ranks create an additional group when they join the world, in which they \
             compare each call before they make it: they wait there for ranks with another level."
        }
        "TORCH_DIST_INIT_BARRIER" => {
            "With TORCH_DIST_INIT_BARRIER=1 a rank calls a barrier at the end of init_process_group, \
             which the others do not call."
        }
        "TORCH_DIST_USE_NCCL2" => {
            "TORCH_DIST_USE_NCCL2=0 selects another implementation of the NCCL backend, which cannot \
             communicate with the default one."
        }
        _ => return None,
    })
}
