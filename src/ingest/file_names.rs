//! Ranks in the names of files.

use std::ops::Range;

use ddp_doctor_diagnosis::model::MAX_WORLD;

/// The ranks that a file name states: `trace_rank_3`, `local_rank0.log`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileRanks {
    /// Global rank.
    pub(super) global: Option<u32>,
    /// Rank on its node.
    pub(super) local: Option<u32>,
}

/// Characters between the words and numbers of a name.
const SEPARATORS: [char; 5] = ['_', '-', '.', '=', ' '];

/// The ranks in a file name. The rank of a node or group is neither kind.
pub(super) fn ranks(name: &str) -> FileRanks {
    let mut found = FileRanks::default();
    for (kind, rank, _) in statements(&name.to_ascii_lowercase()) {
        match kind {
            Kind::Global => found.global = Some(rank),
            Kind::Local => found.local = Some(rank),
            Kind::Other => {}
        }
    }
    found
}

/// The last number of a file name that is not the rank of something else than a process of the job.
pub(super) fn last_number(name: &str) -> Option<u32> {
    let mut name = name.to_ascii_lowercase();
    let others: Vec<Range<usize>> = statements(&name)
        .filter(|(kind, ..)| *kind != Kind::Global)
        .map(|(.., range)| range)
        .collect();
    for range in others.into_iter().rev() {
        name.replace_range(range, "");
    }
    let until_last = name.trim_end_matches(|it: char| !it.is_ascii_digit());
    number(last_part(until_last, |it| !it.is_ascii_digit()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Global,
    Local,
    Other,
}

/// The words "rank" with a number in a name in lower case, and the range from the word to the end of
/// the number.
fn statements(name: &str) -> impl Iterator<Item = (Kind, u32, Range<usize>)> {
    name.match_indices("rank").filter_map(|(at, word)| {
        let rest = &name[at + word.len()..];
        let digits = rest.trim_start_matches(SEPARATORS);
        let rank = number(digits)?;
        let len = digits.bytes().take_while(u8::is_ascii_digit).count();
        let end = name.len() - digits.len() + len;
        Some((kind(&name[..at]), rank, at..end))
    })
}

/// What has the rank, by the part of the name before the word "rank".
fn kind(before: &str) -> Kind {
    let words = before.trim_end_matches(SEPARATORS);
    let word = last_part(words, |it| !it.is_ascii_alphanumeric());
    let is_joined = before.len() == words.len() && !word.is_empty();
    match word {
        "local" => Kind::Local,
        "global" => Kind::Global,
        "node" | "group" => Kind::Other,
        _ if is_joined => Kind::Other,
        _ => Kind::Global,
    }
}

/// The part of a text after its last separator.
fn last_part(text: &str, is_separator: impl Fn(char) -> bool) -> &str {
    text.rsplit(is_separator).next().unwrap_or_default()
}

/// The number at the beginning of a text, if it is a possible rank.
fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u32 = text[..digits].parse().ok()?;
    (number < MAX_WORLD).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn global_local_and_node_ranks_are_distinguished() {
        for (name, global, local) in [
            ("rank3.log", Some(3), None),
            ("globalrank_5.log", Some(5), None),
            ("stderr_Rank-12.txt", Some(12), None),
            ("local_rank0.log", None, Some(0)),
            ("localrank_5.err", None, Some(5)),
            ("node_rank3.log", None, None),
            ("group_rank_2_rank_17", Some(17), None),
            ("node_rank1_local_rank2.log", None, Some(2)),
            ("frank3.log", None, None),
            ("node7_rank4.log", Some(4), None),
            ("rank4000000000.log", None, None),
            ("é_rank_1", Some(1), None),
            ("训练rank1.log", Some(1), None),
            ("lauf-\u{fffd}rank1", Some(1), None),
        ] {
            assert_eq!(ranks(name), FileRanks { global, local }, "{name}");
        }
    }

    #[test]
    fn last_number_is_no_rank_of_a_node() {
        assert_eq!(last_number("dump_node_rank1"), None);
        assert_eq!(last_number("7_local_rank_0"), Some(7));
        assert_eq!(last_number("host17_12"), Some(12));
        assert_eq!(last_number("é1"), Some(1));
        assert_eq!(last_number("训练12é.json"), Some(12));
        assert_eq!(last_number("训练"), None);
    }
}
