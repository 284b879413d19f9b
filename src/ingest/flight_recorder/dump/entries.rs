//! Reads entries. Texts, kinds of calls and lines that repeat are stored once.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use ddp_doctor_diagnosis::model::MAX_WORLD;
use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::{DType, Op};

use super::backends::is_on_host;
use super::fields::{Field, Fields, Layout, Texts};
use super::frames;
use super::profiling_name::ProfilingName;
use super::{Entry, Kind, NamedGroup, State};
use crate::dtypes;
use crate::flight_recorder::document::Node;

/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 256;
/// Maximum number of words that determine a kind of calls.
const MAX_WORDS: usize = 256;
/// Maximum number of kinds of calls that are remembered.
const MAX_KINDS: usize = 4096;
/// Maximum number of dimensions of a shape.
const MAX_DIMS: usize = 64;
/// Limit of counters and of times in nanoseconds, far beyond any real one.
const MAX_COUNT: u64 = 1 << 62;

/// Reads the entries of a dump, and keeps their texts, shapes, lines and kinds of calls, each once.
pub(super) struct EntryReader {
    layout: Layout,
    numbers: Texts,
    /// Indexes of kinds by what determines them.
    known: HashMap<Box<[u64]>, usize, WordHashes>,
    /// All kinds.
    pub(super) kinds: Vec<Kind>,
    /// What determines the kind of the current entry.
    words: Vec<u64>,
    texts: HashMap<String, Arc<str>>,
    groups: HashSet<Arc<NamedGroup>>,
    shapes: HashSet<Arc<[u32]>>,
    pub(super) threads: Vec<Arc<str>>,
    thread_at: HashMap<Arc<str>, u32>,
    places: HashMap<(String, u32, String), Arc<Where>>,
    /// Lines by list of frames: a dump contains equal lists once.
    frames: HashMap<u32, Frames, WordHashes>,
}

/// What the frames of an entry show.
#[derive(Clone, Debug, Default)]
struct Frames {
    place: Option<Arc<Where>>,
    is_batched: bool,
}

impl EntryReader {
    pub(super) fn new() -> Self {
        Self {
            layout: Layout::default(),
            numbers: Texts::new(),
            known: HashMap::default(),
            kinds: Vec::new(),
            words: Vec::new(),
            texts: HashMap::new(),
            groups: HashSet::new(),
            shapes: HashSet::new(),
            threads: Vec::new(),
            thread_at: HashMap::new(),
            places: HashMap::new(),
            frames: HashMap::default(),
        }
    }

    pub(super) fn text(&mut self, text: &str) -> Arc<str> {
        let text = cut(text);
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = text.into();
        self.texts.insert(text.to_owned(), Arc::clone(&new));
        new
    }

    pub(super) fn group(
        &mut self,
        name: &str,
        description: &str,
        backend: &str,
    ) -> Arc<NamedGroup> {
        let group = NamedGroup {
            name: self.text(name),
            description: self.text(description),
            backend: self.text(backend),
            is_on_host: is_on_host(backend),
        };
        if let Some(known) = self.groups.get(&group) {
            return Arc::clone(known);
        }
        let new = Arc::new(group);
        self.groups.insert(Arc::clone(&new));
        new
    }

    pub(super) fn thread(&mut self, name: &str) -> u32 {
        let name = self.text(name);
        let new = self.threads.len() as u32;
        let at = *self.thread_at.entry(Arc::clone(&name)).or_insert(new);
        if at == new {
            self.threads.push(name);
        }
        at
    }

    pub(super) fn shape(&mut self, dims: Vec<u32>) -> Arc<[u32]> {
        if let Some(known) = self.shapes.get(&dims[..]) {
            return Arc::clone(known);
        }
        let new: Arc<[u32]> = dims.into();
        self.shapes.insert(Arc::clone(&new));
        new
    }

    /// Sizes and type of the inputs or outputs of a call.
    fn tensors(&mut self, sizes: Option<Node<'_>>, dtypes: Option<Node<'_>>) -> Tensors {
        // A single type may be written without a list.
        let first = dtypes.and_then(|it| it.text().or_else(|| it.items().next()?.text()));
        Tensors {
            sizes: sizes.map(|it| self.sizes(it)).unwrap_or_default(),
            dtype: first.map(dtypes::named).unwrap_or_default(),
        }
    }

    fn sizes(&mut self, shapes: Node<'_>) -> Sizes {
        if !shapes.is_list() {
            return Sizes::default();
        }
        let mut all =
            Sizes { total: Some(0).filter(|_| shapes.items().len() > 0), ..Sizes::default() };
        for shape in shapes.items() {
            let dims: Vec<u32> = shape
                .items()
                .take(MAX_DIMS)
                .filter_map(|dim| u32::try_from(dim.int()?).ok())
                .collect();
            let sum = all.total.zip(elements(&dims));
            all.total = sum.and_then(|(sum, more)| sum.checked_add(more));
            all.tensors += 1;
            all.has_dims |= !dims.is_empty();
            if all.first.is_none() {
                all.first = Some(self.shape(dims));
            }
        }
        all
    }

    /// `None`: it lacks its name, its group or its number.
    pub(super) fn entry(&mut self, entry: Node<'_>) -> Option<Entry<'_>> {
        let fields = self.layout.fields(entry);
        let count = |node: Option<Node<'_>>| node.and_then(Node::int).and_then(counted);
        let seq_of_messages = count(fields.get(Field::P2pSeqId)).unwrap_or(0);
        // Versions before 2.3 count both kinds together.
        let seq = count(fields.get(Field::CollectiveSeqId))
            .or_else(|| count(fields.get(Field::SeqId)))?;
        let mut words = std::mem::take(&mut self.words);
        let is_complete = self.identify(&fields, &mut words);
        let known = self.known.get(&words[..]).copied().filter(|_| is_complete);
        let index = match known {
            Some(kind) => kind,
            None => {
                let kind = self.kind(&fields)?;
                self.kinds.push(kind);
                let at = self.kinds.len() - 1;
                if is_complete {
                    if self.known.len() >= MAX_KINDS {
                        self.known.clear();
                    }
                    self.known.insert(words[..].into(), at);
                }
                at
            }
        };
        let kind = &self.kinds[index];
        self.words = words;
        let int = |node: Option<Node<'_>>| node.and_then(Node::int);
        Some(Entry {
            record: int(fields.get(Field::RecordId))
                .or_else(|| int(fields.get(Field::Id)))
                .unwrap_or(0),
            seq: if kind.is_message && seq_of_messages > 0 { seq_of_messages } else { seq },
            seq_of_messages,
            created: count(fields.get(Field::TimeCreatedNs))
                .or_else(|| count(fields.get(Field::TimeCreatedUs))?.checked_mul(1000))
                .unwrap_or(0),
            completed: count(fields.get(Field::TimeDiscoveredCompletedNs)).unwrap_or(0),
            state: match fields.get(Field::State).and_then(Node::bytes) {
                Some(b"completed") => State::Completed,
                Some(b"started") => State::Started,
                _ => State::Scheduled,
            },
            retired: fields.get(Field::Retired).and_then(Node::bool).unwrap_or(false),
            is_settled: false,
            kind,
        })
    }

    /// Writes what determines the kind of an entry into `words`; `false`: that is too much.
    fn identify(&mut self, fields: &Fields<'_>, words: &mut Vec<u64>) -> bool {
        words.clear();
        for text in [fields.get(Field::ProfilingName), fields.get(Field::ThreadId)] {
            words.push(self.numbers.number(text));
        }
        let mut group = fields.get(Field::ProcessGroup).into_iter().flat_map(Node::items);
        for _ in 0..2 {
            words.push(self.numbers.number(group.next()));
        }
        let number =
            |node: Option<Node<'_>>| node.and_then(Node::int).map_or(u64::MAX, |it| it as u64);
        words.push(number(fields.get(Field::PgId)));
        words.push(number(fields.get(Field::TimeoutMs)));
        let is_p2p = fields.get(Field::IsP2p).and_then(Node::bool);
        words.push(is_p2p.map_or(2, u64::from));
        if let Some(frames) = self.frames(fields.get(Field::Frames)) {
            words.push(frames.place.as_ref().map_or(0, |it| Arc::as_ptr(it).addr() as u64));
            words.push(u64::from(frames.is_batched));
        } else {
            words.extend([0, 0]);
        }
        for sizes in [fields.get(Field::InputSizes), fields.get(Field::OutputSizes)] {
            let shapes = sizes.into_iter().flat_map(Node::items);
            for shape in shapes.take(MAX_WORDS) {
                let dims = shape.items();
                words.push(dims.len() as u64);
                words.extend(dims.take(MAX_DIMS).map(|dim| number(Some(dim))));
            }
            words.push(u64::MAX);
        }
        for dtypes in [fields.get(Field::InputDtypes), fields.get(Field::OutputDtypes)] {
            let first =
                dtypes.and_then(|it| if it.is_list() { it.items().next() } else { Some(it) });
            words.push(self.numbers.number(first));
        }
        words.len() < MAX_WORDS
    }

    fn kind(&mut self, fields: &Fields<'_>) -> Option<Kind> {
        let profiling_name = fields.get(Field::ProfilingName)?.text()?;
        let name = ProfilingName::parse(profiling_name);
        let is_uneven = profiling_name.ends_with("_v");
        let mut group = fields.get(Field::ProcessGroup)?.items();
        let (group, description) = (group.next()?.text()?, group.next());
        let description = description.and_then(Node::text).unwrap_or_default();
        let inputs = self.tensors(fields.get(Field::InputSizes), fields.get(Field::InputDtypes));
        let outputs = self.tensors(fields.get(Field::OutputSizes), fields.get(Field::OutputDtypes));
        let compared = compared(name.op, &inputs.sizes, &outputs.sizes);
        let ends_group = name.ends_group && !inputs.sizes.has_dims;
        let is_message = fields
            .get(Field::IsP2p)
            .and_then(Node::bool)
            .unwrap_or_else(|| name.op.is_point_to_point())
            && !ends_group;
        let frames = self.frames(fields.get(Field::Frames)).cloned().unwrap_or_default();
        let group = self.group(group, description, name.backend);
        // Calls on a device do not hold their threads: their order on the device counts, whether the main
        // thread or one of autograd made them.
        let thread = match fields.get(Field::ThreadId).and_then(Node::text) {
            Some(thread) if group.is_on_host => thread,
            _ => "",
        };
        let mut kind = Kind {
            index: self.kinds.len() as u32,
            pg: fields.get(Field::PgId).and_then(Node::int).unwrap_or(-1),
            group,
            thread: self.thread(thread),
            op: name.op,
            is_known: name.op != Op::Unspecified || name.ends_group,
            ends_group,
            ends: name.ends,
            is_message,
            timeout_ms: fields
                .get(Field::TimeoutMs)
                .and_then(Node::int)
                .and_then(counted)
                .filter(|&ms| ms > 0),
            dtype: match (name.op, inputs.dtype, outputs.dtype) {
                (_, input, DType::Unspecified) => input,
                // The outputs of a rank that is not the destination are placeholders.
                (Op::Gather, input, _) if input != DType::Unspecified => input,
                (_, _, output) => output,
            },
            numel: compared.and_then(|it| it.total),
            shape: compared.filter(|it| it.tensors == 1).and_then(|it| it.first.clone()),
            tensors: if name.op.is_coalesced() { inputs.sizes.tensors } else { 1 },
            pieces: match name.op {
                _ if is_uneven => None,
                Op::AllGather => outputs.sizes.total.zip(inputs.sizes.total),
                Op::ReduceScatter => inputs.sizes.total.zip(outputs.sizes.total),
                _ => None,
            },
            exchanged: match name.op {
                Op::AllToAll => inputs.sizes.total.zip(outputs.sizes.total),
                _ => None,
            },
            place: frames.place,
            is_batched: frames.is_batched,
            signature: 0,
        };
        // Without a random key: hashes of several dumps are compared.
        let mut hasher = DefaultHasher::new();
        let Kind { op, dtype, numel, shape, tensors, .. } = &kind;
        (op, dtype, numel, shape, tensors).hash(&mut hasher);
        kind.signature = hasher.finish();
        Some(kind)
    }

    fn frames(&mut self, frames: Option<Node<'_>>) -> Option<&Frames> {
        let (frames, id) = frames.and_then(|it| Some((it, it.list_id()?)))?;
        let places = &mut self.places;
        Some(self.frames.entry(id).or_insert_with(|| {
            let frame = frames::users_line(frames);
            let place = frame.map(|(file, line, function)| {
                let key = (cut(file).to_owned(), line, cut(function).to_owned());
                let place = places.entry(key).or_insert_with_key(|(file, line, function)| {
                    Arc::new(Where {
                        file: file.as_str().into(),
                        line: *line,
                        function: function.as_str().into(),
                        ..Where::default()
                    })
                });
                Arc::clone(place)
            });
            Frames { place, is_batched: frames::is_batched(frames) }
        }))
    }
}

/// Hashes words, by a key: collisions cannot be planned.
#[derive(Clone, Debug)]
struct WordHashes(u64);

impl Default for WordHashes {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0_u64))
    }
}

impl BuildHasher for WordHashes {
    type Hasher = WordHasher;

    fn build_hasher(&self) -> WordHasher {
        WordHasher { key: self.0 | 1, hash: self.0 }
    }
}

/// Mixes each word with one multiplication: an entry has about 20.
struct WordHasher {
    key: u64,
    hash: u64,
}

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.hash ^ word) * u128::from(self.key);
        self.hash = (product >> 64) as u64 ^ (product as u64).rotate_left(32);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

/// Sizes and type of the inputs or outputs of a call.
struct Tensors {
    sizes: Sizes,
    /// Type of the first one.
    dtype: DType,
}

/// Sizes of tensors.
#[derive(Clone, Default)]
struct Sizes {
    /// Shape of the first one.
    first: Option<Arc<[u32]>>,
    tensors: u32,
    /// Elements of all of them, if there are any.
    total: Option<u64>,
    /// Some tensor has dimensions.
    has_dims: bool,
}

/// A counter or a time; `None`: there is none yet, or it is impossible.
pub(super) fn counted(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|&it| it < MAX_COUNT)
}

fn elements(shape: &[u32]) -> Option<u64> {
    let mut dims = shape.iter();
    dims.try_fold(1_u64, |product, &dim| product.checked_mul(u64::from(dim)))
}

/// The tensors by whose size the calls of different ranks are compared. Gloo records coalesced calls as
/// ordinary ones with several tensors, which it sends as one.
fn compared<'a>(op: Op, inputs: &'a Sizes, outputs: &'a Sizes) -> Option<&'a Sizes> {
    match op {
        Op::Barrier | Op::Unspecified => None,
        Op::ReduceScatter | Op::Scatter => Some(outputs),
        Op::Recv if inputs.tensors == 0 => Some(outputs),
        // PyTorch keeps both sizes equal. If a dump says otherwise, the larger one differs from
        // that of the other ranks.
        Op::AllReduce if outputs.total > inputs.total => Some(outputs),
        _ => Some(inputs),
    }
}

pub(super) fn text<'a>(node: Node<'a>, key: &str) -> Option<&'a str> {
    node.get(key)?.text()
}

/// A list of ranks, usually written as text: "[0, 1]".
pub(super) fn ranks(node: Node<'_>) -> Vec<u32> {
    let accepted = |rank: u32| (rank < MAX_WORLD).then_some(rank);
    if node.is_list() {
        let ranks = node.items().take(MAX_WORLD as usize);
        return ranks.filter_map(|it| accepted(u32::try_from(it.int()?).ok()?)).collect();
    }
    let text = node.text().unwrap_or_default();
    let numbers = text.trim_matches(['[', ']', ' ']).split(',').take(MAX_WORLD as usize);
    numbers.filter_map(|it| accepted(it.trim().parse().ok()?)).collect()
}

fn cut(text: &str) -> &str {
    ddp_doctor_evidence::values::cut(text, MAX_NAME)
}
