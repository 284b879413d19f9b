//! What the rank's program does beside its calls, and what is measured of it.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor::diagnosis::event::{
    Event, GpuIdentity, Guard, OtherBranch, Parameters, PortIdentity, ThreadId,
};
use ddp_doctor_proto::{DType, ExceptionKind, GuardForm, GuardSubject, ParameterFact, Spending};

use super::{Line, Writer};
use crate::support::scenario::values::{device_calls, forward, scheduling, stacks, two_places};
use crate::support::scenario::{gpus, memory};

impl Writer<'_> {
    /// Returns false if the line is not about the program.
    pub(super) fn program_acts(&mut self, line: &Line<'_>) -> Result<bool, String> {
        let &Line { rank, args, .. } = line;
        let process = self.process(rank);
        let at = line.moment();
        let event = match line.verb {
            "step" | "forward" => {
                let step = line.number(0)? as u64;
                self.steps.insert(rank, step);
                let forward = (line.verb == "forward").then(|| forward(&args[1..])).transpose()?;
                Event::Step { process, thread: ThreadId(1), step, forward, at }
            }
            "guard" | "reading" | "called" => self.site(line)?,
            "phase" => Event::PhaseBegin { process, name: line.arg(0)?.into(), at },
            "endphase" => Event::PhaseEnd { process, name: line.arg(0)?.into(), at },
            "input" | "garbage" | "buckets" => {
                let seconds = line.arg(0)?.parse::<f64>().map_err(|e| e.to_string())?;
                Event::Spent {
                    process,
                    thread: ThreadId(1),
                    on: Spending::from_name(line.verb).unwrap_or_default(),
                    took: Duration::from_secs_f64(seconds),
                    place: line.place()?,
                    at,
                }
            }
            "host" => Event::Scheduled { process, sample: scheduling(args)?, at },
            "input-ended" | "last-input" => {
                let last = (line.verb == "last-input").then(|| line.arg(0)).transpose()?;
                let batches =
                    last.map(str::parse::<u64>).transpose().map_err(|it| it.to_string())?;
                Event::InputEnded { process, batches, place: line.place()?, at }
            }
            "raises" => {
                let kind = line.arg(0)?;
                Event::Exception {
                    process,
                    kind: ExceptionKind::from_name(&kind.replace('-', " "))
                        .or((kind == "left-collective").then_some(ExceptionKind::LeftCollective))
                        .ok_or(format!("no such kind of exception: {kind}"))?,
                    text: line.arg(1)?.into(),
                    place: line.place()?,
                    at,
                }
            }
            "layout" | "without-gradient" | "complete" | "ready-twice" | "graph-changed"
            | "outside" | "thawed" | "never-unused" | "used-at" => {
                self.parameters(line, listed(line))?
            }
            "values" => self.parameters(line, values(line)?)?,
            "stack" => Event::Stacks { process, stacks: Arc::new(stacks(at, args)?) },
            "dump" => Event::DeviceCalls { process, calls: Arc::new(device_calls(at, args)?) },
            "memory" => Event::Memory { process, sample: Box::new(memory::sample(args)?), at },
            "gpu" => {
                let sample = Box::new(gpus::sample(args)?);
                Event::GpuSampled { gpu: self.gpu(rank), sample, at }
            }
            "port" => {
                let (name, kind, sample) = gpus::port(args)?;
                let host = self.host(rank).1.into();
                let port = PortIdentity { host, name: name.into(), kind, gpu: None };
                Event::PortSampled { port: Arc::new(port), sample, at }
            }
            "gpu-fault" => Event::GpuFailed { gpu: self.gpu(rank), kind: gpus::fault(args)?, at },
            _ => return Ok(false),
        };
        self.push(rank, line.at, event);
        Ok(true)
    }

    /// The GPU of a rank.
    fn gpu(&self, rank: u32) -> Arc<GpuIdentity> {
        Arc::new(GpuIdentity {
            host: self.host(rank).1.into(),
            uuid: format!("GPU-{rank}").into(),
            name: "NVIDIA H100".into(),
            index: rank,
            ..GpuIdentity::default()
        })
    }

    /// What is known of a line of the program.
    fn site(&self, line: &Line<'_>) -> Result<Event, String> {
        let process = self.process(line.rank);
        let site = |place, caller, guards, reading| Event::Site {
            process,
            place,
            caller,
            guards,
            reading,
        };
        if line.verb == "reading" {
            let place = line.place()?.ok_or("the line is missing")?;
            return Ok(site(place, None, Arc::new([]), true));
        }
        let [first, second] = two_places(line.args)?;
        if line.verb == "called" {
            return Ok(site(first, Some(second), Arc::new([]), false));
        }
        let guard = Guard {
            line: first.line,
            test: line.arg(2)?.into(),
            subject: GuardSubject::from_name(line.arg(1)?).ok_or("unknown subject of a test")?,
            form: GuardForm::from_name(line.arg(0)?).ok_or("unknown form of a guard")?,
            other: other_branch(line.args)?,
            is_while: line.args.iter().any(|it| it == "while"),
        };
        Ok(site(second, None, Arc::new([guard]), false))
    }

    fn parameters(&self, line: &Line<'_>, said: Parameters) -> Result<Event, String> {
        Ok(Event::Parameters {
            process: self.process(line.rank),
            group: self.group(line.rank, "0")?,
            said: Parameters {
                model: 1,
                place: line.place()?,
                step: self.steps.get(&line.rank).copied().unwrap_or(0),
                ..said
            },
            at: line.moment(),
        })
    }
}

/// `other=10-14`, `other-calls=10-14`.
fn other_branch(args: &[String]) -> Result<Option<OtherBranch>, String> {
    let of = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
    let makes_call = of("other-calls").is_some();
    let Some(range) = of("other").or(of("other-calls")) else { return Ok(None) };
    let (first, last) = range.split_once('-').ok_or(format!("no lines: {range}"))?;
    let number = |text: &str| text.parse().ok().ok_or(format!("no line: {text}"));
    Ok(Some(OtherBranch { first: number(first)?, last: number(last)?, makes_call }))
}

/// The parameters that a line names.
fn listed(line: &Line<'_>) -> Parameters {
    let is_name = |arg: &&String| !arg.starts_with('@') && !arg.starts_with("after=");
    let names: String = line.args.iter().filter(is_name).map(|name| format!("{name}\n")).collect();
    Parameters {
        fact: ParameterFact::from_name(&line.verb.replace('-', " ")).unwrap_or_default(),
        first: match line.verb {
            "never-unused" => 1500,
            _ => line.value("after=").unwrap_or(0),
        },
        total: names.lines().count() as u64,
        lines: names.into(),
        ..Parameters::default()
    }
}

/// Elements of a parameter.
fn values(line: &Line<'_>) -> Result<Parameters, String> {
    let values = line.args.get(2..).unwrap_or_default().iter().filter(|arg| !arg.starts_with('@'));
    let bits = |arg: &String| {
        let value = arg.parse().map(f32::to_bits);
        value.map_err(|e| format!("{arg}: {e}"))
    };
    Ok(Parameters {
        fact: ParameterFact::Values,
        first: u32::try_from(line.number(1)?).map_err(|e| e.to_string())?,
        total: u64::try_from(line.number(0)?).map_err(|e| e.to_string())?,
        dtype: DType::Float32,
        values: values.map(bits).collect::<Result<_, _>>()?,
        ..Parameters::default()
    })
}
