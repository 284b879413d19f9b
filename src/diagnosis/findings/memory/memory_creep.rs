//! DD503 memory-creep: the memory of a rank grows steadily with every step.

use ddp_doctor_proto::catalogue;

use crate::findings::draft::Draft;
use crate::findings::memory::growers::{
    about_growers, find_what_grows, memory_name, repeats, shared, went,
};
use crate::situation::Situation;
use crate::trends::growth::{self, Grower};
use crate::words::{self, Ranks, number};

/// Minimum step that the growth must reach if the end of the input is not recorded.
const LONG: u64 = 200;
/// Minimum slope of further ranks that are named, relative to the steepest.
const SHARE: f64 = 0.25;

/// DD503: steady growth, far from the limit of memory.
pub(crate) fn detect(situation: &Situation<'_>) -> Option<Draft> {
    let own = || situation.growers.iter().filter(|it| it.is_its_own());
    if own().any(|it| it.ends_in_sight().is_some()) {
        return None;
    }
    let slope = |grower: &Grower<'_>| grower.growth.trend.slope;
    let lasting = || own().filter(|it| lasts(it));
    let most = lasting().max_by(|a, b| slope(a).total_cmp(&slope(b)))?;
    let mut growers = lasting().filter(|it| slope(it) >= SHARE * slope(most)).collect();
    let mut draft = about_growers(&catalogue::DD503, &mut growers, most.growth.at);
    draft.summary = format!(
        "the {} of {} by {}{} with every step",
        memory_name(most),
        Ranks(&draft.root).with("grows", "grow"),
        number(&draft.root, "", "up to "),
        words::bytes(most.growth.trend.slope as u64),
    );
    draft.say(went(most));
    draft.why.extend(repeats(most));
    draft.why.extend(shared(most));
    draft.advise(find_what_grows(&draft.root));
    Some(draft)
}

/// Whether the growth continues after the first pass over the data, in which caches fill.
fn lasts(grower: &Grower<'_>) -> bool {
    let process = grower.process;
    let (_, to) = grower.growth.steps;
    match process.input_ended_in_step {
        // As many steps after the first pass as are needed to detect growth.
        Some(ended) => to.saturating_sub(ended) >= growth::MIN_STEPS,
        None => to >= LONG,
    }
}
