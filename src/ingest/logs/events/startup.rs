//! Waits in which ranks name others, as events: for the world to form, and in monitored barriers.

use std::collections::BTreeSet;
use std::sync::Arc;

use ddp_doctor_diagnosis::event::{Call, CallId, Event, NoteText, ThreadId};
use ddp_doctor_diagnosis::input::backends::{GLOO, NCCL};
use ddp_doctor_diagnosis::words::Ranks;
use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use super::{unnamed_group, were};
use crate::logs::job::{Barrier, LAUNCH, LoggedJob, Topic, Wait};
use crate::process;

/// Where ranks meet, if the text does not say it.
const STORE: &str = "their store";

/// Adds the waits of ranks for others that they or the arithmetic name. Returns whether there are any.
pub(super) fn add_joins(job: &mut LoggedJob) -> bool {
    job.joins.drop_numbers_in_groups();
    barriers(job);
    let at_barriers = !job.joins.barriers.is_empty();
    job.joins.count_servers();
    if job.joins.counted.is_some() {
        job.joins.count_joined();
    }
    let arrived: BTreeSet<u32> = job.joins.waiting.keys().copied().collect();
    if let Some((size, joined)) = job.joins.counted {
        let named = arrived.len() as u64 == u64::from(joined);
        if joined < size && named {
            world(job, size);
        } else {
            let ranks: Vec<u32> = arrived.iter().copied().collect();
            let (why, advice) = if joined >= size {
                (
                    "another attempt or another job uses the same store",
                    "Give each job and each attempt a port or a file of its own.",
                )
            } else {
                ("the text does not name all of those that joined", LAUNCH)
            };
            let text = format!(
                "{} waiting for the world to form when {joined} of {size} workers had joined: {why}",
                were(&ranks)
            );
            job.note(Topic::Startup, NoteText::new(text, advice));
        }
        return at_barriers || joined < size && named;
    }
    let missing: BTreeSet<u32> = job.joins.addresses.difference(&arrived).copied().collect();
    let all: BTreeSet<u32> = arrived.union(&missing).copied().collect();
    let Some(&highest) = all.last() else {
        return at_barriers;
    };
    let size = job.names.world.unwrap_or(highest + 1);
    let named = !missing.is_empty() && all.len() as u64 == u64::from(size);
    if named {
        world(job, size);
    } else if !arrived.is_empty() {
        let (ranks, missing): (Vec<u32>, Vec<u32>) =
            (arrived.into_iter().collect(), missing.into_iter().collect());
        job.note(Topic::Startup, format!(
            "{} waiting for the address of {}; the text does not say which other ranks had joined",
            were(&ranks),
            Ranks(&missing)
        ));
    }
    at_barriers || named
}

/// Adds that ranks were joining a world of this size.
fn world(job: &mut LoggedJob, size: u32) {
    let waiting: Vec<(u32, Wait)> =
        job.joins.waiting.iter().map(|(&rank, &wait)| (rank, wait)).collect();
    for (rank, wait) in waiting {
        let settings = [
            ("init.rank", rank.to_string()),
            ("init.world_size", size.to_string()),
            ("init.address", STORE.to_owned()),
        ];
        for (name, value) in settings {
            let setting = Event::Setting {
                process: process(rank),
                name: name.into(),
                value: value.into(),
                at: wait.since,
            };
            job.events.push((wait.since, setting));
        }
        let init = call(Op::InitProcessGroup, wait.since, 0);
        let issued = Event::Issued { process: process(rank), call: Arc::new(init) };
        job.events.push((wait.since, issued));
    }
}

/// Adds the devices that ranks use, which NCCL compared when it connected them.
pub(super) fn add_devices(job: &mut LoggedJob) {
    let used = job.ranks.iter().filter_map(|(&rank, known)| Some((rank, known.device.clone()?)));
    let at = job.begins();
    for (rank, device) in used.collect::<Vec<_>>() {
        let process = process(rank);
        let settings = [("init.backend", NCCL.name().into()), ("gpu", device)];
        for (name, value) in settings {
            let setting = Event::Setting { process, name: name.into(), value, at };
            job.events.push((at, setting));
        }
        let init = Arc::new(call(Op::InitProcessGroup, at, 0));
        let returned =
            Event::Returned { process, thread: init.thread, call: init.id, followed: false, at };
        let issued = Event::Issued { process, call: init };
        job.events.extend([(at, issued), (at, returned)]);
    }
}

/// Adds the waits in monitored barriers.
fn barriers(job: &mut LoggedJob) {
    let barriers = std::mem::take(&mut job.joins.barriers);
    for (&rank, Barrier { op, missing, wait }) in &barriers {
        let mut members = missing.clone();
        members.push(rank);
        members.sort_unstable();
        members.dedup();
        let backend = if *op == Op::MonitoredBarrier { GLOO.name() } else { "" };
        let group = Arc::new(unnamed_group(backend, members.clone(), false));
        for member in members {
            if !job.ranks.contains_key(&member) {
                continue;
            }
            let joined = Event::GroupJoined { process: process(member), group: Arc::clone(&group) };
            job.events.push((wait.since, joined));
        }
        let raised = job.ranks.get(&rank).and_then(|it| it.raised.last()?.place.clone());
        let call = Call {
            group: Some(Arc::clone(&group)),
            place: raised.map(Arc::new),
            ..call(*op, wait.since, 1)
        };
        let issued = Event::Issued { process: process(rank), call: Arc::new(call) };
        job.events.push((wait.since, issued));
    }
    job.joins.barriers = barriers;
}

fn call(op: Op, at: Timestamp, seq: u64) -> Call {
    Call { seq, ..Call::new(CallId(1), at, ThreadId(1), op) }
}
