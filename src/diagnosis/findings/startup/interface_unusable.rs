//! DD308 interface-unusable: the configured network interface is missing, down, without an address,
//! or a loopback between several hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Fact};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::startup::interfaces::{self, Interface, Unusable};
use crate::findings::startup::joining::describe_joiners;
use crate::input::backends::{Backend, Connects};
use crate::model::Process;
use crate::situation::Situation;
use crate::situation::startup::{Forming, Joiner, ranks, worlds};
use crate::words::{Ranks, joined};

/// Setting with the list of interfaces that a process sees.
const SEEN: &str = "interfaces";

/// A setting that names an unusable interface: variable, value, reason.
type Setting = (&'static str, Arc<str>, Unusable);

/// DD308: configured interfaces that cannot be used.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let is_told = |process: &Process| process.settings.contains_key(SEEN);
    if !situation.model.processes.values().any(is_told) {
        return Vec::new();
    }
    let of_world = |forming: &Forming<'_>| -> Vec<Draft> {
        let found = found(forming).into_iter();
        found.map(|(setting, joiners)| draft(situation, forming, &setting, &joiners)).collect()
    };
    worlds(situation.model).iter().flat_map(of_world).collect()
}

/// The first of these ranks that joins a world with an interface that it cannot use.
pub(crate) fn first_among(situation: &Situation<'_>, ranks: &[u32]) -> Option<u32> {
    let worlds = worlds(situation.model);
    let mut found: Vec<u32> =
        worlds.iter().flat_map(found).flat_map(|(_, joiners)| joiners).map(|it| it.rank).collect();
    found.sort_unstable();
    found.into_iter().find(|rank| ranks.contains(rank))
}

/// Joiners by the setting that names an interface which they cannot use.
fn found<'a>(forming: &Forming<'a>) -> BTreeMap<Setting, Vec<Joiner<'a>>> {
    let mut found: BTreeMap<Setting, Vec<Joiner<'a>>> = BTreeMap::new();
    let hosts: BTreeSet<&str> = forming.joiners.iter().map(|it| &*it.process.host).collect();
    for joiner in &forming.joiners {
        for unusable in unusable(joiner, hosts.len() > 1) {
            found.entry(unusable).or_default().push(*joiner);
        }
    }
    // The first rank identifies the finding, whichever joined first.
    for joiners in found.values_mut() {
        joiners.sort_by_key(|joiner| joiner.rank);
    }
    found
}

/// Variables of a joiner that name an unusable interface, with their values.
fn unusable(joiner: &Joiner<'_>, several_hosts: bool) -> Vec<Setting> {
    let settings = &joiner.process.settings;
    let Some(seen) = settings.get(SEEN) else { return Vec::new() };
    let seen = interfaces::parse(seen);
    Backend::requested_by(&joiner.init.backend, |_| true)
        .into_iter()
        // A backend that connected when the world was initialized could use its interface.
        .filter(|it| it.connects == Connects::AtFirstCall || joiner.process.is_joining())
        .filter_map(|it| {
            let variable = it.interface.as_ref()?;
            let value = settings.get(format!("env.{}", variable.name).as_str())?;
            let why = interfaces::unusable(variable, value, &seen, several_hosts)?;
            Some((variable.name, Arc::clone(value), why))
        })
        .collect()
}

fn draft(
    situation: &Situation<'_>,
    forming: &Forming<'_>,
    (variable, value, unusable): &Setting,
    joiners: &[Joiner<'_>],
) -> Draft {
    let first = joiners[0];
    let mut draft =
        Draft::new(&catalogue::DD308, KeyPlace::Ranks(vec![first.rank]), first.init.call.at);
    draft.blame(ranks(joiners), Confidence::Proved);
    describe_joiners(situation, forming, &mut draft);
    let seen =
        first.process.settings.get(SEEN).map(|seen| interfaces::parse(seen)).unwrap_or_default();
    let distinct: BTreeSet<&str> = joiners.iter().map(|it| &*it.process.host).collect();
    let hosts = distinct.into_iter().collect::<Vec<_>>().join(", ");
    let what = match unusable {
        Unusable::Missing => format!("which does not exist on {hosts}"),
        Unusable::Down => format!("which is down on {hosts}"),
        Unusable::NoAddress => format!("which has no address on {hosts}"),
        Unusable::Loopback => "which does not reach the other hosts of the world".into(),
    };
    draft.summary = format!(
        "{} configured to use the network interface {value} ({variable}), {what}",
        Ranks(&draft.root).with("is", "are"),
    );
    draft.say(format!(
        "Process {} of rank {} sees these interfaces: {}.",
        first.process.pid,
        first.rank,
        joined(seen.iter().map(Interface::to_string), ", ")
    ));
    draft.advise(format!(
        "Set {variable} to an interface of that host that reaches the others, or leave it unset."
    ));
    if *unusable == Unusable::Loopback {
        return draft;
    }
    draft.observed(vec![Fact::Interface {
        rank: first.rank,
        pid: first.process.pid,
        variable: (*variable).into(),
        value: value.to_string(),
        seen: seen.iter().map(|it| it.as_said()).collect(),
    }])
}
