//! The fields of an entry, found in one pass. Dumps contain each text once and refer to it, so the
//! position of a text identifies it.

use std::collections::HashMap;
use std::rc::Rc;

use crate::flight_recorder::document::{Keys, Node, Pairs};

/// Number of positions that are remembered.
const REMEMBERED: usize = 256;

/// A field of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    RecordId,
    Id,
    PgId,
    ProcessGroup,
    ThreadId,
    CollectiveSeqId,
    SeqId,
    P2pSeqId,
    ProfilingName,
    TimeCreatedNs,
    TimeCreatedUs,
    InputSizes,
    OutputSizes,
    InputDtypes,
    OutputDtypes,
    State,
    Retired,
    TimeoutMs,
    IsP2p,
    Frames,
    TimeDiscoveredCompletedNs,
}

/// Number of fields.
const COUNT: usize = 21;

/// The names of the fields, in their order.
const NAMES: [&str; COUNT] = [
    "record_id",
    "id",
    "pg_id",
    "process_group",
    "thread_id",
    "collective_seq_id",
    "seq_id",
    "p2p_seq_id",
    "profiling_name",
    "time_created_ns",
    "time_created_us",
    "input_sizes",
    "output_sizes",
    "input_dtypes",
    "output_dtypes",
    "state",
    "retired",
    "timeout_ms",
    "is_p2p",
    "frames",
    "time_discovered_completed_ns",
];

/// Which value of an entry each field is. All entries of a dump have the same keys in the same order.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// The keys of the latest entry.
    keys: Keys,
    /// Index of the pair of each field. Of a repeated field the first one counts.
    at: Rc<[Option<usize>; COUNT]>,
}

impl Layout {
    /// The fields of an entry.
    pub(super) fn fields<'a>(&mut self, entry: Node<'a>) -> Fields<'a> {
        let pairs = entry.pairs();
        if !pairs.have_keys(&self.keys) {
            self.keys = pairs.keys();
            let mut fields = [None; COUNT];
            for (at, (key, _)) in pairs.iter().enumerate() {
                let name = key.bytes();
                if let Some(field) = NAMES.iter().position(|it| name == Some(it.as_bytes())) {
                    fields[field].get_or_insert(at);
                }
            }
            self.at = Rc::new(fields);
        }
        Fields { pairs, at: Rc::clone(&self.at) }
    }
}

/// The fields of an entry.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    pairs: Pairs<'a>,
    at: Rc<[Option<usize>; COUNT]>,
}

impl<'a> Fields<'a> {
    /// A field; `None`: the entry lacks it.
    #[inline]
    pub(super) fn get(&self, field: Field) -> Option<Node<'a>> {
        self.pairs.value(self.at[field as usize]?)
    }
}

/// What is known of texts by their positions: the latest position of each remainder.
#[derive(Debug)]
struct Positions(Box<[(u32, u32); REMEMBERED]>);

impl Positions {
    fn new() -> Self {
        Self(Box::new([(u32::MAX, 0); REMEMBERED]))
    }

    /// What is known of the text at a position, or what `find` yields.
    fn get(&mut self, position: u32, find: impl FnOnce() -> u32) -> u32 {
        // The positions of a dump are spread evenly enough by their lower bits.
        let slot = &mut self.0[position as usize % REMEMBERED];
        if slot.0 != position {
            *slot = (position, find());
        }
        slot.1
    }
}

/// Numbers equal texts equally.
#[derive(Debug)]
pub(super) struct Texts {
    positions: Positions,
    numbers: HashMap<Vec<u8>, u32>,
}

impl Texts {
    pub(super) fn new() -> Self {
        Self { positions: Positions::new(), numbers: HashMap::new() }
    }

    /// The number of a text; 0: there is none.
    pub(super) fn number(&mut self, text: Option<Node<'_>>) -> u64 {
        let Some((text, at)) = text.and_then(|it| Some((it, it.text_id()?))) else {
            return 0;
        };
        let numbers = &mut self.numbers;
        let find = || {
            let next = numbers.len() as u32 + 1;
            let bytes = text.bytes().unwrap_or_default();
            *numbers.entry(bytes.to_vec()).or_insert(next)
        };
        u64::from(self.positions.get(at, find))
    }
}
