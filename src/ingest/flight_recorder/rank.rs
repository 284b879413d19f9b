//! The rank of a dump: from the name of its file, or from its contents.

use std::collections::HashSet;
use std::path::Path;

use super::dump::Dump;
use crate::ingest::file_names;

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
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = without_suffix(&name).trim_end_matches(|it: char| !it.is_ascii_digit());
    let name = name.trim_end_matches(|it: char| !it.is_ascii_alphabetic());
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
pub(super) fn possible(dump: &Dump) -> Vec<u32> {
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
