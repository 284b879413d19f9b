//! DD303 world-mismatch: ranks disagree on the size of the world, or the master address or port.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::startup::joining::{
    blame, both_begun, contradiction, describe_joiners, each, pair,
};
use crate::situation::Situation;
use crate::situation::startup::{Forming, Joiner, by_launch, by_place, ranks};
use crate::words;

/// DD303: ranks that form different worlds.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let at_places = by_place(situation.model);
    let sizes = at_places.iter().filter_map(|it| of_sizes(situation, it));
    let of_launches = by_launch(situation.model);
    let places = of_launches.iter().filter_map(|it| of_places(situation, it));
    sizes.chain(places).collect()
}

/// Ranks use one address and expect different numbers of ranks.
fn of_sizes(situation: &Situation<'_>, forming: &Forming<'_>) -> Option<Draft> {
    let classes = forming.classes(|joiner| joiner.init.world_size);
    let apart = pair(&classes)?;
    let mut draft = begun(situation, forming, &classes, both_begun(&apart));
    let expect = each(&classes, ("expects", "expect"), |size| format!("{size} ranks"));
    draft.summary = format!("ranks disagree on the size of the world: {expect}");
    draft.say(format!(
        "All of them use the rendezvous {}. A rank that expects more ranks than exist never returns; one \
         that expects fewer starts without the others.",
        words::place(apart[0].place)
    ));
    draft.why.extend(launched(&classes));
    draft.advise(
        "Let the launcher set WORLD_SIZE, and do not pass world_size to init_process_group; find \
         out what changes it on these ranks.",
    );
    Some(draft.proved_by(contradiction(&apart)))
}

/// Ranks that are each rank of one world once, but use different addresses.
fn of_places(situation: &Situation<'_>, forming: &Forming<'_>) -> Option<Draft> {
    let classes = forming.classes(|joiner| {
        let host = joiner.place.is_loopback().then_some(&joiner.process.host);
        Some((joiner.place, host))
    });
    let ports = forming.classes(|joiner| joiner.place.port);
    let one_launcher = pair(&ports).filter(|[one, other]| {
        let launcher = |it: &Joiner<'_>| Some((it.process.host.clone(), it.init.launcher?));
        launcher(one).is_some() && launcher(one) == launcher(other)
    });
    let all_begun = forming.all_begun();
    let timing = &situation.model.timing;
    let decided = match one_launcher {
        Some(_) => all_begun,
        None if has_own_ports(forming) => all_begun.plus(timing.port_mismatch_grace),
        None => all_begun.plus(timing.address_mismatch_grace),
    };
    if decided > situation.now {
        return None;
    }
    let mut draft = begun(situation, forming, &classes, decided);
    let first = &forming.joiners[0];
    let one_address = forming.joiners.iter().all(|it| it.place.address == first.place.address);
    let what = match (ports.len() > 1, one_address) {
        (true, true) => "port of the master",
        (true, false) => "address and port of the master",
        (false, true) => "host that localhost is",
        (false, false) => "address of the master",
    };
    let several_hosts = what.starts_with("host");
    let uses = each(&classes, ("uses", "use"), |(place, host)| {
        let host =
            host.filter(|_| several_hosts).map(|host| format!(" on {host}")).unwrap_or_default();
        format!("{}{host}", words::place(place))
    });
    draft.summary = format!("ranks disagree on the {what}: {uses}");
    let size = first.init.world_size.unwrap_or(0);
    draft.say(format!(
        "Together, these processes are ranks 0–{} of a world of {size}, each of them once, but they use different \
         rendezvous addresses.",
        size.saturating_sub(1)
    ));
    draft.advise(if several_hosts {
        "Use an address of the host of rank 0 that the other hosts reach, not localhost."
    } else {
        "Let the launcher set MASTER_ADDR and MASTER_PORT; find out what changes them on these \
         ranks."
    });
    Some(draft.proved_by(one_launcher.as_ref().and_then(contradiction)))
}

/// Whether three or more ranks use one address, and each of them a port of its own.
fn has_own_ports(forming: &Forming<'_>) -> bool {
    let addresses = forming.classes(|joiner| Some(&joiner.place.address));
    let ports = forming.classes(|joiner| joiner.place.port);
    addresses.len() == 1 && ports.len() >= 3 && ports.len() == forming.joiners.len()
}

/// A draft about these joiners, the largest class first.
fn begun<K>(
    situation: &Situation<'_>,
    forming: &Forming<'_>,
    classes: &[(K, Vec<Joiner<'_>>)],
    decided: ddp_doctor_proto::report::Timestamp,
) -> Draft {
    let place = KeyPlace::Ranks(vec![forming.joiners[0].rank]);
    let mut draft = Draft::new(&catalogue::DD303, place, decided);
    let sides: Vec<Vec<u32>> = classes.iter().map(|(_, it)| ranks(it)).collect();
    blame(&mut draft, &sides);
    if draft.root_confidence == Confidence::Suspected {
        one_against_the_launcher(&mut draft, classes);
    }
    describe_joiners(situation, forming, &mut draft);
    draft
}

/// If no side outnumbers the others, makes those the root cause that contradict their launcher.
fn one_against_the_launcher<K>(draft: &mut Draft, classes: &[(K, Vec<Joiner<'_>>)]) {
    let obeys = |joiner: &Joiner<'_>| {
        let launched = joiner.init.launched_world_size;
        launched.is_none() || launched == joiner.init.world_size
    };
    let (obey, own): (Vec<_>, Vec<_>) =
        classes.iter().partition(|(_, joiners)| joiners.iter().all(obeys));
    if obey.len() == 1 && !own.is_empty() {
        draft.root = own.iter().flat_map(|(_, joiners)| ranks(joiners)).collect();
        draft.root.sort_unstable();
        draft.root_confidence = Confidence::Supported;
    }
}

/// A sentence if the launcher has set a different world size than a joiner uses.
fn launched<K>(classes: &[(K, Vec<Joiner<'_>>)]) -> Option<String> {
    let own = classes.iter().flat_map(|(_, joiners)| joiners).find(|joiner| {
        let launched = joiner.init.launched_world_size;
        launched.is_some() && launched != joiner.init.world_size
    })?;
    Some(format!(
        "WORLD_SIZE is {} in the environment of rank {}, but the program uses {}.",
        own.init.launched_world_size?, own.rank, own.init.world_size?
    ))
}
