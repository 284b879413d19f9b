//! Networks, clocks, names and interfaces that are not as they should be.

use std::path::Path;
use std::process::Command;

use ddp_doctor_proto::report::{Confidence, Report, Verdict};

use super::{
    Job, KILL, MASTER, TOKEN, assert_hang, assert_killed, codes, coordinator, hosts_of, linked,
    notices, reports_on,
};
use crate::support::hosts::{Hosts, Process};
use crate::support::process::{eventually, program};
use crate::support::pytorch_jobs::{variant, venv};
use crate::support::report::{leading, report_in};

/// Forwards a port to another and delays what it forwards by 0.15 s in each direction. Every tenth
/// piece takes 1 s, as after a lost packet.
const SLOW: &str = "
import asyncio, itertools

async def forward(reader, writer):
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()
    async def read():
        for number in itertools.count(1):
            data = await reader.read(65536)
            delay = 1.0 if number % 10 == 0 else 0.15
            queue.put_nowait((loop.time() + delay, data))
            if not data:
                return
    task = asyncio.create_task(read())
    while True:
        at, data = await queue.get()
        await asyncio.sleep(max(0, at - loop.time()))
        if not data:
            writer.close()
            return
        writer.write(data)
        await writer.drain()

async def accept(reader, writer):
    there, here = await asyncio.open_connection('host-2', 7077)
    await asyncio.gather(forward(reader, here), forward(there, writer), return_exceptions=True)

async def main():
    async with await asyncio.start_server(accept, '0.0.0.0', 7078) as server:
        print('ready', flush=True)
        await server.serve_forever()

asyncio.run(main())
";

#[test]
fn hang_is_diagnosed_over_a_slow_network() {
    let Some(hosts) = Hosts::new(3) else { return };
    let _coordinator = coordinator(&hosts, 2);
    let mut slow = hosts.command(2, "python3");
    slow.args(["-c", SLOW]);
    let slow = hosts.start(2, "slow", slow);
    eventually("the proxy listens", || slow.stdout() == "ready\n");
    // Later than the first exchanges of times.
    let job = Job::hanging(hosts, 500);
    let _ranks = ["host-2:7077", "host-2:7078"]
        .iter()
        .zip(0..)
        .map(|(address, rank)| linked(&job, rank, address, TOKEN))
        .collect::<Vec<_>>();
    // More than the delay, and less than what DD903 reports, which one slow exchange may exceed.
    let known = 100.0..500.0;
    eventually("the hang and the delay are known", || {
        reports_on(&job.hosts, 2).iter().any(|it| {
            it.verdict == Verdict::Hang && known.contains(&it.evidence.clock_uncertainty_ms)
        })
    });
    let report = reports_on(&job.hosts, 2).pop().unwrap();
    assert_hang(&report);
}

#[test]
fn clocks_that_differ_by_minutes_are_corrected_and_reported() {
    let Some(hosts) = Hosts::new(2) else { return };
    let mut job = Job::hanging(hosts, 20);
    job.ahead = Some((1, 180));
    let mut runs = [0, 1].map(|rank| job.run(rank, Some(TOKEN), &KILL));
    let statuses = runs.each_mut().map(Process::end);
    assert_killed(statuses, &runs);
    let report = job.report(0).unwrap();
    assert_eq!((report.verdict, hosts_of(&report).len()), (Verdict::Hang, 2));
    let skew = report.findings.iter().find(|it| it.code == "DD903").unwrap();
    assert!(skew.summary.contains("host-1 is 180.0 s ahead"), "{}", skew.summary);
    // A time that is not corrected would make one rank wait for minutes.
    let finding = report.findings.iter().find(|it| it.code == "DD103").unwrap();
    assert_eq!(finding.confidence, Confidence::Proved);
    let waits = finding.per_rank.iter().filter_map(|it| it.waited_ms);
    assert!(waits.max().unwrap() < 60_000, "{finding:#?}");
    assert!(finding.latency_ms < 10_000, "{finding:#?}");
}

#[test]
fn coordinator_whose_name_does_not_resolve_is_named() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::healthy(hosts, 300);
    let options = ["--coordinator", "no-such-host.invalid:7077"];
    let mut runs = [job.run(0, Some(TOKEN), &[]), job.run(1, Some(TOKEN), &options)];
    job.assert_same_result(&mut runs);
    let notices = notices(&runs[1]);
    let failed = "no coordinator answers at no-such-host.invalid:7077";
    let has = |text: &str| notices.iter().filter(|it| it.contains(text)).count();
    assert_eq!(has(failed), 1, "{notices:?}");
    // What is repeated to the diagnosis on this node is in order.
    assert_eq!(has("invalid events"), 0, "{notices:?}");
}

#[test]
fn address_that_no_host_has_is_named() {
    let Some(hosts) = Hosts::new(2) else { return };
    let address = "10.77.0.99:7077";
    let mut listen = hosts.program(0);
    listen.env("DDP_DOCTOR_TOKEN", TOKEN).args(["coordinator", "--listen", address]);
    let mut coordinator = hosts.start(0, "coordinator", listen);
    assert_eq!(coordinator.end(), Some(3));
    let text = coordinator.stderr();
    assert!(text.contains("cannot listen on 10.77.0.99:7077"), "{text}");

    let job = Job::healthy(hosts, 300);
    let options = ["--coordinator", address];
    let mut runs = [job.run(0, Some(TOKEN), &[]), job.run(1, Some(TOKEN), &options)];
    job.assert_same_result(&mut runs);
    let notices = notices(&runs[1]);
    let failed = "no coordinator answers at 10.77.0.99:7077";
    let lines = notices.iter().filter(|it| it.contains(failed));
    assert_eq!(lines.count(), 1, "{notices:?}");
    let report = job.report(1).unwrap();
    assert_eq!(hosts_of(&report), ["host-1"], "{report:#?}");
}

#[test]
fn run_directories_of_all_hosts_give_the_whole() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::hanging(hosts, 20);
    let options = [&KILL[..], &["--run-dir", "run"]].concat();
    let mut runs = [0, 1].map(|rank| job.run(rank, Some(TOKEN), &options));
    assert_killed(runs.each_mut().map(Process::end), &runs);
    let analyze = |hosts: &[u32]| {
        let mut command = program(&job.hosts.dir(0));
        command.args(["analyze", "--format", "json"]);
        command.args(hosts.iter().map(|&it| job.hosts.dir(it).join("run")));
        let output = command.output().unwrap();
        serde_json::from_slice::<Report>(&output.stdout).unwrap()
    };
    assert_hang(&analyze(&[0, 1]));
    assert_hang(&analyze(&[1, 0]));
    let alone = analyze(&[1]);
    assert_eq!(hosts_of(&alone), ["host-1"], "{alone:#?}");
    assert!(codes(&alone).contains(&"DD901"), "{alone:#?}");
}

/// A rank of a Python program under `run` on one of two hosts.
fn python_rank(hosts: &Hosts, venv: &Path, host: u32, program: &Path) -> Command {
    let mut command = hosts.program(host);
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{}:{path}", venv.join("bin").display()))
        .env("OMP_NUM_THREADS", "1")
        .env("DDP_DOCTOR_TOKEN", TOKEN)
        .env("RANK", host.to_string())
        .env("WORLD_SIZE", "2")
        .env("MASTER_ADDR", "host-0")
        .env("MASTER_PORT", MASTER.to_string())
        .args(["run", "--report", "report.json"])
        .args(KILL)
        .args(["--", "python"])
        .arg(program);
    command
}

/// Runs a rank of a healthy program on each of two hosts, which use these interfaces. The hosts have eth0, and
/// eth1, which is down. Returns the exit statuses and the first node's report.
fn with_interfaces(names: [&str; 2]) -> Option<([Option<i32>; 2], Report)> {
    let (venv, hosts) = (venv()?, Hosts::new(2)?);
    let program = variant("healthy/op_mismatch.py");
    let mut runs = [0, 1].map(|host| {
        hosts.add_interface(host, "eth1");
        let mut command = python_rank(&hosts, venv, host, &program);
        command.env("GLOO_SOCKET_IFNAME", names[host as usize]);
        hosts.start(host, "run", command)
    });
    let statuses = runs.each_mut().map(Process::end);
    Some((statuses, report_in(&hosts.dir(0).join("report.json"))?))
}

#[test]
fn interface_that_leads_to_its_own_host_is_reported() {
    let Some((statuses, report)) = with_interfaces(["lo", "lo"]) else {
        return;
    };
    assert!(!statuses.contains(&Some(0)), "{statuses:?}");
    let finding = leading(&report);
    let root = finding.ranks.root.as_slice();
    assert_eq!((finding.code.as_str(), root), ("DD308", &[0, 1][..]), "{report:#?}");
    assert!(finding.confidence >= Confidence::Supported);
}

#[test]
fn second_interface_that_is_down_is_reported() {
    let Some((statuses, report)) = with_interfaces(["eth0", "eth1"]) else {
        return;
    };
    assert!(!statuses.contains(&Some(0)), "{statuses:?}");
    let finding = leading(&report);
    assert_eq!(
        (finding.code.as_str(), &finding.ranks.root[..]),
        ("DD308", &[1][..]),
        "{report:#?}"
    );
    assert_eq!(finding.confidence, Confidence::Proved);
    let summary = &finding.summary;
    assert!(summary.contains("eth1"), "{summary}");
    assert!(summary.contains("down on host-1"), "{summary}");
}

#[test]
fn interface_that_reaches_the_other_host_is_no_finding() {
    let Some((statuses, report)) = with_interfaces(["eth0", "eth0"]) else {
        return;
    };
    assert_eq!(statuses, [Some(0), Some(0)], "{report:#?}");
    assert!(report.findings.is_empty(), "{report:#?}");
}
