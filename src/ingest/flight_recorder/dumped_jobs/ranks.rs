//! The rank of a dump: from the name of its file unless its contents contradict, or from its contents.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use super::{Ranked, folder};
use crate::flight_recorder::dump::{Dump, Kind};
use crate::flight_recorder::dump_files::{Contents, Found};
use crate::{Remark, file_names};

/// The rank that a path names: the number after the word "rank", otherwise the last number of the
/// file name. A folder names it by the word "rank" alone, since its other numbers are those of jobs and
/// hosts.
pub(super) fn named(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_string_lossy();
    in_name(without_suffix(&name)).or_else(|| {
        let folder = path.parent()?.file_name()?.to_string_lossy();
        file_names::ranks(&folder).global
    })
}

/// The beginning of a file name, up to the rank.
pub(super) fn prefix(path: &Path) -> String {
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = without_suffix(&file_name)
        .trim_end_matches(|it: char| !it.is_ascii_digit())
        .trim_end_matches(|it: char| !it.is_ascii_alphabetic());
    let before = name.strip_suffix("rank").unwrap_or(name);
    before.trim_end_matches(|it: char| !it.is_ascii_alphanumeric()).to_owned()
}

/// A name without the suffixes of formats and compression, which may contain digits.
fn without_suffix(name: &str) -> &str {
    let suffixes = [
        ".gz", ".zst", ".tzst", ".json", ".pickle", ".pkl", ".bin", ".dump", ".pt", ".tgz", ".tar",
    ];
    let shorter = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
    shorter.map_or(name, without_suffix)
}

fn in_name(name: &str) -> Option<u32> {
    let stated = file_names::ranks(name).global;
    stated.or_else(|| file_names::last_number(name))
}

/// The ranks that may have written the dump: the members that all of its groups have in common.
/// Empty: the dump does not tell.
fn possible(dump: &Dump) -> Vec<u32> {
    let mut possible: Option<Vec<u32>> = None;
    let mut narrow = |members: &[u32]| match &mut possible {
        Some(known) if known == members => {}
        Some(known) => {
            let members: HashSet<u32> = members.iter().copied().collect();
            known.retain(|rank| members.contains(rank));
        }
        None => possible = Some(members.to_vec()),
    };
    for config in dump.groups.values().filter(|config| !config.members.is_empty()) {
        narrow(&config.members);
    }
    for kind in dump.kinds.iter().filter(|kind| kind.is_message) {
        let config = dump.groups.get(&kind.group.name);
        let own = kind
            .ends
            .zip(config)
            .and_then(|((own, _), config)| config.members.get(own as usize).copied());
        if let Some(own) = own {
            narrow(&[own]);
        }
    }
    possible.unwrap_or_default()
}

/// The files among which one has the number of its rank: a folder, and the beginning of their names.
pub(super) fn file_series(path: &Path) -> (PathBuf, String) {
    (folder(path), prefix(path))
}

/// Series whose numbers count from one: one number is that of the highest rank plus one, and none is 0.
pub(super) fn counted_from_one(contents: &[Contents]) -> BTreeSet<(PathBuf, String)> {
    let mut numbers: BTreeMap<(PathBuf, String), (u32, bool)> = BTreeMap::new();
    for Found { path, dump } in contents.iter().flat_map(|it| &it.dumps) {
        let Some(number) = named(path) else {
            continue;
        };
        let possible = possible(dump);
        let is_above =
            possible.len() > 1 && possible.iter().max() == number.checked_sub(1).as_ref();
        let known = numbers.entry(file_series(path)).or_insert((number, false));
        *known = (known.0.min(number), known.1 || is_above);
    }
    numbers.retain(|_, (lowest, is_above)| *lowest > 0 && *is_above);
    numbers.into_keys().collect()
}

/// The dump with its rank, by the name of its file unless its contents contradict; `first`: the number of rank 0.
pub(super) fn with_rank(found: Found, first: u32, remarks: &mut Vec<Remark>) -> Option<Ranked> {
    let Found { path, dump } = found;
    let named = named(&path).and_then(|it| it.checked_sub(first));
    let possible = possible(&dump);
    let fits = |rank: &u32| possible.is_empty() || possible.contains(rank);
    let remark = |text: String| Remark { path: path.clone(), text };
    let rank = match (named, &possible[..]) {
        (Some(rank), _) if fits(&rank) => rank,
        (named, &[only]) => {
            if named.is_some() {
                remarks.push(remark(format!("its contents are those of rank {only}")));
            }
            only
        }
        (named, _) => {
            let why = match named {
                Some(rank) => format!("the number {rank} in its name is not a rank of its groups"),
                None => "the rank is in neither the file name nor the contents".into(),
            };
            let text = format!("{why}: end the name with the rank, as in `trace_rank_3`");
            remarks.push(remark(text));
            return None;
        }
    };
    let version = dump.version.split_once('.').map(|(major, _)| major);
    if version != Some("2") {
        let name = &dump.version;
        remarks.push(remark(format!("format version \"{name}\" is unknown, assuming 2")));
    }
    if let Some(cut) = &dump.cut {
        let calls = match dump.packed.len() {
            1 => "call is".to_owned(),
            calls => format!("{calls} calls are"),
        };
        remarks.push(remark(format!("{cut}: only its first {calls} used")));
    }
    if dump.skipped > 0 {
        let count = dump.skipped;
        remarks.push(remark(format!("{count} entries lack their name, group or number")));
    }
    if dump.count > 0 && dump.period.1 == 0 {
        remarks.push(remark("its calls have no usable times".into()));
    }
    let unknown = dump.count(|kind| !kind.is_known);
    if unknown > 0 {
        let text = format!("{unknown} entries are of operations that this version does not know");
        remarks.push(remark(text));
    }
    let odd = dump.count(|kind| !fits_its_group(&dump, kind));
    if odd > 0 {
        let text = format!(
            "the sizes of {odd} entries that gather or scatter do not fit the size of their group"
        );
        remarks.push(remark(text));
    }
    Some(Ranked { rank, path, dump })
}

/// Whether the pieces of all members make up the whole. PyTorch refuses calls of which that is not
/// true.
fn fits_its_group(dump: &Dump, kind: &Kind) -> bool {
    let members = dump.groups.get(&kind.group.name).map_or(0, |it| it.members.len() as u64);
    let fits = |(whole, piece): (u64, u64)| piece.checked_mul(members) == Some(whole);
    members == 0 || kind.pieces.is_none_or(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_of_a_name_ends_before_the_rank() {
        for (path, beginning) in [
            ("dumps/jobA_rank_3.pickle", "jobA"),
            ("nccl_trace_rank_host17_12", "nccl_trace_rank_host"),
            ("_dump_9", "_dump"),
            ("7.json", ""),
        ] {
            assert_eq!(prefix(Path::new(path)), beginning, "{path}");
        }
    }

    #[test]
    fn ranks_are_found_in_names_of_any_pattern() {
        for (path, rank) in [
            ("_dump_9", 9),
            ("/tmp/nccl_trace_rank_3", 3),
            ("nccl_trace_rank_host17_12", 12),
            ("comm_lib_trace_rank_7.json.gz", 7),
            ("nccl_trace_rank_8.pickle.zst", 8),
            ("rank-5_20260101", 5),
            ("dumps/rank3/trace.pickle", 3),
            ("node2/11.pkl", 11),
        ] {
            assert_eq!(named(Path::new(path)), Some(rank), "{path}");
        }
        assert_eq!(named(Path::new("dumps/trace.json")), None);
        assert_eq!(named(Path::new("job_4411/trace-a.pickle")), None);
        assert_eq!(named(Path::new("dumps/trace_local_rank0")), None);
        assert_eq!(named(Path::new("dumps/node_rank_1.json")), None);
    }
}
