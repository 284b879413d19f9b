//! One rank of a demonstration: a training loop without a model.

use std::io;
use std::time::Duration;

use ddp_doctor_agent::{Agent, DType, Group, Op, ReduceOp};

use super::fabric::Connection;

/// Number of steps of a training run.
const STEPS: u32 = 8;
/// Step in which the fault occurs.
const FAULTY_STEP: u32 = 5;
/// Computation time of a step.
const COMPUTE: Duration = Duration::from_millis(30);
/// Shape of the gradients.
const GRADIENTS: [u64; 2] = [64, 32];

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A rank has fewer batches.
    EarlyExit,
    /// Ranks use two groups in different order.
    GroupOrder,
    /// A rank calls another collective.
    OpMismatch,
    /// A rank aborts.
    RankDied,
}

/// State of a rank.
struct Rank {
    rank: u32,
    agent: Agent,
    fabric: Connection,
    data: Group,
    model: Group,
}

/// Trains to the end, or to the fault. A rank that loses its fabric exits with status 1, without a
/// message.
pub(super) fn train(rank: u32, world_size: u32, fault: Option<Fault>) -> anyhow::Result<u8> {
    match train_all(rank, world_size, fault) {
        Err(error) if error.is::<io::Error>() => Ok(1),
        result => result.map(|()| 0),
    }
}

fn train_all(rank: u32, world_size: u32, fault: Option<Fault>) -> anyhow::Result<()> {
    let agent = Agent::builder().rank(rank).world_size(world_size).local_rank(rank).start()?;
    let members: Vec<u32> = (0..world_size).collect();
    let mut this = Rank {
        rank,
        fabric: Connection::inherited()?,
        data: agent.group("data", "data parallel", "demo", &members),
        model: agent.group("model", "model parallel", "demo", &members),
        agent,
    };
    let batches = match (fault, rank) {
        (Some(Fault::EarlyExit), 1) => FAULTY_STEP - 1,
        _ => STEPS,
    };
    for step in 1..=batches {
        this.agent.step();
        std::thread::sleep(COMPUTE);
        match fault.filter(|_| step == FAULTY_STEP) {
            None | Some(Fault::EarlyExit) => this.healthy_step()?,
            Some(Fault::GroupOrder) => this.step_in_another_order()?,
            Some(Fault::OpMismatch) => this.step_with_a_barrier()?,
            Some(Fault::RankDied) => this.step_that_aborts()?,
        }
    }
    this.agent.input_ended();
    this.agent.exit(0, "main returned");
    Ok(())
}

impl Rank {
    fn healthy_step(&mut self) -> anyhow::Result<()> {
        self.reduce_activations()?;
        self.reduce_gradients()
    }

    fn step_in_another_order(&mut self) -> anyhow::Result<()> {
        if self.rank < 2 {
            self.reduce_activations()?;
            self.reduce_gradients()
        } else {
            self.reduce_gradients()?;
            self.reduce_activations()
        }
    }

    fn step_with_a_barrier(&mut self) -> anyhow::Result<()> {
        self.reduce_activations()?;
        if self.rank == 2 { self.wait_for_all() } else { self.reduce_gradients() }
    }

    fn step_that_aborts(&mut self) -> anyhow::Result<()> {
        self.reduce_activations()?;
        if self.rank == 3 {
            std::process::abort();
        }
        self.reduce_gradients()
    }

    fn reduce_activations(&mut self) -> anyhow::Result<()> {
        let call = self.agent.call(&self.model, Op::AllReduce).dtype(DType::Float32);
        let _call = call.shape(&[GRADIENTS[1]]).reduce_op(ReduceOp::Sum).issue();
        self.fabric.collective("model", "all_reduce", 1)?;
        Ok(())
    }

    fn reduce_gradients(&mut self) -> anyhow::Result<()> {
        let call = self.agent.call(&self.data, Op::AllReduce).dtype(DType::Float32);
        let _call = call.shape(&GRADIENTS).reduce_op(ReduceOp::Avg).issue();
        self.fabric.collective("data", "all_reduce", 1)?;
        Ok(())
    }

    fn wait_for_all(&mut self) -> anyhow::Result<()> {
        let _call = self.agent.call(&self.data, Op::Barrier).issue();
        self.fabric.collective("data", "barrier", 0)?;
        Ok(())
    }
}
