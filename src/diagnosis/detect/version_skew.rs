//! DD305 version-skew: versions of NCCL, CUDA, its driver, PyTorch or ddp-doctor differ between
//! ranks.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect};

use super::{About, Detector, Draft, Key, order, skew};
use crate::diagnosis::model::{Exception, Process};
use crate::diagnosis::settings::{self, Peers};
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words::Ranks;

/// Part of NCCL's error message about different versions, since 2.23.4.
const NCCLS_WORDS: &str = "Mismatched NCCL version";

static ABOUT: About = About {
    code: &catalogue::DD305,
    order: order::SETTINGS,
};

/// DD305: different versions of libraries or the driver.
pub(super) struct VersionSkew;

impl Detector for VersionSkew {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let worlds = settings::worlds(situation.model);
        let drafts = worlds.iter().filter_map(|it| draft(situation, it));
        drafts.collect()
    }
}

fn draft(situation: &Situation<'_>, peers: &Peers<'_>) -> Option<Draft> {
    let versions = peers.versions()?;
    let mut draft = skew::draft(situation, &ABOUT, peers, &versions)?;
    let said = skew::said(&versions, |name, version| {
        format!("{name} {}", version.unwrap_or("?"))
    });
    draft.summary = format!("versions differ between ranks: {said}");
    let differs = |name: &str| versions.sides[0].has.iter().any(|(it, _)| *it == name);
    if differs("NCCL") {
        draft.why.push(
            "Ranks with different versions of NCCL cannot communicate: since 2.23.4 it refuses to \
             connect them, before that it hangs or fails later."
                .into(),
        );
    }
    if differs("PyTorch") {
        draft.why.push(
            "Versions of PyTorch differ in the calls that DDP and others make, and in their order."
                .into(),
        );
    }
    draft.next = vec![format!(
        "Start {} from the same image or environment as the others.",
        match draft.root_confidence {
            Confidence::Suspected => "every rank".to_owned(),
            _ => Ranks(&draft.root).to_string(),
        }
    )];
    if peers
        .ranks
        .values()
        .any(|it| it.exceptions.iter().any(is_nccls))
    {
        draft.effect = Effect::Crashes;
    }
    Some(draft)
}

fn is_nccls(exception: &Exception) -> bool {
    exception.text.contains(NCCLS_WORDS)
}

/// Key of the finding that an exception follows from: NCCL raised it because of different versions.
pub(super) fn follows(
    situation: &Situation<'_>,
    process: &Process,
    exception: &Exception,
) -> Option<Key> {
    let is = is_nccls(exception);
    is.then(|| skew::key(situation, &ABOUT, process)).flatten()
}

#[cfg(test)]
mod tests {
    use super::ABOUT;
    use crate::diagnosis::testing::{holds, shows};

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            r#"
            world = 3
            starting = true
            events = """
            0.5 * begins 3
            0.5 0,2 sets torch=2.15.0+cu128
            0.5 1 sets torch=2.14.1+cu126
            0.5 0,2 sets nccl=2.27.5
            0.5 1 sets nccl=2.26.2
            1.0 0,2 inits 3 node-a:29500 nccl @train.py:12
            1.6 1 inits 3 node-a:29500 nccl @train.py:12
            """
            "#,
        );
    }

    #[test]
    fn different_nccl_version_is_proved_when_the_rank_joins() {
        holds(
            r#"
            world = 3
            starting = true
            events = """
            0.5 * begins 3
            0.5 0,2 sets nccl=2.27.5
            1.0 0,2 inits 3 node-a:29500 nccl @train.py:12
            1.6 1 sets nccl=2.26.2
            1.6 1 inits 3 node-a:29500 nccl @train.py:12
            """
            verdict = "healthy"
            [[expect]]
            code = "DD305"
            severity = "warning"
            effect = "none"
            confidence = "proved"
            certificate = "contradiction"
            root = [1]
            root-confidence = "supported"
            detected = 1.6
            lines = { 0 = "train.py:12", 1 = "train.py:12" }
            summary-has = "ranks 0 and 2 have NCCL 2.27.5, rank 1 has NCCL 2.26.2"
            "#,
        );
    }

    #[test]
    fn nccl_error_is_a_cascade_of_different_versions() {
        holds(
            r#"
            world = 2
            starting = true
            events = """
            0.5 * begins 2
            0.5 0 sets nccl=2.27.5
            0.5 1 sets nccl=2.26.2
            1.0 * inits 2 node-a:29500 nccl @train.py:12
            1.1 * inited
            2.0 * raises uncaught "DistBackendError: NCCL error: invalid usage. Last error: Mismatched NCCL version detected : rank 1 version 22602 rank 0 version 22705" @train.py:20
            2.1 * exits 1
            """
            verdict = "crash"
            [[expect]]
            code = "DD305"
            role = "initiating"
            effect = "crashes"
            root = [0, 1]
            root-confidence = "suspected"
            [[expect]]
            code = "DD202"
            role = "cascade"
            caused-by = "DD305"
            "#,
        );
    }

    #[test]
    fn version_of_an_unused_library_is_ignored() {
        holds(
            r#"
            world = 2
            starting = true
            events = """
            0.5 * begins 2
            0.5 0 sets nccl=2.27.5
            0.5 1 sets nccl=2.26.2
            0.5 0 sets nvidia-driver=570.86
            0.5 1 sets nvidia-driver=550.54
            1.0 * inits 2 node-a:29500 gloo @train.py:12
            1.1 * inited
            """
            look-on = 20
            "#,
        );
    }

    #[test]
    fn unknown_version_is_not_compared() {
        holds(
            r#"
            world = 2
            starting = true
            events = """
            0.5 * begins 2
            0.5 0 sets nccl=2.27.5
            0.5 * sets torch=2.15.0
            1.0 * inits 2 node-a:29500 nccl @train.py:12
            1.1 * inited
            """
            look-on = 20
            "#,
        );
    }

    #[test]
    fn hang_is_independent_of_different_versions() {
        holds(
            r#"
            world = 2
            starting = true
            events = """
            0.5 * begins 2
            0.5 0 sets torch=2.15.0
            0.5 1 sets torch=2.14.1
            1.0 * inits 2 node-a:29500 gloo @train.py:12
            1.1 * inited
            2.0 0 all_reduce f32[8] @train.py:20
            2.1 1 exits 0
            """
            verdict = "hang"
            [[expect]]
            code = "DD102"
            role = "initiating"
            root = [1]
            [[expect]]
            code = "DD305"
            role = "initiating"
            effect = "none"
            "#,
        );
    }
}
