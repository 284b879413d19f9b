//! The fields of an entry, found in one pass. Dumps contain each text once and refer to it, so the
//! position of a text identifies it.

use std::collections::HashMap;

use crate::flight_recorder::document::Node;

/// Number of positions that are remembered.
const REMEMBERED: usize = 256;

/// The fields of an entry that are used; `None`: it lacks the field.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) record_id: Option<Node<'a>>,
    pub(super) id: Option<Node<'a>>,
    pub(super) pg_id: Option<Node<'a>>,
    pub(super) process_group: Option<Node<'a>>,
    pub(super) thread_id: Option<Node<'a>>,
    pub(super) collective_seq_id: Option<Node<'a>>,
    pub(super) seq_id: Option<Node<'a>>,
    pub(super) p2p_seq_id: Option<Node<'a>>,
    pub(super) profiling_name: Option<Node<'a>>,
    pub(super) time_created_ns: Option<Node<'a>>,
    pub(super) time_created_us: Option<Node<'a>>,
    pub(super) input_sizes: Option<Node<'a>>,
    pub(super) output_sizes: Option<Node<'a>>,
    pub(super) input_dtypes: Option<Node<'a>>,
    pub(super) output_dtypes: Option<Node<'a>>,
    pub(super) state: Option<Node<'a>>,
    pub(super) retired: Option<Node<'a>>,
    pub(super) timeout_ms: Option<Node<'a>>,
    pub(super) is_p2p: Option<Node<'a>>,
    pub(super) frames: Option<Node<'a>>,
    pub(super) time_discovered_completed_ns: Option<Node<'a>>,
}

/// The names of the fields, in the order of [`Fields::at`].
const NAMES: [&str; 21] = [
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

impl<'a> Fields<'a> {
    /// The fields of an entry. Of a repeated field the first one counts.
    pub(super) fn new(entry: Node<'a>, keys: &mut Keys) -> Self {
        let mut fields = Self::default();
        for (key, value) in entry.pairs() {
            if let Some(field) = keys.name(key).and_then(|name| fields.at(name)) {
                field.get_or_insert(value);
            }
        }
        fields
    }

    /// The field with this index in [`NAMES`].
    const fn at(&mut self, name: usize) -> Option<&mut Option<Node<'a>>> {
        Some(match name {
            0 => &mut self.record_id,
            1 => &mut self.id,
            2 => &mut self.pg_id,
            3 => &mut self.process_group,
            4 => &mut self.thread_id,
            5 => &mut self.collective_seq_id,
            6 => &mut self.seq_id,
            7 => &mut self.p2p_seq_id,
            8 => &mut self.profiling_name,
            9 => &mut self.time_created_ns,
            10 => &mut self.time_created_us,
            11 => &mut self.input_sizes,
            12 => &mut self.output_sizes,
            13 => &mut self.input_dtypes,
            14 => &mut self.output_dtypes,
            15 => &mut self.state,
            16 => &mut self.retired,
            17 => &mut self.timeout_ms,
            18 => &mut self.is_p2p,
            19 => &mut self.frames,
            20 => &mut self.time_discovered_completed_ns,
            _ => return None,
        })
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

/// Recognizes the names of fields.
#[derive(Debug)]
pub(super) struct Keys(Positions);

impl Keys {
    pub(super) fn new() -> Self {
        Self(Positions::new())
    }

    /// Index of a name in [`NAMES`].
    fn name(&mut self, key: Node<'_>) -> Option<usize> {
        let find = || {
            let bytes = key.bytes().unwrap_or_default();
            let known = NAMES.iter().position(|name| name.as_bytes() == bytes);
            known.map_or(u32::MAX, |at| at as u32)
        };
        usize::try_from(self.0.get(key.text_id()?, find)).ok()
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
