//! Hosts, networks and coordinators that fail, and peers that flood.

use std::fs;

use ddp_doctor_proto::report::Verdict;

use super::{
    Job, OTHER_TOKEN, TOKEN, assert_blames_no_rank, codes, coordinator, hosts_of, linked,
    reports_on,
};
use crate::support::hosts::Hosts;
use crate::support::process::eventually;

#[test]
fn linked_ranks_are_shown_to_viewers_on_other_hosts() {
    let Some(hosts) = Hosts::new(4) else { return };
    let _coordinator = coordinator(&hosts, 2);
    let job = Job::hanging(hosts, 20);
    let _ranks = [0, 1].map(|rank| linked(&job, rank, "host-2:7077", TOKEN));

    let view = |words: &[&str], token: Option<&str>| {
        let mut command = job.hosts.program(3);
        command.envs(token.map(|token| ("DDP_DOCTOR_TOKEN", token)));
        command.env("ALL_PROXY", "http://127.0.0.1:9");
        let output = command.args(words).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let address = "host-2:7077";
    eventually("the hang is found", || view(&["status", address], Some(TOKEN)).1.contains("DD103"));
    for words in [&["watch", "--once", address][..], &["status", address], &["dump", address]] {
        let (_, shown, errors) = view(words, Some(TOKEN));
        assert!(shown.contains("host-1"), "{words:?}: {shown}{errors}");
        let (status, shown, errors) = view(words, Some(OTHER_TOKEN));
        assert!(status != Some(0) && shown.is_empty(), "{shown}");
        assert!(errors.contains("another token"), "{words:?}: {errors}");
        let (status, shown, errors) = view(words, None);
        assert!(status != Some(0) && shown.is_empty(), "{shown}");
        assert!(errors.contains("DDP_DOCTOR_TOKEN"), "{words:?}: {errors}");
    }
}

#[test]
fn host_that_is_gone_is_silent_and_not_dead() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::healthy(hosts, 100_000);
    let _runs = [0, 1].map(|rank| job.run(rank, Some(TOKEN), &[]));
    job.until(0, |report| report.ranks.len() == 2);
    job.hosts.connect(1, false);
    job.hosts.kill_all(1);
    let report = job.until(0, |report| codes(report).contains(&"DD904"));
    let finding = report.findings.iter().find(|it| it.code == "DD904");
    assert!(finding.unwrap().summary.contains("rank 1 on host host-1"));
    // Its end was not observed, and no other rank is the cause.
    assert_blames_no_rank(&report);
}

#[test]
fn partition_between_hosts_heals() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::held(hosts, 600);
    let mut runs = [0, 1].map(|rank| job.run(rank, Some(TOKEN), &[]));
    job.until(0, |report| report.ranks.len() == 2);
    job.hosts.connect(1, false);
    job.until(0, |report| codes(report).contains(&"DD904"));
    eventually("the other node continues alone", || {
        runs[1].stderr().contains("the diagnosis continues on this node")
    });
    job.hosts.connect(1, true);
    // The other node tries every few seconds to reach the coordinator.
    job.until(0, |report| !codes(report).contains(&"DD904"));
    // What the lost connection still delivers is not a new attachment.
    eventually("the other node is attached again", || {
        runs[1].stderr().contains("continues the diagnosis\n")
    });
    job.let_go();
    job.assert_same_result(&mut runs);
    let report = job.report(0).unwrap();
    assert_eq!((report.job.nodes, hosts_of(&report).len()), (2, 2));
    assert_eq!(report.evidence.records_lost, 0);
    assert!(!codes(&report).contains(&"DD904"), "{report:#?}");
}

/// Peers that connect and send nothing, half of a greeting, or noise.
const FLOOD: &str = "
import os, socket, sys, time
connections = []
for number in range(2000):
    try:
        connection = socket.create_connection(('host-2', 7077), timeout=5)
        if number % 3:
            connection.sendall(os.urandom(64) if number % 3 == 1 else b'\\x16\\x03\\x01\\x40\\x00')
        connections.append(connection)
    except OSError:
        pass
print('flooded', len(connections), flush=True)
time.sleep(1000)
";

#[test]
fn flood_of_connections_disturbs_no_job() {
    let Some(hosts) = Hosts::new(4) else { return };
    let coordinator = coordinator(&hosts, 2);
    let mut flood = hosts.command(3, "sh");
    flood.args(["-c", "ulimit -n 4096; exec python3 -c \"$0\"", FLOOD]);
    let flood = hosts.start(3, "flood", flood);
    eventually("the flood is there", || flood.stdout().contains("flooded"));
    let job = Job::hanging(hosts, 20);
    let _ranks = [0, 1].map(|rank| linked(&job, rank, "host-2:7077", TOKEN));
    eventually("the hang is found", || {
        let reports = reports_on(&job.hosts, 2);
        reports.iter().any(|it| it.verdict == Verdict::Hang)
    });
    assert!(coordinator.resident_mib() < 128, "{} MiB", coordinator.resident_mib());
}

#[test]
fn coordinator_that_comes_back_knows_the_job_once() {
    let Some(hosts) = Hosts::new(3) else { return };
    let mut first = coordinator(&hosts, 2);
    let job = Job::healthy(hosts, 600);
    let mut ranks = [0, 1].map(|rank| linked(&job, rank, "host-2:7077", TOKEN));
    let reports = || reports_on(&job.hosts, 2);
    eventually("the job is known", || reports().iter().any(|it| it.ranks.len() == 2));
    first.signal("-KILL");
    first.end();
    fs::remove_dir_all(job.hosts.dir(2).join("reports")).unwrap();
    let _second = coordinator(&job.hosts, 2);
    job.assert_same_result(&mut ranks);
    eventually("the job has ended", || reports().iter().any(|it| it.job.ended_at.is_some()));
    let reports = reports();
    assert_eq!(reports.len(), 1, "{reports:#?}");
    let report = &reports[0];
    assert_eq!(report.verdict, Verdict::Healthy, "{report:#?}");
    assert_eq!((report.job.nodes, report.ranks.len(), report.evidence.records_lost), (2, 2, 0));
    // Each step is a record of its begin, of a call and of its return.
    let records = report.evidence.records;
    assert!((2 * 600 * 3..2 * 600 * 4).contains(&records), "{records}");
}
