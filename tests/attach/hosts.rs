//! `attach` on two hosts at once, which are network and process namespaces.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use ddp_doctor_proto::report::{Report, Verdict};

use super::follow::stages;
use crate::support::hosts::{Hosts, Process};
use crate::support::process::{eventually, program, run_to_end};
use crate::support::pytorch_jobs::venv;
use crate::support::report::{hosts_of, leading, read_report};

/// Starts the rank of this host, as `mpirun` would, and attaches to it once the file `attach` exists: with a token, and
/// without one.
const HOST: &str = r#"
python "$0" & rank=$!
while [ ! -e attach ]; do sleep 0.1; done
DDP_DOCTOR_TOKEN=the-token-of-these-tests "$1" attach --report together.json
echo "status $?"
"$1" attach --report alone.json
touch attached
while [ ! -e end ]; do sleep 0.1; done
kill -KILL $rank
"#;

/// The rank of each host, which waits or sleeps, and what attaches to it.
fn start(hosts: &Hosts, venv: &std::path::Path) -> [Process; 2] {
    [0, 1].map(|host| {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = hosts.command(host, "unshare");
        command
            .args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", HOST])
            .arg(stages())
            .arg(program(&hosts.dir(host)).get_program())
            .env("PATH", format!("{}:{path}", venv.join("bin").display()))
            .env("JOB_DIR", hosts.dir(host))
            .env("OMP_NUM_THREADS", "1")
            .env("OMPI_COMM_WORLD_RANK", host.to_string())
            .env("OMPI_COMM_WORLD_SIZE", "2")
            .env("OMPI_COMM_WORLD_LOCAL_RANK", "0")
            .env("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
            .env("MASTER_ADDR", "host-0")
            .env("MASTER_PORT", "29500")
            .env("DDP_DOCTOR_TIME_SCALE", "0.1");
        hosts.start(host, "host", command)
    })
}

fn run_dir(hosts: &Hosts, host: u32) -> PathBuf {
    let mut runs: Vec<PathBuf> = fs::read_dir(hosts.dir(host).join("ddp-doctor-runs"))
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.remove(0)
}

#[track_caller]
fn assert_whole(report: &Report) {
    let finding = leading(report);
    assert_eq!((report.verdict, finding.code.as_str()), (Verdict::Hang, "DD204"), "{report:#?}");
    assert_eq!((&finding.ranks.root[..], &finding.ranks.victims[..]), (&[1][..], &[0][..]));
    assert_eq!(report.evidence.ranks_reporting, 2);
    assert_eq!(hosts_of(report).len(), 2, "{report:#?}");
}

#[test]
fn attaches_on_two_hosts_give_one_report() {
    let (Some(venv), Some(hosts)) = (venv(), Hosts::new(2)) else {
        return;
    };
    let fifo = hosts.dir(1).join("go");
    assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
    let mut processes = start(&hosts, venv);
    let is_stuck = |host: u32| hosts.dir(host).join(format!("stuck-{host}")).exists();
    eventually("the job hangs", || is_stuck(0) && is_stuck(1));
    // A wait is reported after 2 s.
    thread::sleep(Duration::from_secs(3));
    for host in [0, 1] {
        fs::write(hosts.dir(host).join("attach"), "").unwrap();
    }
    // The end of one rank would end the other.
    eventually("both hosts are read", || {
        [0, 1].iter().all(|&it| hosts.dir(it).join("attached").exists())
    });
    for host in [0, 1] {
        fs::write(hosts.dir(host).join("end"), "").unwrap();
    }
    for process in &mut processes {
        process.end();
    }
    // Printed if the test fails.
    processes.iter().for_each(|it| println!("{}{}", it.stdout(), it.stderr()));
    for (host, process) in (0..).zip(&processes) {
        assert_whole(&read_report(&hosts.dir(host).join("together.json")));
        let text = process.stdout();
        assert!(text.contains("status 1"), "{text}");
        assert!(text.contains("error[DD204]"), "{text}");
        let alone = read_report(&hosts.dir(host).join("alone.json"));
        assert_eq!(alone.evidence.ranks_reporting, 1);
        let line = format!("rank {} is not on this host. For one report, run", 1 - host);
        assert!(
            process.stderr().to_lowercase().contains(&line.to_lowercase()),
            "{}",
            process.stderr()
        );
    }
    let mut analyze = program(&hosts.dir(0));
    analyze.args(["analyze", "--format", "json"]).args([0, 1].map(|host| run_dir(&hosts, host)));
    assert_whole(&serde_json::from_str(&run_to_end(analyze).stdout).unwrap());
}
