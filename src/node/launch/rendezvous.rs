//! Finds where the nodes of a launch meet, so that they share one coordinator without being told.
//!
//! The launcher's own arguments and variables say it: those of torchrun and accelerate, the variables
//! of `torch.distributed` (`MASTER_ADDR`, `MASTER_PORT`), and those of Slurm. The machine on which the
//! nodes meet hosts the coordinator.

use std::ffi::OsString;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use ddp_doctor_host::sys;
use ddp_doctor_transport::loopback;

/// Default port of torchrun and of `torch.distributed`.
const DEFAULT_PORT: u16 = 29500;
/// Distance of the coordinator's port from the launcher's.
const PORT_DISTANCE: u16 = 10_000;
/// Options of torchrun that have no value.
pub(super) const TORCHRUN_FLAGS: [&str; 6] =
    ["standalone", "no-python", "module", "run-path", "use-env", "virtual-local-rank"];
/// Options of `accelerate launch` that have no value.
pub(super) const ACCELERATE_FLAGS: [&str; 18] = [
    "cpu",
    "debug",
    "downcast-bf16",
    "dynamo-use-dynamic",
    "dynamo-use-fullgraph",
    "enable-cpu-affinity",
    "module",
    "multi-gpu",
    "no-python",
    "no-tpu-cluster",
    "quiet",
    "same-network",
    "tpu",
    "tpu-cluster",
    "use-deepspeed",
    "use-fsdp",
    "use-megatron-lm",
    "use-parallelism-config",
];
/// Time limit for the resolution of the host name.
const RESOLUTION: Duration = Duration::from_secs(1);

/// Where the nodes of a launch meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// Host name or address.
    pub host: String,
    /// Port of the launcher.
    pub port: u16,
    /// Rank of this node or process, if known.
    pub rank: Option<u32>,
    /// Id of the launch, if it has one.
    pub id: Option<String>,
}

/// Returns the value of a variable of the environment.
pub type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Rendezvous {
    /// Where the nodes of this command meet; `None`: it runs on one node, or nothing says where.
    #[must_use]
    pub fn from_command(command: &[OsString], variable: Variable<'_>) -> Option<Self> {
        let words: Vec<&str> = command.iter().filter_map(|word| word.to_str()).collect();
        match launcher(&words) {
            Some((Launcher::Torchrun, arguments)) => of_torchrun(arguments, variable),
            Some((Launcher::Accelerate, arguments)) => of_accelerate(arguments),
            None => of_environment(variable),
        }
    }

    /// Port of the coordinator: as far from the launcher's port for every launch, so that launches
    /// with different ports do not collide.
    #[must_use]
    pub const fn coordinator_port(&self) -> u16 {
        if self.port >= 2 * PORT_DISTANCE {
            self.port - PORT_DISTANCE
        } else {
            self.port + PORT_DISTANCE
        }
    }

    /// Address of the coordinator.
    #[must_use]
    pub fn coordinator(&self) -> String {
        let port = self.coordinator_port();
        if self.host.contains(':') {
            format!("[{}]:{port}", self.host)
        } else {
            format!("{}:{port}", self.host)
        }
    }

    /// Id of the job, the same on all nodes.
    #[must_use]
    pub fn job(&self) -> String {
        self.id.clone().unwrap_or_else(|| format!("job-{}", self.port))
    }

    /// Whether this machine hosts the coordinator. May take a second.
    #[must_use]
    pub fn is_here(&self) -> bool {
        if self.rank == Some(0) || loopback(&self.host).is_some() {
            return true;
        }
        // In Kubernetes, a pod starts before the name of its service resolves.
        if is_name_of(&self.host, &sys::host_name()) {
            return true;
        }
        let host = self.host.clone();
        // A socket can be bound to addresses of this machine only.
        let is_own = move || {
            let addresses = (host.as_str(), 0).to_socket_addrs();
            addresses.is_ok_and(|mut all| all.any(|it| TcpListener::bind(it).is_ok()))
        };
        sys::within(RESOLUTION, is_own).unwrap_or(false)
    }
}

/// Whether a name is that of a machine, alone or with a domain (`train-0.train.default.svc`).
fn is_name_of(name: &str, machine: &str) -> bool {
    let (name, machine) = (name.to_ascii_lowercase(), machine.to_ascii_lowercase());
    let is_address = name.parse::<IpAddr>().is_ok();
    let rest = name.strip_prefix(&machine).filter(|_| !machine.is_empty());
    !is_address && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Launcher {
    Torchrun,
    Accelerate,
}

/// The launcher that a command starts, and the words after it.
pub(super) fn launcher<'a>(words: &'a [&'a str]) -> Option<(Launcher, &'a [&'a str])> {
    for (index, &word) in words.iter().enumerate() {
        let name = Path::new(word).file_name()?.to_str()?;
        let rest = words.get(index + 1..).unwrap_or_default();
        let launcher = match name {
            "torchrun" | "torch.distributed.run" | "torch.distributed.launch" => Launcher::Torchrun,
            "accelerate" if rest.first() == Some(&"launch") => {
                return Some((Launcher::Accelerate, rest.get(1..).unwrap_or_default()));
            }
            "accelerate.commands.launch" => Launcher::Accelerate,
            _ => continue,
        };
        return Some((launcher, rest));
    }
    None
}

/// Options of a launcher by name, up to the program that it starts. Names are without leading dashes,
/// and with dashes instead of underscores.
pub(super) fn options(arguments: &[&str], flags: &[&str]) -> Vec<(String, String)> {
    let mut options = Vec::new();
    let mut words = arguments.iter().peekable();
    while let Some(word) = words.next() {
        let Some(name) = word.strip_prefix('-') else {
            break;
        };
        let name = name.trim_start_matches('-');
        if let Some((name, value)) = name.split_once('=') {
            options.push((name.replace('_', "-"), value.to_owned()));
            continue;
        }
        let name = name.replace('_', "-");
        let value = if name == "m" || flags.contains(&name.as_str()) {
            "1".to_owned()
        } else {
            let value = words.next_if(|value| !value.starts_with('-'));
            value.map(|&value| value.to_owned()).unwrap_or_default()
        };
        options.push((name, value));
    }
    options
}

fn of_torchrun(arguments: &[&str], variable: Variable<'_>) -> Option<Rendezvous> {
    let given = options(arguments, &TORCHRUN_FLAGS);
    // torchrun reads every option from a variable, too.
    let option = |name: &str| {
        let found = given.iter().rev().find(|(it, _)| it == name);
        let of_environment = || variable(&format!("PET_{}", name.to_uppercase().replace('-', "_")));
        found.map(|(_, value)| value.clone()).or_else(of_environment)
    };
    let nodes = option("nnodes")?;
    let most = nodes.rsplit(':').next()?.trim().parse::<u32>().ok()?;
    if most < 2 || option("standalone").is_some_and(|it| it == "1") {
        return None;
    }
    let number = |name: &str| option(name)?.trim().parse().ok();
    let endpoint = option("rdzv-endpoint").filter(|it| !it.is_empty());
    let (host, port) = match endpoint {
        Some(endpoint) => host_and_port(&endpoint),
        None => (option("master-addr")?, option("master-port").and_then(|it| it.parse().ok())),
    };
    let id = option("rdzv-id").filter(|it| !it.is_empty() && it != "none");
    Some(Rendezvous { host, port: port.unwrap_or(DEFAULT_PORT), rank: number("node-rank"), id })
}

fn of_accelerate(arguments: &[&str]) -> Option<Rendezvous> {
    let given = options(arguments, &ACCELERATE_FLAGS);
    let option = |name: &str| {
        let found = given.iter().rev().find(|(it, _)| it == name);
        found.map(|(_, value)| value.as_str())
    };
    let machines: u32 = option("num-machines")?.parse().ok()?;
    if machines < 2 {
        return None;
    }
    let port = option("main-process-port").and_then(|it| it.parse().ok());
    Some(Rendezvous {
        host: option("main-process-ip")?.to_owned(),
        port: port.unwrap_or(DEFAULT_PORT),
        rank: option("machine-rank").and_then(|it| it.parse().ok()),
        id: None,
    })
}

/// A command without a known launcher: one process of several, started by Slurm or by something that
/// sets the variables of `torch.distributed`.
fn of_environment(variable: Variable<'_>) -> Option<Rendezvous> {
    let number = |name: &str| variable(name)?.trim().parse::<u32>().ok();
    let job = variable("SLURM_JOB_ID").filter(|_| number("SLURM_PROCID").is_some());
    let tasks = number("SLURM_STEP_NUM_TASKS").or_else(|| number("SLURM_NTASKS"));
    if let (Some(job), Some(2..)) = (&job, tasks) {
        let step = variable("SLURM_STEP_ID").unwrap_or_default();
        let nodes = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
        let first = || first_node(&nodes.iter().find_map(|it| variable(it))?);
        let port = variable("MASTER_PORT").and_then(|it| it.parse().ok());
        // Jobs on the same node should not share a port.
        let from_job = || 10_000 + (job.parse::<u64>().unwrap_or_default() % 10_000) as u16;
        return Some(Rendezvous {
            host: variable("MASTER_ADDR").or_else(first)?,
            port: port.unwrap_or_else(from_job),
            rank: number("SLURM_PROCID"),
            id: Some(format!("slurm-{job}.{step}").trim_end_matches('.').to_owned()),
        });
    }
    let size = number("WORLD_SIZE")?;
    (size > 1).then_some(())?;
    Some(Rendezvous {
        host: variable("MASTER_ADDR")?,
        port: variable("MASTER_PORT")?.parse().ok()?,
        rank: Some(number("RANK")?),
        id: None,
    })
}

fn host_and_port(endpoint: &str) -> (String, Option<u16>) {
    match ddp_doctor_transport::split(endpoint) {
        Some((host, port)) => (host.to_owned(), Some(port)),
        None => {
            let host = endpoint.trim_start_matches('[').trim_end_matches(']');
            (host.to_owned(), None)
        }
    }
}

/// First host of a list as Slurm writes it: `node[01-03,7],login`.
fn first_node(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let Some(range) = rest.strip_prefix('[') else {
        return (!name.is_empty()).then(|| name.to_owned());
    };
    let close = range.find(']')?;
    let first = range.get(..close)?.split([',', '-']).next()?;
    let suffix = range.get(close + 1..)?.split([',', '[']).next().unwrap_or_default();
    Some(format!("{name}{first}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `host:port rank id` of a command line and of variables, each `NAME=value`.
    fn found(command: &str, variables: &[&str]) -> Option<String> {
        let command: Vec<OsString> = command.split_whitespace().map(Into::into).collect();
        let variable = |name: &str| {
            let value = |it: &&str| it.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
            variables.iter().find_map(value)
        };
        let it = Rendezvous::from_command(&command, &variable)?;
        let rank = it.rank.map_or("?".into(), |rank| rank.to_string());
        Some(format!("{}:{} {rank} {}", it.host, it.port, it.job()))
    }

    #[test]
    fn torchrun_says_where_its_nodes_meet() {
        for (command, expected) in [
            (
                "torchrun --nnodes 2 --node-rank 1 --master-addr node0 --master-port 1234 train.py",
                Some("node0:1234 1 job-1234"),
            ),
            (
                "torchrun --nnodes=1:4 --rdzv_id=job7 --rdzv_backend=c10d --rdzv_endpoint=node0:29400 t.py",
                Some("node0:29400 ? job7"),
            ),
            (
                "python -m torch.distributed.run --nnodes 2 --rdzv-endpoint [fd00::1]:29400 t.py",
                Some("fd00::1:29400 ? job-29400"),
            ),
            ("torchrun --nnodes 2 --rdzv-endpoint node0 t.py", Some("node0:29500 ? job-29500")),
            ("/opt/bin/torchrun --nnodes 2 --master_addr a t.py", Some("a:29500 ? job-29500")),
            ("torchrun --standalone --nnodes 2 --master_addr a t.py", None),
            ("torchrun --nproc-per-node 8 t.py --nnodes 2 --master-addr a", None),
            ("torchrun --nnodes 1 --master-addr node0 t.py", None),
            ("torchrun --nnodes many --master-addr node0 t.py", None),
            ("torchrun --nnodes", None),
            ("torchrun --nnodes 2 -m train --master-addr other", None),
            ("python train.py", None),
        ] {
            assert_eq!(found(command, &[]).as_deref(), expected, "{command}");
        }
    }

    #[test]
    fn options_of_torchrun_are_read_from_variables() {
        let variables = [
            "PET_NNODES=2",
            "PET_MASTER_ADDR=job-master-0",
            "PET_NODE_RANK=1",
            "PET_MASTER_PORT=23456",
        ];
        let expected = Some("job-master-0:23456 1 job-23456".to_owned());
        assert_eq!(found("torchrun train.py", &variables), expected);
        assert_eq!(found("torchrun --nnodes 1 train.py", &variables), None);
        assert_eq!(found("python train.py", &variables), None);
    }

    #[test]
    fn accelerate_says_where_its_nodes_meet() {
        let command = "accelerate launch --multi_gpu --num_machines 2 --machine_rank 0 --main_process_ip \
                       10.0.0.1 --main_process_port 5000 train.py";
        assert_eq!(found(command, &[]).as_deref(), Some("10.0.0.1:5000 0 job-5000"));
        assert_eq!(found("accelerate launch --num_machines 1 train.py", &[]), None);
        assert_eq!(found("accelerate config", &[]), None);
    }

    #[test]
    fn variables_of_a_process_say_where_its_peers_are() {
        let plain = ["MASTER_ADDR=node0", "MASTER_PORT=29500", "WORLD_SIZE=4", "RANK=3"];
        assert_eq!(found("python t.py", &plain).as_deref(), Some("node0:29500 3 job-29500"));
        assert_eq!(found("python t.py", &plain[..3]), None, "not a rank");
        let single = ["MASTER_ADDR=node0", "MASTER_PORT=29500", "WORLD_SIZE=1", "RANK=0"];
        assert_eq!(found("python t.py", &single), None);
        let slurm = [
            "SLURM_JOB_ID=4711",
            "SLURM_STEP_ID=0",
            "SLURM_PROCID=5",
            "SLURM_NTASKS=8",
            "SLURM_JOB_NODELIST=gpu[07-08]",
        ];
        assert_eq!(found("python t.py", &slurm).as_deref(), Some("gpu07:14711 5 slurm-4711.0"));
        assert_eq!(found("python t.py", &slurm[..3]), None, "one task");
        let mut named = slurm.to_vec();
        named.extend(["MASTER_ADDR=gpu07", "MASTER_PORT=12345"]);
        assert_eq!(found("python t.py", &named).as_deref(), Some("gpu07:12345 5 slurm-4711.0"));
    }

    #[test]
    fn first_node_of_a_slurm_list_is_expanded() {
        for (list, first) in [
            ("node1", Some("node1")),
            ("node1,node2", Some("node1")),
            ("gpu[007-010,12]", Some("gpu007")),
            ("rack[1,3]n[2-4]", Some("rack1n")),
            ("a[2]-ib,b", Some("a2-ib")),
            ("", None),
            ("a[1", None),
        ] {
            assert_eq!(first_node(list).as_deref(), first, "{list}");
        }
    }

    #[test]
    fn host_of_the_coordinator_is_recognized() {
        let at =
            |host: &str, rank| Rendezvous { host: host.into(), port: DEFAULT_PORT, rank, id: None };
        assert!(at("127.0.0.1", None).is_here());
        assert!(at(&sys::host_name(), None).is_here());
        assert!(at("192.0.2.1", Some(0)).is_here());
        assert!(!at("192.0.2.1", Some(1)).is_here());
        assert!(!at("no-such-host.invalid", None).is_here());
    }

    #[test]
    fn name_with_a_domain_is_that_of_the_machine() {
        for (name, machine, is_same) in [
            ("train-0", "train-0", true),
            ("train-0.train", "train-0", true),
            ("Train-0.train.default.svc.cluster.local", "train-0", true),
            ("train-0.train", "train-0.train", true),
            ("train-01.train", "train-0", false),
            ("train-0", "train-0.train", false),
            ("10.0.0.1", "10", false),
            ("train-0", "", false),
        ] {
            assert_eq!(is_name_of(name, machine), is_same, "{name} on {machine}");
        }
    }

    #[test]
    fn port_of_the_coordinator_stays_in_range() {
        let at = |host: &str, port| Rendezvous { host: host.into(), port, rank: None, id: None };
        for (port, coordinator) in
            [(29500, 19500), (20000, 10000), (19999, 29999), (1, 10001), (65535, 55535)]
        {
            assert_eq!(at("a", port).coordinator(), format!("a:{coordinator}"));
        }
        assert_eq!(at("fd00::1", 29500).coordinator(), "[fd00::1]:19500");
    }
}
