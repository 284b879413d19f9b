//! `ddp-doctor check` on hosts that are network namespaces: healthy ones, and one fault at a time.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::support::compiled_programs::clock;
use crate::support::coordinator::Coordinator;
use crate::support::hosts::{Hosts, Process};
use crate::support::process::{
    IdleConnections, PROGRAM, eventually, program, run_to_end, without_own_variables, write_script,
};

const TOKEN: &str = "the-token-of-these-tests";
const OTHER_TOKEN: &str = "another-token-than-that";
/// Port of the master.
const MASTER: u16 = 29500;
/// Runs a command with other names of hosts.
const WITH_NAMES: &str = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
/// Drops connections to all TCP ports but that of the master, without tracking connections.
const MASTER_PORT_ONLY: &str = "add table inet f; add chain inet f in { type filter hook input priority 0; }; \
     add rule inet f in iifname eth0 tcp dport != 29500 tcp flags & (syn | ack) == syn drop";
/// Drops everything.
const NOTHING: &str = "add table inet f; add chain inet f in { type filter hook input priority 0; }; \
     add rule inet f in iifname eth0 meta l4proto tcp drop";

/// Adds the check of a launch of this many nodes to the command of a host.
fn launch(command: &mut Command, host: u32, nodes: u32, options: &[&str]) {
    command
        .env("DDP_DOCTOR_TOKEN", TOKEN)
        .env_remove("GLOO_SOCKET_IFNAME")
        .env_remove("NCCL_SOCKET_IFNAME")
        .env("DDP_DOCTOR_WAIT", "60")
        .arg("check")
        .args(options)
        .args(["--", "torchrun", "--nnodes", &nodes.to_string()])
        .args(["--master-addr", "host-0", "--node-rank", &host.to_string()])
        .arg("train.py");
}

fn check(hosts: &Hosts, host: u32, nodes: u32, options: &[&str]) -> Command {
    let mut command = hosts.program(host);
    launch(&mut command, host, nodes, options);
    command
}

/// Runs the check of a launch on all its hosts; the commands may be changed before.
fn run(hosts: &Hosts, nodes: u32, mut change: impl FnMut(u32, &mut Command)) -> Vec<Process> {
    let checks = (0..nodes).map(|host| {
        let mut command = check(hosts, host, nodes, &[]);
        change(host, &mut command);
        hosts.start(host, "check", command)
    });
    checks.collect()
}

#[track_caller]
fn assert_statuses(checks: &mut [Process], expected: &[i32]) {
    let statuses: Vec<Option<i32>> = checks.iter_mut().map(Process::end).collect();
    let texts = || checks.iter().map(|it| it.stdout() + &it.stderr());
    let expected: Vec<Option<i32>> = expected.iter().copied().map(Some).collect();
    assert_eq!(statuses, expected, "{}", texts().collect::<String>());
}

/// The output without its line breaks.
fn text(check: &Process) -> String {
    let text = check.stdout();
    text.split_whitespace().collect::<Vec<&str>>().join(" ")
}

#[track_caller]
fn assert_says(check: &Process, part: &str) {
    let text = text(check);
    assert!(text.contains(part), "{part}\n{}{}", check.stdout(), check.stderr());
}

#[test]
fn healthy_hosts_pass() {
    let Some(hosts) = Hosts::new(3) else { return };
    let mut checks = run(&hosts, 3, |_, _| ());
    assert_statuses(&mut checks, &[0, 0, 0]);
    for check in &checks {
        assert_says(check, "PASS nodes: 3 nodes arrived: host-0, host-1, host-2.");
        assert_says(check, "PASS reachability: All nodes reach each other");
        assert_says(check, "PASS clock: Clocks differ by at most");
        assert_says(check, "PASS interfaces: Gloo uses eth0 (by the name of the host).");
        let text = text(check);
        assert!(!text.contains("CRITICAL") && !text.contains("UNKNOWN"), "{text}");
        assert_eq!(check.stdout(), checks[0].stdout());
    }
}

#[test]
fn firewall_that_admits_the_master_port_only_is_critical() {
    let Some(hosts) = Hosts::new(2) else { return };
    if !hosts.filters(0, MASTER_PORT_ONLY) {
        return;
    }
    let mut checks = run(&hosts, 2, |_, _| ());
    assert_statuses(&mut checks, &[1, 1]);
    for check in &checks {
        assert_says(check, "CRITICAL reachability: host-1 → host-0: no answer from 10.77.0.1:");
        assert_says(
            check,
            "an ephemeral port like those that NCCL and Gloo use, although port 29500 is reachable",
        );
        assert_says(check, "WARNING reachability: host-1 → host-0: no answer from host-0:19500");
        let text = text(check);
        assert!(!text.contains("host-0 → host-1"), "{text}");
    }
}

#[test]
fn firewall_between_guests_names_the_direction() {
    let Some(hosts) = Hosts::new(3) else { return };
    if !hosts.filters(2, MASTER_PORT_ONLY) {
        return;
    }
    let mut checks = run(&hosts, 3, |_, _| ());
    assert_statuses(&mut checks, &[1, 1, 1]);
    assert_says(
        &checks[1],
        "CRITICAL reachability: host-0, host-1 → host-2: no answer from 10.77.0.3:",
    );
    let text = text(&checks[1]);
    assert!(!text.contains("host-2 → "), "{text}");
}

#[test]
fn master_that_cannot_be_reached_is_critical() {
    let Some(hosts) = Hosts::new(2) else { return };
    if !hosts.filters(0, NOTHING) {
        return;
    }
    let mut checks = run(&hosts, 2, |_, command| {
        command.env("DDP_DOCTOR_WAIT", "4");
    });
    assert_statuses(&mut checks, &[4, 1]);
    assert_says(
        &checks[0],
        "UNKNOWN nodes: 1 of 2 nodes arrived within 4 s; missing: node rank 1.",
    );
    assert_says(
        &checks[1],
        "CRITICAL reachability: This node cannot reach the rendezvous host host-0",
    );
}

#[test]
fn node_that_does_not_come_is_named() {
    let Some(hosts) = Hosts::new(3) else { return };
    let mut checks: Vec<Process> = [0, 2]
        .map(|host| {
            let mut command = check(&hosts, host, 3, &[]);
            command.env("DDP_DOCTOR_WAIT", "5");
            hosts.start(host, "check", command)
        })
        .into();
    assert_statuses(&mut checks, &[4, 4]);
    for check in &checks {
        assert_says(check, "UNKNOWN nodes: 2 of 3 nodes arrived within 5 s; missing: node rank 1.");
        assert_says(check, "PASS reachability");
    }
}

#[test]
fn node_with_another_token_is_not_judged() {
    let Some(hosts) = Hosts::new(2) else { return };
    let mut checks = run(&hosts, 2, |host, command| {
        command.env("DDP_DOCTOR_WAIT", "6");
        if host == 1 {
            command.env("DDP_DOCTOR_TOKEN", OTHER_TOKEN);
        }
    });
    assert_statuses(&mut checks, &[4, 4]);
    assert_says(&checks[0], "Not checked, because they have another token: 10.77.0.2.");
    assert_says(
        &checks[1],
        "UNKNOWN nodes: The other nodes are not checked: host-0 has another token.",
    );
    for check in &checks {
        let text = check.stdout() + &check.stderr();
        assert!(!text.contains(TOKEN) && !text.contains(OTHER_TOKEN), "{text}");
    }
}

#[test]
fn idle_connections_exclude_no_node() {
    let Some(hosts) = Hosts::new(2) else { return };
    let mut first = hosts.start(0, "check", check(&hosts, 0, 2, &[]));
    let ports = [MASTER, MASTER - 10_000];
    let _idle = IdleConnections::open(hosts.command(1, "perl"), "host-0", 700, &ports);
    let mut command = check(&hosts, 1, 2, &[]);
    // Less than the time limit of a handshake, after which those that wait end anyway.
    command.env("DDP_DOCTOR_WAIT", "4");
    let mut second = hosts.start(1, "check", command);
    for check in [&mut second, &mut first] {
        assert_eq!(check.end(), Some(0), "{}{}", check.stdout(), check.stderr());
        assert_says(check, "PASS nodes: 2 nodes arrived: host-0, host-1.");
    }
}

#[test]
fn node_without_a_token_is_checked_alone() {
    let Some(hosts) = Hosts::new(1) else { return };
    let mut command = check(&hosts, 0, 2, &[]);
    command.env_remove("DDP_DOCTOR_TOKEN");
    let mut check = hosts.start(0, "check", command);
    assert_eq!(check.end(), Some(4), "{}{}", check.stdout(), check.stderr());
    assert_says(&check, "UNKNOWN nodes: The other nodes are not checked");
    assert_says(&check, "fix: Run export DDP_DOCTOR_TOKEN=$(openssl rand -hex 16) once");
    assert_says(&check, "PASS shared-memory");
}

#[test]
fn interface_that_does_not_exist_is_critical() {
    let Some(hosts) = Hosts::new(2) else { return };
    let mut checks = run(&hosts, 2, |host, command| {
        if host == 1 {
            command.env("GLOO_SOCKET_IFNAME", "nope0");
        }
    });
    assert_statuses(&mut checks, &[1, 1]);
    for check in &checks {
        assert_says(
            check,
            "CRITICAL interfaces: host-1: GLOO_SOCKET_IFNAME=nope0: no interface of this node",
        );
    }
}

/// A check whose host knows the hosts by other addresses.
fn check_with_names(hosts: &Hosts, host: u32, nodes: u32, names: &str) -> Command {
    let file = hosts.dir(host).join("names");
    fs::write(&file, names).unwrap();
    let mut command = hosts.command(host, "sh");
    command.args(["-c", WITH_NAMES]).arg(file).arg(PROGRAM);
    launch(&mut command, host, nodes, &[]);
    command
}

#[test]
fn name_of_the_master_that_does_not_resolve_is_critical() {
    let Some(hosts) = Hosts::new(2) else { return };
    let names = "127.0.0.1 localhost\n10.77.0.2 host-1\n";
    let mut checks = run(&hosts, 2, |host, command| {
        if host == 1 {
            *command = check_with_names(&hosts, 1, 2, names);
        }
        command.env("DDP_DOCTOR_WAIT", "4");
    });
    assert_statuses(&mut checks, &[4, 1]);
    assert_says(&checks[0], "missing: node rank 1");
    assert_says(&checks[1], "This node cannot resolve the rendezvous host host-0");
}

#[test]
fn name_that_stands_for_another_address_is_reported() {
    let Some(hosts) = Hosts::new(3) else { return };
    let names = "127.0.0.1 localhost\nfd77::1 host-0\n10.77.0.2 host-1\n127.0.1.1 host-2\n";
    let mut checks = run(&hosts, 3, |host, command| {
        if host == 2 {
            *command = check_with_names(&hosts, 2, 3, names);
        }
    });
    assert_statuses(&mut checks, &[1, 1, 1]);
    for check in &checks {
        assert_says(
            check,
            "WARNING name-resolution: host-0, the rendezvous host, resolves to 10.77.0.1 on host-1 and to \
             fd77::1 on host-2.",
        );
        assert_says(
            check,
            "CRITICAL name-resolution: host-2: host-2 resolves to the loopback address 127.0.1.1",
        );
    }
}

#[test]
fn versions_and_settings_that_differ_are_warnings() {
    let Some(hosts) = Hosts::new(2) else { return };
    let mut checks: Vec<Process> = (0..2)
        .map(|host| {
            let python = hosts.dir(host).join("python");
            let answer = format!("#!/bin/sh\nprintf 'torch\\t2.{host}.0\\n'\n");
            write_script(&python, &answer);
            let mut command = hosts.program(host);
            command
                .env("DDP_DOCTOR_TOKEN", TOKEN)
                .args(["check", "--format", "json", "--fail-on", "warning", "--"])
                .arg(python)
                .args(["-m", "torch.distributed.run", "--nnodes", "2"])
                .args(["--master-addr", "host-0", "--node-rank", &host.to_string(), "train.py"]);
            if host == 1 {
                command.env("NCCL_ALGO", "Ring");
            }
            hosts.start(host, "check", command)
        })
        .collect();
    assert_statuses(&mut checks, &[1, 1]);
    for check in &checks {
        let document: Value = serde_json::from_str(&check.stdout()).unwrap();
        assert_eq!(document["schema"], "ddp-doctor/check");
        assert_eq!(document["level"], "WARNING", "{document:#}");
        assert_eq!(document["nodes"], serde_json::json!(["host-0", "host-1"]));
        let lines = document["lines"].as_array().unwrap();
        let has = |check: &str, reason: &str| {
            lines.iter().any(|it| {
                it["check"] == check && it["reason"].as_str().unwrap().starts_with(reason)
            })
        };
        assert!(
            has("versions", "PyTorch differs: 2.0.0 on host-0, 2.1.0 on host-1"),
            "{document:#}"
        );
        assert!(
            has("settings", "NCCL_ALGO differs: Ring on host-1, not set on host-0"),
            "{document:#}"
        );
    }
}

#[test]
fn port_of_the_master_in_use_is_critical() {
    let Some(hosts) = Hosts::new(2) else { return };
    let mut server = hosts.command(0, "python3");
    server.args(["-u", "-m", "http.server", &MASTER.to_string()]);
    let server = hosts.start(0, "server", server);
    eventually("the server listens", || server.stdout().contains("Serving"));
    let mut checks = run(&hosts, 2, |_, _| ());
    assert_statuses(&mut checks, &[1, 1]);
    for check in &checks {
        assert_says(
            check,
            "CRITICAL reachability: Port 29500 of host-0, the port of the master, is in use.",
        );
    }
}

/// Peers without the token that connect to both ports and send nothing, half of a greeting, or noise.
const FLOOD: &str = "
import os, socket, time
connections = []
print('flooding', flush=True)
for number in range(400):
    try:
        port = 29500 if number % 2 else 19500
        connection = socket.create_connection(('host-0', port), timeout=5)
        if number % 3:
            connection.sendall(os.urandom(64) if number % 3 == 1 else b'\\x16\\x03\\x01\\x40\\x00')
        connections.append(connection)
    except OSError:
        time.sleep(0.05)
print('flooded', len(connections), flush=True)
time.sleep(1000)
";

#[test]
fn peers_without_the_token_disturb_no_check() {
    let Some(hosts) = Hosts::new(3) else { return };
    let first = hosts.start(0, "check", check(&hosts, 0, 2, &[]));
    let mut flood = hosts.command(2, "python3");
    flood.args(["-c", FLOOD]);
    let flood = hosts.start(2, "flood", flood);
    eventually("the flood is there", || flood.stdout().contains("flooded"));
    let printed = flood.stdout();
    let count = printed.rsplit(' ').next().map(str::trim);
    assert_ne!(count, Some("0"), "nothing was connected");
    let second = hosts.start(1, "check", check(&hosts, 1, 2, &[]));
    let mut checks = [first, second];
    assert_statuses(&mut checks, &[0, 0]);
    assert_says(&checks[1], "PASS nodes: 2 nodes arrived: host-0, host-1.");
}

#[test]
fn tasks_of_slurm_on_two_hosts_are_two_nodes() {
    let Some(hosts) = Hosts::new(2) else { return };
    let mut checks: Vec<Process> = (0..4)
        .map(|task: u32| {
            let mut command = hosts.program(task / 2);
            command
                .env("DDP_DOCTOR_TOKEN", TOKEN)
                .env("SLURM_JOB_ID", "4711")
                .env("SLURM_STEP_ID", "0")
                .env("SLURM_NTASKS", "4")
                .env("SLURM_PROCID", task.to_string())
                .env("SLURM_STEP_NODELIST", "host-[0-1]")
                .args(["check", "--wait", "60"]);
            hosts.start(task / 2, &format!("check{task}"), command)
        })
        .collect();
    assert_statuses(&mut checks, &[0, 0, 0, 0]);
    for check in &checks {
        assert_says(check, "PASS nodes: 4 commands arrived: host-0, host-1.");
        assert_says(check, "PASS reachability");
    }
}

#[test]
fn shared_memory_of_one_machine_must_suffice() {
    let Some(hosts) = Hosts::new(1) else { return };
    for (size, status, line) in [
        ("4m", 1, "CRITICAL shared-memory: /dev/shm has 4.0 MiB free of 4.0 MiB, less than"),
        ("512m", 0, "WARNING shared-memory: /dev/shm has 512 MiB free"),
        ("2g", 0, "PASS shared-memory: /dev/shm has 2.0 GiB free"),
    ] {
        let mount = "mount -t tmpfs -o size=$0 tmpfs /dev/shm && exec \"$1\" check";
        let mut command = hosts.command(0, "sh");
        command.args(["-c", mount, size, PROGRAM]);
        let mut check = hosts.start(0, size, command);
        assert_eq!(check.end(), Some(status), "{}{}", check.stdout(), check.stderr());
        assert_says(&check, line);
        assert!(!text(&check).contains("nodes:"), "{}", check.stdout());
    }
}

#[test]
fn coordinator_of_the_job_is_checked() {
    let coordinator = Coordinator::start_remote(TOKEN);
    let scratch = tempfile::tempdir().unwrap();
    let check = |port: u16, token: Option<&str>| {
        let mut command = program(scratch.path());
        command.envs(token.map(|it| ("DDP_DOCTOR_TOKEN", it)));
        command.args(["check", "--coordinator", &format!("0.0.0.0:{port}")]);
        let finished = run_to_end(command);
        let words: Vec<&str> = finished.stdout.split_whitespace().collect();
        words.join(" ")
    };
    let port = coordinator.port();
    let address = format!("0.0.0.0:{port}");
    let text = check(port, Some(TOKEN));
    let pass = format!("PASS coordinator: The coordinator at {address} answers.");
    assert!(text.contains(&pass), "{text}");
    let free = TcpListener::bind("0.0.0.0:0").unwrap();
    let closed = free.local_addr().unwrap().port();
    drop(free);
    for (port, token, reason) in [
        (port, Some(OTHER_TOKEN), "the coordinator has another token"),
        (port, None, "needs a token"),
        (closed, Some(TOKEN), "no coordinator answers at"),
    ] {
        let text = check(port, token);
        assert!(text.contains("WARNING coordinator: "), "{text}");
        assert!(text.contains(reason), "{reason}: {text}");
        assert!(text.contains("this node is diagnosed alone"), "{text}");
    }
}

/// Runs a command with little shared memory and few descriptors.
const CONTAINED: &str = "mount -t tmpfs -o size=8m tmpfs /dev/shm && ulimit -n 128 && exec \"$@\"";

#[test]
fn limits_of_a_container_are_critical() {
    let scratch = tempfile::tempdir().unwrap();
    let check = |variables: &[(&str, &str)]| {
        let mut command = Command::new("unshare");
        without_own_variables(&mut command);
        command
            .current_dir(scratch.path())
            .envs(variables.iter().copied())
            .args(["--mount", "sh", "-c", CONTAINED, "sh", PROGRAM, "check"])
            .args(["--", "torchrun", "--nproc-per-node", "2", "train.py"]);
        run_to_end(command)
    };
    let finished = check(&[("container", "oci")]);
    if finished.stdout.is_empty() {
        println!("skipped: no mount namespaces here: {}", finished.stderr);
        return;
    }
    assert_eq!(finished.status, Some(1), "{finished}");
    let words = |text: &str| text.split_whitespace().collect::<Vec<&str>>().join(" ");
    let text = words(&finished.stdout);
    for part in [
        "CRITICAL shared-memory: /dev/shm has 8.0 MiB free of 8.0 MiB, less than 16 MiB for each rank",
        "CRITICAL file-limit: ",
        "INFO container: The process runs in ",
    ] {
        assert!(text.contains(part), "{part}: {finished}");
    }
    // The fix is that of the container.
    let pod = check(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]);
    let text = words(&pod.stdout);
    assert!(text.contains("fix: Mount a volume emptyDir"), "{pod}");
}

#[test]
fn clocks_of_hosts_that_differ_are_reported() {
    let Some(hosts) = Hosts::new(2) else { return };
    let mut checks = run(&hosts, 2, |host, command| {
        if host == 1 {
            command.env("LD_PRELOAD", clock()).env("CLOCK_AHEAD", "90");
        }
    });
    assert_statuses(&mut checks, &[0, 0]);
    for check in &checks {
        assert_says(check, "WARNING clock: ");
        assert_says(check, "host-1");
        assert_says(check, "90.0 s");
    }
}
