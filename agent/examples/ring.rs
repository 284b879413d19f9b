//! A training loop that records its collectives: processes in a ring that reduce their gradients
//! over sockets.
//!
//! ```console
//! $ cargo build -p ddp-doctor-agent --example ring
//! $ ddp-doctor run -- target/debug/examples/ring           # healthy: prints only its own sums
//! $ ddp-doctor run -- target/debug/examples/ring shape     # rank 1 uses a smaller tensor
//! $ ddp-doctor run -- target/debug/examples/ring panic     # rank 1 panics
//! ```
//!
//! Without `run`, with a running `ddp-doctor coordinator`:
//!
//! ```console
//! $ DDP_DOCTOR_COORDINATOR=127.0.0.1:7077 target/debug/examples/ring shape
//! ```

use std::env;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_agent::{Agent, DType, Group, Op, ReduceOp};

/// Number of ranks.
const RANKS: u32 = 3;
/// Number of training steps.
const STEPS: u32 = 6;
/// The step with the fault.
const FAULTY_STEP: u32 = 4;
/// Number of model parameters.
const PARAMETERS: usize = 16;
/// Timeout for connecting to the next rank.
const PATIENCE: Duration = Duration::from_secs(20);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let bug = env::args().nth(1).unwrap_or_default();
    let result = match env::var("RANK") {
        Ok(rank) => rank.parse().map_err(Into::into).and_then(|rank| train(rank, &bug)),
        Err(_) => launch(&bug),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            // A failed write to standard error is ignored.
            drop(writeln!(io::stderr(), "{error}"));
            ExitCode::FAILURE
        }
    }
}

/// Starts the ranks and passes them the ports on which they listen.
fn launch(bug: &str) -> Result<ExitCode> {
    let ports: Vec<String> = (0..RANKS)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<io::Result<Vec<_>>>()?
        .iter()
        .map(|it| it.local_addr().map(|address| address.port().to_string()))
        .collect::<io::Result<_>>()?;
    let ranks = (0..RANKS).map(|rank| {
        Command::new(env::current_exe()?)
            .arg(bug)
            .env("RANK", rank.to_string())
            .env("PORTS", ports.join(","))
            .spawn()
    });
    let mut failed = false;
    for mut rank in ranks.collect::<io::Result<Vec<_>>>()? {
        failed |= !rank.wait()?.success();
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The training loop of one rank.
#[expect(clippy::panic, reason = "one of the bugs")]
fn train(rank: u32, bug: &str) -> Result<ExitCode> {
    let agent = Agent::builder()
        .rank(rank)
        .world_size(RANKS)
        .local_rank(rank)
        .start()
        // The job also runs without a black box.
        .unwrap_or_else(|_| Agent::without_box());
    agent.report_panics();
    let members: Vec<u32> = (0..RANKS).collect();
    let mut ring = Ring {
        world: agent.group("world", "all ranks", "sockets", &members),
        neighbors: Neighbors::meet(rank)?,
        agent,
    };
    let mut weights = [0.0; PARAMETERS];
    for step in 1..=STEPS {
        ring.agent.step();
        thread::sleep(Duration::from_millis(20));
        let is_faulty = step == FAULTY_STEP && rank == 1;
        if is_faulty && bug == "panic" {
            panic!("loss is NaN"); // BUG panic
        }
        let mut gradients = weights.map(|weight| (rank + step) as f32 + weight);
        if is_faulty && bug == "shape" {
            ring.all_reduce(&mut gradients[1..])?; // BUG shape: rank 1
        } else {
            ring.all_reduce(&mut gradients)?; // BUG shape: the others
        }
        for (weight, gradient) in weights.iter_mut().zip(gradients) {
            *weight -= 0.1 * gradient;
        }
    }
    ring.agent.input_ended();
    let sum: f32 = weights.iter().sum();
    // A failed write to standard output is ignored.
    drop(writeln!(io::stdout(), "rank {rank}: sum of the weights {sum:?}"));
    ring.agent.exit(0, "main returned");
    Ok(ExitCode::SUCCESS)
}

/// A rank with its connections to the neighbors.
struct Ring {
    agent: Agent,
    world: Group,
    neighbors: Neighbors,
}

impl Ring {
    /// Sums the values of all ranks. The recorded source line is the caller's.
    #[track_caller]
    fn all_reduce(&mut self, values: &mut [f32]) -> io::Result<()> {
        let call = self
            .agent
            .call(&self.world, Op::AllReduce)
            .dtype(DType::Float32)
            .shape(&[values.len() as u64])
            .reduce_op(ReduceOp::Sum)
            .issue();
        let mut passing = values.to_vec();
        for _ in 1..RANKS {
            self.neighbors.pass_on(&mut passing)?;
            for (sum, value) in values.iter_mut().zip(&passing) {
                *sum += value;
            }
        }
        // The call has returned; if `?` returns early above, the guard is dropped there.
        drop(call);
        Ok(())
    }
}

/// Connections to the next and from the previous rank.
struct Neighbors {
    next: TcpStream,
    previous: TcpStream,
}

impl Neighbors {
    fn meet(rank: u32) -> Result<Self> {
        let list = env::var("PORTS")?;
        let ports: Vec<u16> =
            list.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?;
        let address = |rank: u32| {
            let port = ports[(rank % RANKS) as usize];
            SocketAddr::from((Ipv4Addr::LOCALHOST, port))
        };
        let listener = TcpListener::bind(address(rank))?;
        let started = Instant::now();
        let next = loop {
            match TcpStream::connect(address(rank + 1)) {
                Ok(next) => break next,
                Err(error) if started.elapsed() > PATIENCE => return Err(error.into()),
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        };
        Ok(Self { next, previous: listener.accept()?.0 })
    }

    /// Sends values to the next rank and replaces them by those of the previous one. Blocks if the
    /// previous rank sends fewer values.
    fn pass_on(&mut self, values: &mut [f32]) -> io::Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        self.next.write_all(&bytes)?;
        let mut bytes = bytes;
        self.previous.read_exact(&mut bytes)?;
        for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(4)) {
            *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }
}
