//! How many nodes and ranks a command starts, as far as its launcher says so.

use std::ffi::OsString;

use super::rendezvous::{ACCELERATE_FLAGS, Launcher, TORCHRUN_FLAGS, Variable, launcher, options};

/// How many nodes and ranks a command starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Minimum and maximum number of times that the command is started: once per node by a launcher,
    /// once per rank by Slurm and the like.
    pub commands: (u32, u32),
    /// Ranks that each command starts; `None`: unknown.
    pub ranks: Option<u32>,
    /// Whether the nodes meet by a rendezvous of torchrun that compares their clocks and passes on
    /// their host names (`--rdzv-backend c10d`).
    pub is_dynamic: bool,
    /// Whether the address where the nodes meet is given.
    pub has_address: bool,
}

impl Shape {
    /// The shape of a command.
    #[must_use]
    pub fn from_command(command: &[OsString], variable: Variable<'_>) -> Self {
        let words: Vec<&str> = command.iter().filter_map(|word| word.to_str()).collect();
        match launcher(&words) {
            Some((Launcher::Torchrun, arguments)) => of_torchrun(arguments, variable),
            Some((Launcher::Accelerate, arguments)) => of_accelerate(arguments),
            None => of_environment(variable),
        }
    }

    /// Maximum number of ranks of the job, if known.
    #[must_use]
    pub fn world_size(&self) -> Option<u32> {
        self.ranks.map(|ranks| ranks.saturating_mul(self.commands.1))
    }
}

fn of_torchrun(arguments: &[&str], variable: Variable<'_>) -> Shape {
    let given = options(arguments, &TORCHRUN_FLAGS);
    let option = |name: &str| {
        let found = given.iter().rev().find(|(it, _)| it == name);
        let of_environment = || variable(&format!("PET_{}", name.to_uppercase().replace('-', "_")));
        found.map(|(_, value)| value.clone()).or_else(of_environment)
    };
    let is_standalone = option("standalone").is_some_and(|it| it == "1");
    let nodes = option("nnodes").filter(|_| !is_standalone);
    let commands = nodes.and_then(|nodes| {
        let (least, most) = nodes.split_once(':').unwrap_or((&nodes, &nodes));
        Some((least.trim().parse().ok()?, most.trim().parse().ok()?))
    });
    let ranks = match option("nproc-per-node") {
        Some(count) => count.trim().parse().ok(),
        None => Some(1),
    };
    let backend = option("rdzv-backend").unwrap_or_default();
    Shape {
        commands: commands.unwrap_or((1, 1)),
        ranks,
        is_dynamic: !backend.is_empty() && backend != "static",
        has_address: option("rdzv-endpoint").is_some_and(|it| !it.is_empty())
            || option("master-addr").is_some(),
    }
}

fn of_accelerate(arguments: &[&str]) -> Shape {
    let given = options(arguments, &ACCELERATE_FLAGS);
    let option = |name: &str| {
        let found = given.iter().rev().find(|(it, _)| it == name);
        found.map(|(_, value)| value.as_str())
    };
    let number = |name: &str| option(name)?.parse::<u32>().ok();
    let machines = number("num-machines").unwrap_or(1).max(1);
    let backend = option("rdzv-backend").unwrap_or_default();
    Shape {
        commands: (machines, machines),
        ranks: number("num-processes").map(|it| it / machines),
        is_dynamic: !backend.is_empty() && backend != "static",
        has_address: option("main-process-ip").is_some(),
    }
}

/// A command without a known launcher: one process of several, as Slurm or the variables of
/// `torch.distributed` say.
fn of_environment(variable: Variable<'_>) -> Shape {
    let number = |name: &str| variable(name)?.trim().parse::<u32>().ok();
    let is_task = variable("SLURM_JOB_ID").is_some() && number("SLURM_PROCID").is_some();
    let tasks = number("SLURM_STEP_NUM_TASKS")
        .or_else(|| number("SLURM_NTASKS"))
        .filter(|&tasks| is_task && tasks > 1);
    let size = tasks
        .or_else(|| number("WORLD_SIZE").filter(|_| number("RANK").is_some()))
        .unwrap_or(1)
        .max(1);
    Shape {
        commands: (size, size),
        ranks: (size > 1).then_some(1),
        is_dynamic: false,
        has_address: tasks.is_some() || variable("MASTER_ADDR").is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(command: &str, variables: &[(&str, &str)]) -> ((u32, u32), Option<u32>, bool, bool) {
        let command: Vec<OsString> = command.split_whitespace().map(Into::into).collect();
        let variable = |name: &str| {
            let found = variables.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let it = Shape::from_command(&command, &variable);
        (it.commands, it.ranks, it.is_dynamic, it.has_address)
    }

    #[test]
    fn launchers_say_how_many_nodes_and_ranks_they_start() {
        for (command, expected) in [
            (
                "torchrun --nnodes 2 --nproc-per-node 8 --master-addr a t.py",
                ((2, 2), Some(8), false, true),
            ),
            (
                "torchrun --nnodes=1:4 --nproc_per_node=auto --rdzv-backend c10d --rdzv-endpoint a t.py",
                ((1, 4), None, true, true),
            ),
            ("torchrun --nnodes 2 t.py", ((2, 2), Some(1), false, false)),
            ("torchrun --nnodes many t.py", ((1, 1), Some(1), false, false)),
            ("torchrun --standalone --nnodes 2 t.py", ((1, 1), Some(1), false, false)),
            (
                "accelerate launch --num_machines 2 --num_processes 16 --main_process_ip a t.py",
                ((2, 2), Some(8), false, true),
            ),
            ("python t.py", ((1, 1), None, false, false)),
        ] {
            assert_eq!(shape(command, &[]), expected, "{command}");
        }
    }

    #[test]
    fn variables_say_how_many_ranks_there_are() {
        let plain = [("WORLD_SIZE", "4"), ("RANK", "1"), ("MASTER_ADDR", "a")];
        assert_eq!(shape("", &plain), ((4, 4), Some(1), false, true));
        let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")];
        assert_eq!(shape("python t.py", &slurm).0, (2, 2));
        let command = "torchrun --nproc-per-node 8 t.py";
        let node = [("PET_NNODES", "2"), ("PET_MASTER_ADDR", "a")];
        assert_eq!(shape(command, &node), ((2, 2), Some(8), false, true));
    }
}
