//! DD114 group-creation-mismatch: a rank waits in a group for ranks that have created the group with
//! other members. Dumps contain the members by the name of the group.

use std::collections::BTreeMap;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Finding, Group};

use crate::diagnosis::words::{self, Ranks, number};
use crate::ingest::flight_recorder::calls::{GroupAt, Unit};
use crate::ingest::flight_recorder::replay::Replay;

/// Turns a finding about ranks that wait for each other into DD114, if they do not know the group of
/// a call by the same members.
pub(super) fn explain(finding: &mut Finding, replay: &Replay<'_>) {
    let blame = &finding.ranks;
    let mut ranks: Vec<u32> = blame.root.iter().chain(&blame.victims).copied().collect();
    ranks.sort_unstable();
    let is_wait = [catalogue::DD101.code, catalogue::DD111.code].contains(&&*finding.code);
    let mut waits = ranks.iter().filter_map(|&rank| {
        let unit = &replay.calls.get(&rank)?.units[*replay.waits.calls.get(&rank)?];
        let created = created(replay, unit.group);
        (created.len() > 1).then_some((rank, unit, created))
    });
    if let Some((rank, unit, created)) = waits.next().filter(|_| is_wait) {
        name(finding, replay, (rank, unit), &created);
        ranks.retain(|rank| !finding.ranks.root.contains(rank));
        finding.ranks.victims = ranks;
    }
}

/// Ranks by the members with which they created a group. Groups without a rank in common may have one
/// name.
fn created<'a>(replay: &'a Replay<'_>, group: GroupAt) -> BTreeMap<&'a [u32], Vec<u32>> {
    let info = &replay.groups.all[group].info;
    let mut created: BTreeMap<&[u32], Vec<u32>> = BTreeMap::new();
    for (&rank, dump) in &replay.job.ranks {
        let config = dump.groups.get(&*info.key.name);
        let config = config.filter(|it| it.description == info.description);
        let members = config.map_or(&[][..], |it| &it.members);
        let overlaps = members.iter().any(|it| info.key.members.contains(it));
        // That of all ranks is not created by new_group.
        if &*info.description != "default_pg" && overlaps && members.contains(&rank) {
            created.entry(members).or_default().push(rank);
        }
    }
    created
}

fn name(
    finding: &mut Finding,
    replay: &Replay<'_>,
    (rank, unit): (u32, &Unit),
    created: &BTreeMap<&[u32], Vec<u32>>,
) {
    let info = &replay.groups.all[unit.group].info;
    let mut sides: Vec<(&[u32], &Vec<u32>)> =
        created.iter().map(|(list, it)| (*list, it)).collect();
    sides.sort_by_key(|(_, ranks)| ranks.len());
    let is_tie = sides[0].1.len() == sides[1].1.len();
    let odd = &sides[..if is_tie { sides.len() } else { 1 }];
    let mut root: Vec<u32> = odd.iter().flat_map(|(_, ranks)| *ranks).copied().collect();
    root.sort_unstable();
    let lists = sides.iter().map(|(members, ranks)| {
        let verb = number(ranks, "has", "have");
        format!("{} {verb} created it with {}", Ranks(ranks), Ranks(members))
    });
    let lists: Vec<String> = lists.collect();
    finding.code = catalogue::DD114.code.into();
    finding.name = catalogue::DD114.name.into();
    finding.severity = catalogue::DD114.severity;
    finding.effect = catalogue::DD114.effect;
    finding.confidence = finding.confidence.min(Confidence::Supported);
    finding.certificate = None;
    finding.summary = format!(
        "the members of {} differ between ranks: {}",
        words::group(info),
        lists.join(", "),
    );
    finding.group = Some(Group {
        name: info.key.name.clone(),
        description: info.description.to_string(),
        layer: info.key.layer.to_string(),
        ranks: info.key.members.clone(),
    });
    let entry = &replay.job.ranks[&rank].entries[unit.entries.start];
    finding.op = Some(entry.op.to_string());
    finding.seq = Some(unit.seq).filter(|&seq| seq > 0);
    finding.why = vec![format!(
        "{} waits in a call of the group, which needs all members that it created the group with.",
        words::begin(Ranks(&[rank])),
    )];
    finding.next = vec!["Pass the same ranks to new_group on all ranks.".into()];
    finding.ranks.root = root;
}
