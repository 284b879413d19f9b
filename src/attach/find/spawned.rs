//! Ranks that no variable of their environment numbers: those of `mp.spawn`, or of a program that gets its number as an
//! argument.
//!
//! Their frames number them: the arguments of `init_process_group`, variables with the usual names in functions of the
//! program, and the index that `mp.spawn` passes. Otherwise the order in which their processes started does.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

use ddp_doctor_diagnosis::input::backends::Backend;
use ddp_doctor_diagnosis::input::place;
use ddp_doctor_diagnosis::model::MAX_WORLD;
use ddp_doctor_host::proc::{self, Stat};
use ddp_doctor_node::stack_reader::python_threads;
use serde::{Deserialize, Serialize};

use super::{Candidate, Found, RankProcess, RankedJob, ancestors, meets_at_loopback};
use crate::environment::Environment;

/// Local variables with the number of a rank, the number of ranks, and the index that `mp.spawn` passes.
const RANK: &str = "rank";
const WORLD_SIZE: &str = "world_size";
const INDEX: &str = "i";
/// Files of PyTorch: whose functions join process groups, which starts processes, and which runs data loaders' workers.
const JOINS: &str = "torch/distributed/distributed_c10d.py";
const STARTS: &str = "torch/multiprocessing/spawn.py";
const WORKER: &str = "torch/utils/data/_utils/worker.py";

/// What the frames of a process state about its rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stated {
    /// Its number.
    rank: Option<u32>,
    /// Number of ranks.
    world_size: Option<u32>,
    /// Its index among the processes that one call of `mp.spawn` started.
    index: Option<u32>,
    /// It is inside a function of `torch.distributed`.
    is_inside: bool,
    /// It is a worker of a data loader.
    is_worker: bool,
}

impl Stated {
    /// What the frames of the main thread of a process state.
    #[must_use]
    pub fn read(pid: u32) -> Self {
        let mut stated = Self::default();
        for (frame, integers) in python_threads::integers(pid, &[RANK, WORLD_SIZE, INDEX]) {
            let number = |name: &str| {
                let value = u32::try_from(*integers.get(name)?).ok();
                value.filter(|&it| it <= MAX_WORLD)
            };
            let is_of_library = |file: &str| frame.file.ends_with(file);
            stated.is_worker |= is_of_library(WORKER);
            if is_of_library(STARTS) {
                stated.index = stated.index.or_else(|| number(INDEX));
            }
            // Variables of other functions of PyTorch, such as the rank within a group, number something else.
            let joins = is_of_library(JOINS) && frame.function == "init_process_group";
            if joins || place::is_users(&frame.file) {
                stated.rank = stated.rank.or_else(|| number(RANK));
                stated.world_size = stated.world_size.or_else(|| number(WORLD_SIZE));
            }
            stated.is_inside |= is_of_library(JOINS);
        }
        stated
    }
}

/// Whether a process has threads of a process group. Those of another process do not survive a fork.
pub fn has_joined(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut names = tasks.filter_map(|task| proc::read_lossy(task.path().join("comm")).ok());
    names.any(|name| Backend::of_thread(name.trim()).is_some())
}

/// The processes whose frames are to be read: those without a number, and those with the number of a process that may
/// have started them, or of another one that the same process has started.
pub fn unnumbered(candidates: &[Candidate], stats: &HashMap<u32, Stat>) -> Vec<u32> {
    let by_pid: HashMap<u32, &Candidate> = candidates.iter().map(|it| (it.pid, it)).collect();
    let repeated = repeated(candidates.iter().filter(|it| !by_pid.contains_key(&it.parent)));
    let is_unnumbered = |it: &&Candidate| {
        let mut above = ancestors(it.pid, stats).filter_map(|pid| by_pid.get(&pid));
        it.number.is_none()
            || repeated.contains(&(it.parent, it.number))
            || above.any(|above| !above.has_joined && above.number == it.number)
    };
    candidates.iter().filter(is_unnumbered).map(|it| it.pid).collect()
}

/// The numbers that several processes of one parent have inherited, each with the parent. Two jobs may be started by
/// one parent, with other addresses.
fn repeated<'a>(processes: impl Iterator<Item = &'a Candidate>) -> BTreeSet<(u32, Option<u32>)> {
    let mut counts: BTreeMap<(u32, Option<u32>, String), usize> = BTreeMap::new();
    for it in processes.filter(|it| it.number.is_some()) {
        *counts.entry((it.parent, it.number, meeting(&it.environment))).or_default() += 1;
    }
    let several = counts.into_iter().filter(|(_, count)| *count > 1);
    several.map(|((parent, number, _), _)| (parent, number)).collect()
}

/// Where ranks meet, by their variables; empty: no variable states it.
fn meeting(environment: &Environment) -> String {
    let names = ["MASTER_ADDR", "MASTER_PORT"];
    names.map(|name| environment.get(name).unwrap_or_default()).join("\n").trim().to_owned()
}

/// The ranks among processes, of which `stated` states what their frames do.
pub fn ranks(
    candidates: Vec<Candidate>,
    stated: &HashMap<u32, Stated>,
    stats: &HashMap<u32, Stat>,
) -> Vec<Found> {
    let has_joined =
        |it: &Candidate| it.has_joined || stated.get(&it.pid).is_some_and(|it| it.is_inside);
    let by_pid: HashMap<u32, &Candidate> = candidates.iter().map(|it| (it.pid, it)).collect();
    // A process with a rank below it that has its number, or none, has started that one.
    let launchers: BTreeSet<u32> = candidates
        .iter()
        .filter(|it| has_joined(it))
        .flat_map(|rank| {
            let above = ancestors(rank.pid, stats).filter_map(|pid| by_pid.get(&pid));
            let starts_it = |above: &&&Candidate| {
                !has_joined(above) && (rank.number.is_none() || rank.number == above.number)
            };
            above.filter(starts_it).map(|it| it.pid)
        })
        .collect();
    let is_worker = |pid: &u32| stated.get(pid).is_some_and(|it| it.is_worker);
    let is_started = |it: &Candidate| launchers.contains(&it.parent) && !is_worker(&it.pid);
    let may_be_started = |it: &&Candidate| is_started(it) || !by_pid.contains_key(&it.parent);
    let repeated = repeated(candidates.iter().filter(may_be_started));
    let is_helper = |it: &Candidate| {
        let mut above = ancestors(it.pid, stats).filter_map(|pid| by_pid.get(&pid));
        !has_joined(it)
            && above
                .any(|above| (has_joined(above) || is_started(above)) && above.number == it.number)
    };
    let as_rank = |it: &Candidate| {
        if launchers.contains(&it.pid) || is_helper(it) {
            return None;
        }
        let own = it.number.filter(|_| !repeated.contains(&(it.parent, it.number)));
        let states_rank = || stated.get(&it.pid).is_some_and(|it| it.rank.is_some());
        let is_rank = || {
            let has_kin = || {
                let mut kin = candidates.iter().filter(|other| other.parent == it.parent);
                kin.any(|other| other.pid != it.pid && has_joined(other))
            };
            !is_worker(&it.pid) && (has_joined(it) || is_started(it) || states_rank() && has_kin())
        };
        // A rank that no variable numbers has joined something, or was started together with one that has.
        if own.is_none() && !is_rank() {
            return None;
        }
        let stated = own.is_none().then(|| stated.get(&it.pid).copied().unwrap_or_default());
        Some(Found { process: it.process(own), user: it.user, stated })
    };
    let mut found: Vec<Found> = candidates.iter().filter_map(as_rank).collect();
    share_meeting(&mut found);
    found
}

/// Gives ranks that have not stated where they meet the place of those that the same process started: programs state it
/// shortly before they join.
fn share_meeting(found: &mut [Found]) {
    let mut places: BTreeMap<u32, Vec<Environment>> = BTreeMap::new();
    for Found { process, .. } in found.iter().filter(|it| it.stated.is_some()) {
        let known = places.entry(process.parent).or_default();
        let place = meeting(&process.environment);
        if !place.is_empty() && known.iter().all(|it| meeting(it) != place) {
            known.push(process.environment.clone());
        }
    }
    for Found { process, .. } in found.iter_mut().filter(|it| it.stated.is_some()) {
        if let Some([place]) = places.get(&process.parent).map(Vec::as_slice)
            && meeting(&process.environment).is_empty()
        {
            process.environment.meet_at(place);
        }
    }
}

/// The jobs of ranks that no variable numbers, which meet at one place. `name` names the job of a rank.
pub fn jobs(
    mut ranks: Vec<(RankProcess, Stated)>,
    user: u32,
    name: impl Fn(&RankProcess) -> String,
) -> Vec<RankedJob> {
    ranks.sort_by_key(|(it, _)| (it.start_ticks, it.pid));
    if let Some(numbers) = numbers(&ranks) {
        return vec![job(ranks, numbers, user, false, &name)];
    }
    let mut of_launcher: BTreeMap<u32, Vec<(RankProcess, Stated)>> = BTreeMap::new();
    for it in ranks {
        of_launcher.entry(it.0.parent).or_default().push(it);
    }
    let several = of_launcher.len() > 1;
    let jobs = of_launcher.into_iter().map(|(launcher, ranks)| {
        let known = numbers(&ranks);
        let by_order = known.is_none();
        let numbers = known.unwrap_or_else(|| (0..).take(ranks.len()).collect());
        let mut job = job(ranks, numbers, user, by_order, &name);
        if several {
            job.id = format!("{}-{launcher}", job.id);
        }
        job
    });
    jobs.collect()
}

/// The numbers of ranks by their frames; `None`: one is unknown, or two have the same.
fn numbers(ranks: &[(RankProcess, Stated)]) -> Option<Vec<u32>> {
    // Of the second node, numbers do not begin with 0.
    let offset_of = |it: &Stated| it.rank?.checked_sub(it.index?);
    let offsets: BTreeSet<u32> = ranks.iter().filter_map(|(_, it)| offset_of(it)).collect();
    let offset = match offsets.len() {
        0 => Some(0),
        1 => offsets.first().copied(),
        _ => None,
    };
    let number = |it: &Stated| it.rank.or_else(|| it.index?.checked_add(offset?));
    let numbers: Vec<u32> = ranks.iter().map(|(_, it)| number(it)).collect::<Option<_>>()?;
    let distinct: BTreeSet<&u32> = numbers.iter().collect();
    let is_known = distinct.len() == numbers.len() && numbers.iter().all(|&it| it < MAX_WORLD);
    is_known.then_some(numbers)
}

fn job(
    ranks: Vec<(RankProcess, Stated)>,
    numbers: Vec<u32>,
    user: u32,
    by_order: bool,
    name: &impl Fn(&RankProcess) -> String,
) -> RankedJob {
    let count = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
    let least = numbers.iter().max().map_or(0, |it| it + 1).max(count);
    let stated = ranks.iter().filter_map(|(_, it)| it.world_size).max();
    let of_environment = || ranks.iter().filter_map(|(it, _)| it.world_size).max();
    let world_size = stated.or_else(of_environment).filter(|&it| it >= least).unwrap_or(least);
    let is_local = world_size == count || ranks.iter().all(|(it, _)| meets_at_loopback(it));
    let mut ranks: Vec<RankProcess> = (0..)
        .zip(ranks)
        .zip(numbers)
        .map(|((position, (process, stated)), rank)| RankProcess {
            rank,
            world_size: Some(world_size),
            local_rank: stated.index.or(Some(position)),
            local_world_size: is_local.then_some(world_size),
            ..process
        })
        .collect();
    ranks.sort_by_key(|it| it.rank);
    let id = ranks.first().map(name).unwrap_or_default();
    RankedJob { id, user, ranks, by_order }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn process(pid: u32, parent: u32) -> RankProcess {
        RankProcess { pid, start_ticks: u64::from(pid), parent, ..RankProcess::default() }
    }

    fn stated(rank: Option<u32>, index: Option<u32>) -> Stated {
        Stated { rank, index, ..Stated::default() }
    }

    fn candidate(pid: u32, parent: u32, number: Option<u32>, has_joined: bool) -> Candidate {
        let variable = number.map(|it| format!("RANK={it}")).unwrap_or_default();
        let environment = [variable.as_str()].into_iter().collect();
        Candidate { pid, user: 7, start_ticks: 1, parent, environment, number, has_joined }
    }

    /// Pids of the ranks among processes, each with its number in its environment; `None`: it has none.
    fn found(candidates: Vec<Candidate>, stated: &[(u32, Stated)]) -> Vec<(u32, Option<u32>)> {
        let stats = candidates
            .iter()
            .map(|it| {
                let stat = Stat { letter: b'S', parent: it.parent, start_ticks: 1, exit_code: 0 };
                (it.pid, stat)
            })
            .collect();
        let found = ranks(candidates, &stated.iter().copied().collect(), &stats);
        let number = |it: &Found| it.stated.is_none().then_some(it.process.rank);
        found.iter().map(|it| (it.process.pid, number(it))).collect()
    }

    #[test]
    fn processes_that_one_without_a_group_has_started_are_ranks() {
        // 10 has started 11 to 13, of which 13 has not joined yet; 14 is a worker of 11.
        let all = |number: Option<u32>| {
            let of = |pid, parent, has_joined| candidate(pid, parent, number, has_joined);
            vec![
                of(10, 1, false),
                of(11, 10, true),
                of(12, 10, true),
                of(13, 10, false),
                of(14, 11, false),
            ]
        };
        let worker = Stated { is_worker: true, ..Stated::default() };
        let ranks = [(11, None), (12, None), (13, None)];
        assert_eq!(found(all(None), &[(14, worker)]), ranks);
        // Slurm or Kubernetes has numbered the node.
        assert_eq!(found(all(Some(0)), &[(14, worker)]), ranks);
        // torchrun has given each its own number.
        let torchrun = vec![
            candidate(10, 1, Some(0), false),
            candidate(11, 10, Some(0), true),
            candidate(12, 10, Some(1), true),
        ];
        assert_eq!(found(torchrun, &[]), [(11, Some(0)), (12, Some(1))]);
    }

    #[test]
    fn numbers_that_children_of_one_process_inherit_are_not_theirs() {
        let all = vec![candidate(11, 10, Some(0), true), candidate(12, 10, Some(0), false)];
        let states = stated(Some(1), None);
        assert_eq!(found(all, &[(12, states)]), [(11, None), (12, None)]);
        // Two jobs that meet at different ports.
        let mut all = vec![candidate(11, 10, Some(0), true), candidate(12, 10, Some(0), true)];
        all[1].environment = ["RANK=0", "MASTER_PORT=7"].into_iter().collect();
        assert_eq!(found(all, &[]), [(11, Some(0)), (12, Some(0))]);
    }

    #[test]
    fn rank_without_a_meeting_place_is_of_the_job_of_its_peers() {
        let mut all = vec![
            candidate(10, 1, None, false),
            candidate(11, 10, None, true),
            candidate(12, 10, None, false),
        ];
        all[1].environment = ["MASTER_ADDR=localhost", "MASTER_PORT=12355"].into_iter().collect();
        let stats = all
            .iter()
            .map(|it| {
                (it.pid, Stat { letter: b'S', parent: it.parent, start_ticks: 1, exit_code: 0 })
            })
            .collect();
        let found = ranks(all, &HashMap::new(), &stats);
        let ports = found.iter().map(|it| it.process.environment.get("MASTER_PORT"));
        assert_eq!(ports.collect::<Vec<_>>(), [Some("12355"); 2]);
    }

    #[test]
    fn processes_without_a_group_or_a_number_are_no_ranks() {
        let all = vec![candidate(10, 1, None, false), candidate(11, 10, None, false)];
        assert_eq!(found(all, &[(10, Stated::default())]), []);
        let inside = Stated { is_inside: true, ..Stated::default() };
        let all = vec![candidate(10, 1, None, false), candidate(11, 10, None, false)];
        assert_eq!(found(all, &[(11, inside)]), [(11, None)]);
    }

    #[test]
    fn frames_number_ranks_also_of_a_second_node() {
        let of = |stated: &[Stated]| {
            let ranks = (10..).zip(stated).map(|(pid, it)| (process(pid, 1), *it));
            numbers(&ranks.collect::<Vec<_>>())
        };
        assert_eq!(of(&[stated(None, Some(1)), stated(None, Some(0))]), Some(vec![1, 0]));
        let second = [stated(Some(5), Some(1)), stated(None, Some(0))];
        assert_eq!(of(&second), Some(vec![5, 4]));
        assert_eq!(of(&[stated(Some(3), None), stated(Some(3), None)]), None);
        assert_eq!(of(&[stated(Some(3), None), stated(None, None)]), None);
    }

    #[test]
    fn ranks_without_numbers_are_numbered_by_order() {
        let none = stated(None, None);
        let ranks = vec![(process(12, 1), none), (process(11, 1), none), (process(30, 2), none)];
        let found = jobs(ranks, 7, |it| format!("job-of-{}", it.parent));
        let numbered = |job: &RankedJob| -> Vec<(u32, u32)> {
            job.ranks.iter().map(|it| (it.pid, it.rank)).collect()
        };
        assert_eq!(
            found.iter().map(numbered).collect::<Vec<_>>(),
            [vec![(11, 0), (12, 1)], vec![(30, 0)]]
        );
        assert!(found.iter().all(|it| it.by_order && it.is_local()));
        assert_eq!(found[0].world_size(), Some(2));
    }

    #[test]
    fn world_that_frames_state_has_ranks_on_other_hosts() {
        let of = |rank| Stated { rank: Some(rank), world_size: Some(4), ..Stated::default() };
        let ranks = vec![(process(11, 1), of(2)), (process(12, 1), of(3))];
        let found = jobs(ranks, 7, |_| "job".into());
        assert!(!found[0].by_order && !found[0].is_local());
        assert_eq!((found[0].world_size(), found[0].elsewhere()), (Some(4), vec![0, 1]));
    }

    /// A process in which the functions of PyTorch that start and join ranks are called as there.
    fn program() -> Option<(Child, tempfile::TempDir)> {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            (STARTS, "def _wrap(fn, i, args):\n    fn(i, *args)\n"),
            (
                JOINS,
                "import time\ndef init_process_group(backend, world_size=-1, rank=-1):\n    print('ready', flush=True)\n    time.sleep(600)\n",
            ),
        ];
        for (file, text) in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let text = "import sys; sys.path.insert(0, '')\nfrom torch.multiprocessing.spawn import _wrap\n\
            from torch.distributed import distributed_c10d as c10d\n\
            def train(i, name, flag, size):\n    rank = i + 4\n    c10d.init_process_group('gloo', size, rank)\n\
            _wrap(train, 3, ('rank', True, 8))\n";
        let mut command = Command::new("python3");
        command.args(["-c", text]).current_dir(&folder).stdout(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Some((child, folder))
    }

    #[test]
    fn arguments_in_frames_of_pytorch_are_read() {
        let Some((mut child, _folder)) = program() else { return };
        let expected = Stated {
            rank: Some(7),
            world_size: Some(8),
            index: Some(3),
            is_inside: true,
            is_worker: false,
        };
        // It may not have blocked yet.
        let read = || (0..100).map(|_| Stated::read(child.id())).find(|it| *it == expected);
        let found = read();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Some(expected));
    }
}
