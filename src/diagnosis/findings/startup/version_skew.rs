//! DD305 version-skew: versions of NCCL, CUDA, its driver, PyTorch or ddp-doctor differ between
//! ranks.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::Draft;
use crate::findings::startup::settings::{self, Peers};
use crate::findings::startup::skew;
use crate::situation::Situation;
use crate::words::Ranks;

/// DD305: different versions of libraries or the driver.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    settings::worlds(situation.model).iter().filter_map(|it| draft(situation, it)).collect()
}

fn draft(situation: &Situation<'_>, peers: &Peers<'_>) -> Option<Draft> {
    let versions = peers.versions()?;
    let mut draft = skew::draft(situation, &catalogue::DD305, peers, &versions)?;
    let said = skew::said(&versions, |name, version| format!("{name} {}", version.unwrap_or("?")));
    draft.summary = format!("versions differ between ranks: {said}");
    let differs = |name: &str| versions.sides[0].has.iter().any(|(it, _)| *it == name);
    if differs("NCCL") {
        draft.say(
            "Ranks with different versions of NCCL cannot communicate: since 2.23.4, NCCL refuses to \
             connect them; earlier versions hang or fail later.",
        );
    }
    if differs("PyTorch") {
        draft.say(
            "Versions of PyTorch differ in the calls that DDP and others make, and in their order.",
        );
    }
    draft.advise(format!(
        "Start {} from the same image or environment as the others.",
        match draft.root_confidence {
            Confidence::Suspected => "every rank".to_owned(),
            _ => Ranks(&draft.root).to_string(),
        }
    ));
    Some(draft)
}
