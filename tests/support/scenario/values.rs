//! Values in the lines of a timeline: ranks, places, stacks, samples and tensors.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor::diagnosis::event::{
    Blocked, ChildProcess, DeviceCall, DeviceCalls, DeviceGroup, Forward, SchedulingSample, Stacks,
    ThreadStack,
};
use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{BlockKind, DType, Op};

/// Splits a line into words; a quoted text is one word.
pub(super) fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    for (i, part) in line.split('"').enumerate() {
        if i % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    if line.matches('"').count() % 2 == 1 { Err("a quote is open".into()) } else { Ok(words) }
}

/// Parses ranks: `*`, `0`, `0,2`, `0-3`.
pub(super) fn ranks(text: &str, world: u32) -> Result<Vec<u32>, String> {
    if text == "*" {
        return Ok((0..world).collect());
    }
    let number = |text: &str| text.parse::<u32>().ok().ok_or(format!("no rank: {text:?}"));
    let mut ranks = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => ranks.extend(number(first)?..=number(last)?),
            None => ranks.push(number(part)?),
        }
    }
    match ranks.iter().find(|&&rank| rank >= world) {
        Some(rank) => Err(format!("rank {rank} is not in a world of {world}")),
        None => Ok(ranks),
    }
}

/// What a dump shows: `starts` if it records them, and for each group `NAME:FIRST-LAST:OP[:SEQ,SEQ][:SECONDS]` with the
/// incomplete calls, those that have begun with `+`, and the time of the latest completion.
pub(super) fn device_calls(at: Timestamp, args: &[String]) -> Result<DeviceCalls, String> {
    let (starts, groups): (Vec<&String>, Vec<&String>) =
        args.iter().partition(|word| *word == "starts");
    let groups = groups.into_iter().map(|word| device_group(word));
    Ok(DeviceCalls {
        at,
        records_starts: !starts.is_empty(),
        groups: groups.collect::<Result<_, _>>()?,
    })
}

fn device_group(word: &str) -> Result<DeviceGroup, String> {
    let wrong = || format!("no group of a dump: {word:?}");
    let mut parts = word.split(':');
    let name = parts.next().ok_or_else(wrong)?;
    let (first, last) = parts.next().and_then(|it| it.split_once('-')).ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<u64>().ok().ok_or_else(wrong);
    let last_op = parts.next().and_then(Op::from_name).ok_or_else(wrong)?;
    let open = parts.next().unwrap_or_default().split(',').filter(|it| !it.is_empty());
    let call = |word: &str| {
        let (seq, has_started) = word.strip_suffix('+').map_or((word, false), |it| (it, true));
        Ok(DeviceCall { seq: number(seq)?, op: last_op, has_started })
    };
    let completed = parts.next().map(|it| it.parse::<f64>().ok().ok_or_else(wrong));
    Ok(DeviceGroup {
        name: name.into(),
        first: number(first)?,
        last: number(last)?,
        last_op,
        completed_at: completed.transpose()?.map(super::seconds),
        incomplete: open.map(call).collect::<Result<_, String>>()?,
    })
}

/// Stacks of a process: threads separated by `|`, the main thread first.
pub(super) fn stacks(at: Timestamp, args: &[String]) -> Result<Stacks, String> {
    let (children, args): (Vec<String>, Vec<String>) =
        args.iter().cloned().partition(|word| word.starts_with("child="));
    let (locks, args): (Vec<String>, Vec<String>) =
        args.into_iter().partition(|word| word.starts_with("holds="));
    if let [word] = &args[..]
        && let Some(why) = word.strip_prefix("unread=")
    {
        return Ok(Stacks { at, trouble: why.replace('_', " ").into(), ..Stacks::default() });
    }
    let held_locks = locks.iter().map(|word| word["holds=".len()..].into()).collect();
    let children = children.iter().map(|word| child(word)).collect::<Result<_, _>>()?;
    let threads: Result<Vec<ThreadStack>, String> = args
        .split(|word| word == "|")
        .enumerate()
        .map(|(i, words)| thread_stack(i as u32 + 1, words))
        .collect();
    Ok(Stacks { at, threads: threads?, children, held_locks, ..Stacks::default() })
}

/// Parses `child=PID/STATE/WAIT_CHANNEL/SECONDS[/ENDS-IN]`, a process below the rank.
fn child(word: &str) -> Result<ChildProcess, String> {
    let fields: Vec<&str> = word["child=".len()..].split('/').collect();
    let [pid, state, channel, seconds, ref ends_in @ ..] = fields[..] else {
        return Err(format!("not four fields or five: {word:?}"));
    };
    let number = |text: &str| text.parse::<f64>().ok().ok_or(format!("no number: {word:?}"));
    Ok(ChildProcess {
        pid: number(pid)? as u32,
        state: state.chars().next(),
        wait_channel: (!channel.is_empty()).then(|| channel.into()),
        cpu_time: Duration::from_secs_f64(number(seconds)?),
        ends_in: ends_in.first().map(|it| number(it)).transpose()?.map(Duration::from_secs_f64),
        ..ChildProcess::default()
    })
}

/// Parses a thread: `S futex_wait cpu=1.5 gil @innermost.py:3:get @train.py:9:main`; `circle=TEXT`: it waits for a process that waits for it.
fn thread_stack(tid: u32, words: &[String]) -> Result<ThreadStack, String> {
    let mut thread = ThreadStack {
        tid,
        name: "python".into(),
        holds_gil: Some(false),
        ..ThreadStack::default()
    };
    for word in words {
        if let Some(place) = word.strip_prefix('@') {
            let (place, function) =
                place.rsplit_once(':').ok_or(format!("no function: {word:?}"))?;
            let (file, line) = place.rsplit_once(':').ok_or(format!("no line: {word:?}"))?;
            thread.python.push(Where {
                file: file.into(),
                line: line.parse().ok().ok_or(format!("no line: {word:?}"))?,
                function: function.into(),
                ..Where::default()
            });
        } else if let Some((file, function)) = word.split_once('!') {
            thread.native.push(Where {
                file: file.into(),
                line: 0,
                function: function.into(),
                ..Where::default()
            });
        } else if let Some(cpu) = word.strip_prefix("cpu=") {
            let cpu = cpu.parse().ok().ok_or(format!("no seconds: {word:?}"))?;
            thread.cpu_time = Some(Duration::from_secs_f64(cpu));
        } else if let Some(asleep) = word.strip_prefix("asleep=") {
            let asleep = asleep.parse().ok().ok_or(format!("no seconds: {word:?}"))?;
            thread.asleep = Some(Duration::from_secs_f64(asleep));
        } else if let Some(left) = word.strip_prefix("ends-in=") {
            let left = left.parse().ok().ok_or(format!("no seconds: {word:?}"))?;
            let ends_in = Some(Duration::from_secs_f64(left));
            let kind = BlockKind::Sleep;
            thread.blocked_on = Some(Arc::new(Blocked { kind, ends_in, ..Blocked::default() }));
        } else if let Some(what) = word.strip_prefix("circle=") {
            let (kind, what) = (BlockKind::Pipe, what.replace('_', " ").into());
            let blocked = Blocked { kind, what, is_circle: true, ..Blocked::default() };
            thread.blocked_on = Some(Arc::new(blocked));
        } else if word == "gil" {
            thread.holds_gil = Some(true);
        } else if let [state] = word.as_bytes() {
            thread.state = Some(char::from(*state));
        } else {
            thread.wait_channel = Some(word.as_str().into());
        }
    }
    Ok(thread)
}

/// Parses `@FILE:LINE @FILE:LINE`; other words are ignored.
pub(super) fn two_places(args: &[String]) -> Result<[Arc<Where>; 2], String> {
    let places: Vec<Arc<Where>> =
        args.iter().filter_map(|arg| arg.strip_prefix('@')).map(place).collect::<Result<_, _>>()?;
    places.try_into().ok().ok_or("not two lines".into())
}

/// Parses `FILE:LINE`, or `FILE:LINE>FILE:LINE:FUNCTION>…` with frames of installed packages.
pub(super) fn place(text: &str) -> Result<Arc<Where>, String> {
    let mut frames = text.split('>');
    let users = frames.next().unwrap_or_default();
    let mut place = frame(users, "train")?;
    for inner in frames {
        let (line, function) = inner.rsplit_once(':').ok_or(format!("no function: {inner:?}"))?;
        place.via.push(frame(line, function)?);
    }
    Ok(Arc::new(place))
}

pub(super) fn frame(text: &str, function: &str) -> Result<Where, String> {
    let (file, line) = text.rsplit_once(':').ok_or(format!("no line: {text:?}"))?;
    Ok(Where {
        file: file.into(),
        line: line.parse().ok().ok_or(format!("no line: {text:?}"))?,
        function: function.into(),
        ..Where::default()
    })
}

/// Parses `ran=300 queued=600 throttled=0 faults=0 on=0-3`.
pub(super) fn scheduling(args: &[String]) -> Result<SchedulingSample, String> {
    let mut sample = SchedulingSample::default();
    for arg in args {
        let (name, value) = arg.split_once('=').ok_or(format!("unknown word {arg:?}"))?;
        let number = || value.parse().ok().ok_or(format!("no number: {arg}"));
        match name {
            "ran" => sample.ran_permille = Some(number()?),
            "queued" => sample.queued_permille = Some(number()?),
            "throttled" => sample.throttled_permille = Some(number()?),
            "faults" => sample.major_faults = Some(number()?),
            "threads" => sample.threads_queued_permille = Some(number()?),
            "stolen" => sample.stolen_permille = Some(number()?),
            "cpu" => sample.cpu_pressure = Some(number()?),
            "memory" => sample.memory_pressure = Some(number()?),
            "on" => sample.processors = value.into(),
            _ => return Err(format!("unknown value of a host: {arg:?}")),
        }
    }
    Ok(sample)
}

/// Parses `[@PATH] [batch=N] [repeated] [no-sync]`.
pub(super) fn forward(args: &[String]) -> Result<Forward, String> {
    let mut forward = Forward::default();
    for arg in args {
        match (arg.strip_prefix('@'), arg.strip_prefix("batch=")) {
            (Some(path), _) => forward.path = Some(path.into()),
            (_, Some(batch)) => {
                let batch = batch.parse().ok();
                forward.batches = Some(batch.ok_or(format!("no number: {arg}"))?);
            }
            _ if arg == "repeated" => forward.repeated = true,
            _ if arg == "no-sync" => forward.unsynchronized = true,
            _ if arg == "updated" => forward.updated = Some(true),
            _ if arg == "not-updated" => forward.updated = Some(false),
            _ => return Err(format!("unknown word of a forward: {arg:?}")),
        }
    }
    Ok(forward)
}

/// Parses a data type and a shape: `f32[2,3]`.
pub(super) fn tensor(text: &str) -> Option<(DType, Vec<u32>)> {
    let (dtype, dims) = text.strip_suffix(']')?.split_once('[')?;
    let dtype = match dtype {
        "f16" => DType::Float16,
        "bf16" => DType::BFloat16,
        "f32" => DType::Float32,
        "f64" => DType::Float64,
        "i32" => DType::Int32,
        "i64" => DType::Int64,
        "u8" => DType::UInt8,
        _ => return None,
    };
    let dims: Option<Vec<u32>> =
        dims.split(',').filter(|dim| !dim.is_empty()).map(|dim| dim.parse().ok()).collect();
    Some((dtype, dims?))
}
