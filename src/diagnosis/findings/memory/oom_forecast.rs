//! DD502 oom-forecast: the memory of a rank grows and reaches its limit in a known number of steps.

use ddp_doctor_proto::catalogue;

use crate::findings::draft::Draft;
use crate::findings::memory::growers::{
    about_growers, find_what_grows, held, memory_name, repeats, runs_out, shared, went,
};
use crate::findings::memory::too;
use crate::model::RoomKind;
use crate::situation::Situation;
use crate::trends::growth::{Exhausted, Grower};
use crate::words;

/// Maximum steps left of further ranks that are named, relative to the first.
const ALONGSIDE: f64 = 4.0;

/// DD502: steady growth, near the limit of memory.
pub(crate) fn detect(situation: &Situation<'_>) -> Option<Draft> {
    let own = situation.growers.iter().filter(|grower| grower.is_its_own());
    let mut ends: Vec<(&Grower<'_>, Exhausted)> =
        own.filter_map(|grower| Some((grower, grower.ends_in_sight()?))).collect();
    ends.sort_by(|(_, a), (_, b)| a.steps.total_cmp(&b.steps));
    let (first, end) = ends.first()?;
    let alongside = ends.iter().filter(|(_, it)| it.steps <= ALONGSIDE * end.steps);
    let mut growers: Vec<&Grower<'_>> = alongside.map(|(grower, _)| *grower).collect();
    let mut draft = about_growers(&catalogue::DD502, &mut growers, first.growth.at);
    let memory = memory_name(first);
    let too = too(&draft.root, first.rank, "running out");
    draft.summary = format!(
        "rank {} {}: its memory grows by {} with every step{too}",
        first.rank,
        runs_out(situation, memory, end),
        words::bytes(first.growth.trend.slope as u64),
    );
    let left = format!(
        "{} has {} left of {}.",
        words::begin(end.room.map_or("the device", |room| room.name())),
        words::bytes(end.left),
        words::bytes(end.limit)
    );
    draft.say(went(first));
    draft.why.extend(repeats(first));
    draft.why.extend(shared(first));
    draft.say(left);
    if end.room.is_some_and(|room| room.kind == RoomKind::Cgroup) {
        draft.why.extend(held(&first.process.memory));
    }
    draft.advise(find_what_grows(&draft.root));
    Some(draft)
}
