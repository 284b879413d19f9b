//! DD306 environment-skew: environment variables that must agree differ between ranks.

use ddp_doctor_proto::catalogue;

use crate::findings::draft::Draft;
use crate::findings::startup::settings::{self, Peers};
use crate::findings::startup::skew;
use crate::situation::Situation;

/// DD306: different values of variables that must agree.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    settings::worlds(situation.model).iter().filter_map(|it| draft(situation, it)).collect()
}

fn draft(situation: &Situation<'_>, peers: &Peers<'_>) -> Option<Draft> {
    let variables = peers.variables()?;
    let mut draft = skew::draft(situation, &catalogue::DD306, peers, &variables)?;
    let said = skew::said(&variables, |name, value| match value {
        Some(value) => format!("{name}={value}"),
        None => format!("no {name}"),
    });
    draft.summary = format!("settings that must agree differ between ranks: {said}");
    let names: Vec<&str> = variables.sides[0].has.iter().map(|(name, _)| *name).collect();
    for &name in &names {
        draft.why.extend(meaning(name).map(str::to_owned));
    }
    if names.iter().any(|name| name.starts_with("NCCL_")) {
        draft.say(
            "NCCL decides on each rank separately how a call is executed. Ranks that decide \
             differently cannot communicate.",
        );
    }
    draft.advise(format!(
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
    ));
    Some(draft)
}

/// Consequence of a difference in this variable.
fn meaning(name: &str) -> Option<&'static str> {
    Some(match name {
        "TORCH_DISTRIBUTED_DEBUG" => {
            "With DETAIL, ranks create an additional group when they join the world, in which they \
             compare each call before they make it: they wait there for ranks with a different level."
        }
        "TORCH_DIST_INIT_BARRIER" => {
            "With TORCH_DIST_INIT_BARRIER=1, a rank calls a barrier at the end of init_process_group \
             that the others do not call."
        }
        "TORCH_DIST_USE_NCCL2" => {
            "TORCH_DIST_USE_NCCL2=0 selects a different implementation of the NCCL backend, which cannot \
             communicate with the default one."
        }
        _ => return None,
    })
}
