//! Messages whose peers are numbers within a group, where ranks of the world were needed.

use std::collections::HashMap;

use crate::model::{Group, GroupId, Model, Side, UnmatchedMessage};

/// Members of a group that use the numbers of its members as ranks of a larger group.
#[derive(Clone, Debug)]
pub(crate) struct LocalNumbers {
    /// Group of the messages.
    pub(crate) messages: GroupId,
    /// Group within which the peers are numbers.
    pub(crate) numbers: GroupId,
    /// The ranks that sent and receive these messages, ascending.
    pub(crate) ranks: Vec<u32>,
}

/// Open messages of a rank.
type Open = HashMap<u32, Vec<UnmatchedMessage>>;

/// All members of groups whose messages have no partner, and would be each other's partners if their peers were numbers
/// within the group. Where such numbers are the ranks as well, members of another group have exchanged messages from the
/// same lines.
pub(crate) fn local_numbers(model: &Model) -> Vec<LocalNumbers> {
    let groups = model.groups().filter(|it| it.traffic.open().next().is_some());
    groups.flat_map(|group| numbers_in(model, group)).collect()
}

fn numbers_in(model: &Model, messages: &Group) -> Vec<LocalNumbers> {
    let is_here =
        |it: &&Group| it.world == messages.world && it.info.key.layer == messages.info.key.layer;
    let groups: Vec<&Group> = model.groups().filter(is_here).collect();
    let is_by_rank = |it: &&&Group| {
        let members = &it.info.key.members;
        members.len() > 1 && members.iter().enumerate().all(|(at, &rank)| rank as usize == at)
    };
    let smaller = groups.iter().filter(|it| it.info.key.members.len() < messages.members.len());
    let like: Vec<&Group> = smaller.filter(is_by_rank).copied().collect();
    if like.is_empty() {
        return Vec::new();
    }
    let mut open = Open::new();
    for unmatched in messages.traffic.open() {
        open.entry(unmatched.rank).or_default().push(unmatched);
    }
    let pairs = like.iter().flat_map(|like| groups.iter().map(move |group| (*like, *group)));
    pairs.filter_map(|(like, group)| numbers_of(model, messages, like, group, &open)).collect()
}

/// The members of a group that use its numbers, which are the ranks of the members of the group `like`.
fn numbers_of(
    model: &Model,
    messages: &Group,
    like: &Group,
    group: &Group,
    open: &Open,
) -> Option<LocalNumbers> {
    let (members, size) = (&group.info.key.members, like.info.key.members.len());
    if members.len() != size || members.iter().any(|&rank| (rank as usize) < size) {
        return None;
    }
    let traffic = &messages.traffic;
    let member = |number: u32| members.get(number as usize).copied();
    let have_met = |one, other| traffic.sent(one, other) > 0 || traffic.sent(other, one) > 0;
    let is_local = |unmatched: &UnmatchedMessage| {
        let meant = unmatched.peer.and_then(|peer| Some((peer, member(peer)?)));
        let number = members.iter().position(|&rank| rank == unmatched.rank);
        let (Some((peer, meant)), Some(number)) = (meant, number) else { return false };
        let is_partner = |other: &UnmatchedMessage| {
            other.side != unmatched.side
                && other.peer.and_then(member) == Some(unmatched.rank)
                && traffic.fits(&unmatched.joined.call, &other.joined.call)
        };
        let number = number as u32;
        let (from, to) = match unmatched.side {
            Side::Send => (number, peer),
            Side::Receive => (peer, number),
        };
        let place = unmatched.joined.call.place.as_ref();
        let was_there = |rank: u32| {
            let process = model.member(messages.id, rank);
            process.zip(place).is_some_and(|(it, place)| it.places.contains(place))
        };
        unmatched.nth == 1
            && meant != unmatched.rank
            && !have_met(unmatched.rank, meant)
            && traffic.sent(from, to) > 0
            && was_there(from)
            && was_there(to)
            && open.get(&meant).is_some_and(|it| it.iter().any(is_partner))
    };
    let are_local = |rank: &&u32| open.get(*rank).is_some_and(|it| it.iter().all(is_local));
    let mut ranks: Vec<u32> = members.iter().filter(are_local).copied().collect();
    ranks.sort_unstable();
    let is_exchange = ranks.len() > 1;
    is_exchange.then_some(LocalNumbers { messages: messages.id, numbers: group.id, ranks })
}
