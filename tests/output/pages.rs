//! `analyze --format html`, `perfetto` and `csv`, and the page in a browser.
//!
//! With `DDP_DOCTOR_PAGES=DIR`, the pages are kept in that folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::read::GzDecoder;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::process::program;
use crate::support::scenario::Scenario;

/// Markup that runs a script where it is not escaped. Without spaces, as scenarios need it.
const MARKUP: &str = "</script><img/src=x/onerror=alert(1)>";

/// A ring of calls; one of eight ranks stops before the last.
pub(super) const EIGHT: &str = r#"
about = "one of eight ranks has a batch less"
world = 8
events = """
loop 1-24 from 1.0 every 0.5
0.0 * step $
0.05 * all_reduce f32[2762] sum @train.py:19
0.2 * memory rss=900M+4M*$ gpu=8G/80G tensors=6G+16M*$
0.3 0-3 done
0.32 4-7 done
0.35 * all_gather f32[8] @train.py:23
0.4 * done
end
13.0 0-4,6-7 step 25
13.1 0-4,6-7 all_reduce f32[2762] sum @train.py:19
13.2 5 input-ended
13.3 5 barrier @train.py:41
16.0 0-4,6-7 stack S futex_wait @torch/distributed/distributed_c10d.py:4181:all_reduce @train.py:19:step @train.py:60:main
16.0 5 stack S futex_wait @torch/distributed/distributed_c10d.py:5000:barrier @train.py:41:main
"""
continues-for = 12
"#;

/// One of 1 024 ranks never arrives.
pub(super) const LARGE: &str = r#"
about = "one of 1 024 ranks does not come"
world = 1024
stall-after = 2
events = """
loop 1-16 from 1.0 every 0.1
0.0 * step $
0.01 * all_reduce f32[4096,128] sum @train.py:19
0.02 * memory rss=900M+4M*$
0.06 * done
end
2.7 0-776,778-1023 step 17
2.71 0-776,778-1023 all_reduce f32[4096,128] sum @train.py:19
2.8 777 stack S hrtimer_nanosleep @train.py:12:fetch @train.py:60:main
2.8 0-776,778-1023 stack S futex_wait @torch/distributed/distributed_c10d.py:4181:all_reduce @train.py:19:step @train.py:60:main
4.9 777 stack S hrtimer_nanosleep @train.py:12:fetch @train.py:60:main
"""
continues-for = 2
"#;

/// A folder with the journal of a scenario.
pub(super) fn evidence(scenario: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_journal(&dir, scenario);
    dir
}

fn write_journal(dir: &TempDir, scenario: &str) {
    let scenario = Scenario::parse(scenario).unwrap();
    scenario.journals(dir.path(), 1).unwrap();
}

/// A folder with the journal of a recording in `tests/recordings`.
pub(super) fn recording(name: &str) -> TempDir {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let file = fs::File::open(folder.join(name)).unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    let head = bytes.iter().position(|&byte| byte == b'\n').unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("journal.ddpj"), &bytes[head + 1..]).unwrap();
    dir
}

/// Output of `analyze` in a format.
#[track_caller]
pub(super) fn analyzed(dir: &TempDir, format: &str) -> String {
    let arguments = ["analyze", ".", "--format", format, "--fail-on", "never", "--source", "."];
    let output = program(dir.path()).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The data of a page.
#[track_caller]
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(data).unwrap()
}

#[test]
fn page_of_a_recorded_hang_has_its_calls_and_waits() {
    let dir = recording("groups/two_groups_in_opposite_order.faulty.gz");
    let page = analyzed(&dir, "html");
    let data = data(&page);
    let job = &data["jobs"][0];
    assert_eq!(job["verdict"], "hang");
    assert_eq!(job["findings"][0]["code"], "DD111");
    let ranks = job["ranks"].as_array().unwrap().len();
    let tracks = job["tracks"].as_array().unwrap();
    assert_eq!(tracks.len(), ranks);
    // Each rank of the cycle is in a call that begins and does not end.
    for rank in job["findings"][0]["root"].as_array().unwrap() {
        let track = tracks.iter().find(|it| it["rank"] == *rank).unwrap();
        let last = track["calls"].as_array().unwrap().last().unwrap();
        let times: Vec<i64> =
            last.as_array().unwrap()[3..7].iter().map(|it| it.as_i64().unwrap()).collect();
        assert!(times[2] >= 0 && times[3] == -1, "{last}");
    }
    let waits = job["waits"].as_array().unwrap();
    let needed: BTreeSet<u64> = waits
        .iter()
        .flat_map(|it| it["needs"].as_array().unwrap())
        .map(|it| it.as_u64().unwrap())
        .collect();
    let blocked: BTreeSet<u64> = waits
        .iter()
        .flat_map(|it| it["ranks"].as_array().unwrap())
        .map(|it| it.as_u64().unwrap())
        .collect();
    assert_eq!(needed, blocked, "a cycle: {waits:?}");
    assert!(!page.contains("http://") || page.matches("http://").count() == 1, "SVG's name alone");
    assert!(!page.contains("https://"));
}

/// A job in which rank 5 makes another call than its peers, whose calls arrive one after the other.
pub(super) fn odd_call(world: u32) -> String {
    let peers: Vec<u32> = (0..world).filter(|&rank| rank != 5).collect();
    let at = |index: usize| 3.0 + 2.0 * index as f64 / peers.len() as f64;
    let calls = peers.iter().enumerate().map(|(index, rank)| {
        format!("{:.4} {rank} all_reduce f32[2762] sum @train.py:19\n", at(index))
    });
    let (first, rest): (Vec<_>, Vec<_>) =
        calls.enumerate().partition(|(index, _)| index * 8 < peers.len());
    let lines =
        |calls: Vec<(usize, String)>| calls.into_iter().map(|(_, line)| line).collect::<String>();
    format!(
        r#"
about = "rank 5 of {world} makes another call"
world = {world}
stall-after = 2
events = """
1.0 * step 1
1.1 * all_reduce f32[2762] sum @train.py:19
1.2 * done
{}{:.4} 5 barrier @train.py:41
{}"""
continues-for = 4
"#,
        lines(first),
        at(peers.len().div_ceil(8)),
        lines(rest),
    )
}

/// A job of which rank 5 does not make the last call, and its peers make theirs one after the other.
pub(super) fn missing_call(world: u32) -> String {
    let job = odd_call(world);
    let is_kept = |line: &&str| !line.contains("barrier");
    job.lines().filter(is_kept).map(|line| format!("{line}\n")).collect()
}

/// Numbers of ranks for which the graph of waits is compared with the report.
const WORLDS: [u32; 4] = [8, 36, 64, 1024];

#[test]
fn waits_of_a_page_are_those_of_the_report() {
    for (world, job) in
        WORLDS.into_iter().flat_map(|it| [(it, odd_call(it)), (it, missing_call(it))])
    {
        let dir = evidence(&job);
        let data = data(&analyzed(&dir, "html"));
        let report: Value = serde_json::from_str(&analyzed(&dir, "json")).unwrap();
        let finding = &report["findings"][0];
        assert_eq!(finding["ranks"]["root"], serde_json::json!([5]), "{world}");
        let waits = data["jobs"][0]["waits"].as_array().unwrap();
        let ranks = |key: &str| -> BTreeSet<u64> {
            let all = waits.iter().flat_map(|it| it[key].as_array().unwrap());
            all.map(|it| it.as_u64().unwrap()).collect()
        };
        if finding["code"] == "DD103" {
            // All have made a call: none of them waits for a rank that has not.
            assert_eq!((waits.len(), ranks("needs").len()), (0, 0), "{world}: {waits:?}");
            continue;
        }
        let victims: BTreeSet<u64> = finding["ranks"]["victims"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it.as_u64().unwrap())
            .collect();
        assert_eq!((ranks("ranks"), waits.len()), (victims, 1), "{world}");
        assert_eq!(ranks("needs"), BTreeSet::from([5]), "{world}");
    }
}

#[test]
fn page_of_a_slow_job_shows_where_the_time_of_each_rank_goes() {
    for name in ["straggler_in_compute", "straggler_in_input"] {
        let dir = recording(&format!("speed/{name}.faulty.gz"));
        let data = data(&analyzed(&dir, "html"));
        let job = &data["jobs"][0];
        let root = job["findings"][0]["root"][0].as_u64().unwrap();
        let number = |value: &Value| value.as_f64().unwrap();
        let length = number(&job["shares"][1]) - number(&job["shares"][0]);
        let mut own = 0.0;
        let mut least = f64::MAX;
        for track in job["tracks"].as_array().unwrap() {
            let shares: Vec<f64> = track["shares"].as_array().unwrap().iter().map(number).collect();
            assert!((shares.iter().sum::<f64>() - length).abs() < 10.0, "{shares:?} of {length}");
            let waiting = shares[2] / length;
            if track["rank"] == root {
                own = waiting;
            } else {
                least = least.min(waiting);
            }
            // The late rank is the one that waits for its input.
            if name == "straggler_in_input" {
                assert_eq!(shares[1] / length > 0.2, track["rank"] == root, "{shares:?}");
            }
            let calls = track["calls"].as_array().unwrap();
            let hidden = |call: &&Value| {
                let kind = &job["kinds"][call[0].as_u64().unwrap() as usize];
                kind["hidden"] == true && kind["op"] == "all_reduce"
            };
            let buckets: Vec<&Value> = calls.iter().filter(hidden).collect();
            let is_timed = |call: &&&Value| number(&call[5]) >= 0.0 && number(&call[7]) >= 0.0;
            let timed = buckets.iter().filter(is_timed).count();
            assert!(timed * 10 >= buckets.len() * 9, "{timed} of {} buckets", buckets.len());
        }
        assert!(own + 0.2 < least, "{name}: {own}, {least}");
    }
}

#[test]
fn trace_follows_the_trace_event_format() {
    for dir in [recording("groups/two_groups_in_opposite_order.faulty.gz"), evidence(EIGHT)] {
        let trace: Value = serde_json::from_str(&analyzed(&dir, "perfetto")).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let mut tracks: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
        let mut names = BTreeSet::new();
        let mut flows: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
        for event in events {
            let phase = event["ph"].as_str().unwrap();
            let pid = event["pid"].as_u64().unwrap();
            let name = event["name"].as_str().unwrap();
            assert!(!name.is_empty());
            let ts = || event["ts"].as_f64().filter(|ts| *ts >= 0.0).unwrap();
            let tid = || event["tid"].as_u64().unwrap();
            match phase {
                "M" => drop(names.insert((pid, event["tid"].as_u64(), name.to_owned()))),
                "X" => {
                    let dur = event["dur"].as_f64().unwrap();
                    assert!(dur >= 0.0);
                    tracks.entry((pid, tid())).or_default().push((ts(), dur));
                }
                "i" => assert_eq!((event["s"].as_str(), ts() >= 0.0), (Some("t"), true)),
                "C" => assert!(event["args"]["bytes"].is_u64() && ts() >= 0.0),
                "s" | "f" => {
                    let id = event["id"].as_str().unwrap().to_owned();
                    flows.entry(id).or_default().push((phase.to_owned(), ts()));
                }
                other => panic!("{other}: {event}"),
            }
        }
        for (&(pid, tid), slices) in &tracks {
            assert!(names.contains(&(pid, Some(tid), "thread_name".to_owned())));
            // Slices of a track are in order, and none overlaps the next.
            for pair in slices.windows(2) {
                let [(began, dur), (next, _)] = pair else { unreachable!() };
                assert!(began + dur <= next + 0.001, "{pid}/{tid}: {pair:?}");
            }
        }
        assert!(!flows.is_empty());
        for (id, ends) in flows {
            let phases: Vec<&str> = ends.iter().map(|(phase, _)| phase.as_str()).collect();
            assert_eq!(phases, ["s", "f"], "{id}");
            assert!(ends[0].1 <= ends[1].1, "{id}: {ends:?}");
        }
    }
}

#[test]
fn table_has_one_row_per_finding_and_rank() {
    let dir = evidence(EIGHT);
    let table = analyzed(&dir, "csv");
    let rows: Vec<Vec<&str>> =
        table.split_terminator("\r\n").map(|row| row.split(',').collect()).collect();
    let column = |name: &str| rows[0].iter().position(|it| *it == name).unwrap();
    let of_first: Vec<_> = rows.iter().filter(|row| row[column("code")] == "DD103").collect();
    assert_eq!(of_first.len(), 8, "{table}");
    let root: Vec<_> = of_first.iter().filter(|row| row[column("is_root")] == "true").collect();
    assert_eq!(root.len(), 1);
    for (name, value) in [
        ("rank", "5"),
        ("op", "barrier"),
        ("call_state", "waiting"),
        ("file", "train.py"),
        ("line", "41"),
        ("issued_at", "2027-01-15T08:00:13.300Z"),
        ("wait_ended_at", ""),
    ] {
        assert_eq!(root[0][column(name)], value, "{name}");
    }
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{table}");
}

/// Evidence with markup in the name of a group, in an exception and in a line of source.
pub(super) fn hostile() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("train.py");
    fs::write(&file, format!("pass\nbarrier()  {MARKUP}\npass\n")).unwrap();
    let line = format!("{}:2", file.display());
    let scenario = format!(
        r#"
about = "a job whose texts are markup"
world = 3
events = """
0.5 * group {MARKUP} 0-2
1.0 0-1 all_reduce/{MARKUP} f32[8] sum @{line}
1.5 2 raises uncaught "ValueError: {MARKUP}" @{line}
1.6 2 exits 1
"""
continues-for = 4
"#
    );
    write_journal(&dir, &scenario);
    dir
}

/// A job on GPUs: one is slowed by heat and has reported an error.
const GPUS: &str = r#"
about = "a job on two GPUs, one of which is in trouble"
world = 2
events = """
0.5 0 sets gpu=GPU-0
0.5 1 sets gpu=GPU-1
0.6 0 gpu busy=99 power=600 limit=700 clock=1980 max-clock=1980 celsius=60 slowdown=none
0.6 1 gpu busy=98 power=400 limit=700 clock=1200 max-clock=1980 celsius=91 slowdown=heat
0.7 1 gpu-fault xid=63
1.0 * all_reduce f32[8] sum @train.py:9
1.1 * done
1.5 * destroys
1.6 * exits 0
"""
continues-for = 1
"#;

#[test]
fn page_and_report_have_the_gpus_of_ranks() {
    let dir = evidence(GPUS);
    let report: Value = serde_json::from_str(&analyzed(&dir, "json")).unwrap();
    let device = &report["ranks"][1]["device"];
    for (name, value) in [
        ("busy_percent", 98),
        ("power_watts", 400),
        ("power_limit_watts", 700),
        ("clock_mhz", 1200),
        ("max_clock_mhz", 1980),
        ("celsius", 91),
    ] {
        assert_eq!(device[name], value, "{name}: {device}");
    }
    assert_eq!((&device["slowdown"], &device["xids"]), (&"heat".into(), &serde_json::json!([63])));
    let page = analyzed(&dir, "html");
    let ranks = &data(&page)["jobs"][0]["ranks"];
    assert_eq!(
        (&ranks[1]["device"]["is_slowed"], &ranks[0]["device"]["is_slowed"]),
        (&true.into(), &false.into())
    );
    let Some(browser) = browser() else { return };
    let (dom, console) = opened(&browser, &page, "gpus");
    assert_eq!(console, Vec::<String>::new());
    let (_, section) = main_of(&dom).split_once("<section id=\"devices\"").unwrap();
    let row = |text: &str| section.find(text).unwrap_or_else(|| panic!("{text}: {section}"));
    assert!(row("1,200 of 1,980 MHz") < row("1,980 of 1,980 MHz"), "trouble first: {section}");
    row("91 °C");
    let (dom, _) = opened(&browser, &analyzed(&evidence(EIGHT), "html"), "no-gpus");
    assert!(!dom.contains("<section id=\"devices\""), "a section without a GPU");
}

#[test]
fn text_of_ranks_is_escaped() {
    let page = analyzed(&hostile(), "html");
    assert!(page.contains("\\u003c/script\\u003e\\u003cimg/src=x"));
    assert!(!page.contains("<img"), "markup of a rank");
    assert_eq!(page.matches("</script>").count(), 2, "data and script");
    let data = data(&page);
    let finding = &data["jobs"][0]["findings"][0];
    assert_eq!(finding["code"], "DD202");
    assert!(finding["summary"].as_str().unwrap().contains(MARKUP), "{finding}");
    let excerpt = &finding["excerpts"][0]["lines"].to_string();
    assert!(excerpt.contains(MARKUP), "{finding}");
    let kinds = data["jobs"][0]["kinds"].to_string();
    assert!(kinds.contains(MARKUP), "{kinds}");
}

// --- In a browser --------------------------------------------------------------------------------

/// Names under which Chromium is installed.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Path of a browser; prints why the test is skipped if there is none.
pub(super) fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut found = BROWSERS.iter().flat_map(|name| folders.iter().map(move |it| it.join(name)));
    let browser = found.find(|path| path.is_file());
    if browser.is_none() {
        eprintln!("skipped: no Chromium on PATH (Debian: apt-get install chromium)");
    }
    browser
}

/// The DOM of a page in a browser, and what its console reported.
pub(super) fn opened(browser: &Path, page: &str, name: &str) -> (String, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    fs::write(&file, page).unwrap();
    if let Some(pages) = std::env::var_os("DDP_DOCTOR_PAGES") {
        fs::create_dir_all(&pages).unwrap();
        fs::write(Path::new(&pages).join(format!("{name}.html")), page).unwrap();
    }
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"])
        .args(["--no-first-run", "--disable-background-networking"])
        .args(["--disable-component-update", "--disable-sync"])
        .args(["--enable-logging=stderr", "--window-size=1280,900"])
        .arg("--virtual-time-budget=2000")
        .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8(output.stdout).unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let console = log.lines().filter(|line| line.contains("CONSOLE"));
    (dom, console.map(str::to_owned).collect())
}

/// The elements of a page between its `main` tags.
fn main_of(dom: &str) -> &str {
    let (_, rest) = dom.split_once("<main").unwrap();
    rest.split_once("</main>").unwrap().0
}

#[test]
fn page_opens_in_a_browser_with_its_verdict_and_sections() {
    let Some(browser) = browser() else { return };
    for (name, scenario, rank, sections) in [
        ("eight", EIGHT, "5", &["memory", "stacks", "waits"][..]),
        ("large", LARGE, "777", &["memory", "stacks", "waits"][..]),
    ] {
        let page = analyzed(&evidence(scenario), "html");
        let (dom, console) = opened(&browser, &page, name);
        assert_eq!(console, Vec::<String>::new(), "{name}");
        let main = main_of(&dom);
        assert!(main.contains("<strong>Hang</strong>"), "{name}: {main}");
        let root = format!(">{rank}</p>");
        assert!(main.contains(&root), "{name}: {main}");
        for section in sections.iter().chain(&["answer", "findings", "timeline", "ranks"]) {
            let id = format!("<section id=\"{section}\"");
            assert!(main.contains(&id), "{name}: no {section}");
        }
        // The answer states the reasons of the leading finding, and the list of findings does not again.
        let others = data(&page)["jobs"][0]["findings"].as_array().unwrap().len() - 1;
        assert_eq!(main.matches("<h3>Why</h3>").count(), 1, "{name}");
        assert!(main.matches("<h4>Why</h4>").count() <= others, "{name}");
        // Only what is visible is drawn.
        assert!(main.matches("<path").count() < 2000, "{name}");
        assert!(main.len() < 400_000, "{name}: {}", main.len());
    }
}

#[test]
fn graph_of_waits_in_a_browser_groups_ranks_by_what_they_do() {
    let Some(browser) = browser() else { return };
    for world in WORLDS {
        let peers = format!(
            "ranks 0–4, {}",
            if world == 8 { "6, 7".into() } else { format!("6–{}", world - 1) }
        );
        for (name, job, said) in [
            ("mismatch", odd_call(world), format!("rank 5 cannot match {peers}")),
            ("waits", missing_call(world), format!("{peers} wait for rank 5")),
        ] {
            let page = analyzed(&evidence(&job), "html");
            let (dom, console) = opened(&browser, &page, &format!("{name}-{world}"));
            assert_eq!(console, Vec::<String>::new(), "{world}");
            assert!(!main_of(&dom).contains("default_pg"), "{world}");
            let (_, graph) = main_of(&dom).split_once("<section id=\"waits\"").unwrap();
            let (_, label) = graph.split_once("aria-label=\"").unwrap();
            assert_eq!(label.split('"').next(), Some(&*said), "{world}");
            assert_eq!(graph.matches("class=\"node").count(), 2, "{world}");
        }
    }
}

#[test]
fn slow_job_opens_on_its_slow_part_in_a_browser() {
    let Some(browser) = browser() else { return };
    let dir = recording("speed/straggler_in_compute.faulty.gz");
    let page = analyzed(&dir, "html");
    let root = data(&page)["jobs"][0]["findings"][0]["root"][0].to_string();
    let (dom, console) = opened(&browser, &page, "slow");
    assert_eq!(console, Vec::<String>::new());
    let main = main_of(&dom);
    assert!(main.contains(">Slow part</button>") && !main.contains(">Stall</button>"));
    let (_, shares) = main.split_once("<section id=\"shares\"").unwrap();
    let rows = shares.split_once("</section>").unwrap().0;
    assert!(rows.contains(&format!(">▸ rank {root}<")), "{rows}");
}

#[test]
fn every_recorded_fault_has_a_page_without_errors() {
    let Some(browser) = browser() else { return };
    for name in [
        "groups/two_groups_in_opposite_order",
        "missing/conditional_barrier",
        "messages/p2p_ring_of_three",
        "process/killed",
        "memory/leak_on_one_rank",
        "ddp/head_skipped_by_one_rank",
    ] {
        let dir = recording(&format!("{name}.faulty.gz"));
        let page = analyzed(&dir, "html");
        let verdict = data(&page)["jobs"][0]["verdict"].as_str().unwrap().to_owned();
        let (dom, console) = opened(&browser, &page, &name.replace('/', "-"));
        assert_eq!(console, Vec::<String>::new(), "{name}");
        assert!(main_of(&dom).contains(&format!("class=\"verdict {verdict}\"")), "{name}");
    }
}

#[test]
fn hostile_page_runs_nothing_in_a_browser() {
    let Some(browser) = browser() else { return };
    let page = analyzed(&hostile(), "html");
    let (dom, console) = opened(&browser, &page, "hostile");
    assert_eq!(console, Vec::<String>::new());
    let main = main_of(&dom);
    assert!(!main.contains("<img"), "{main}");
    assert!(main.contains("&lt;img/src=x/onerror=alert(1)&gt;"), "{main}");
}

#[test]
fn consequences_on_a_page_are_one_line_and_name_no_empty_fix() {
    let Some(browser) = browser() else { return };
    let page = analyzed(&recording("process/killed.faulty.gz"), "html");
    let job = &data(&page)["jobs"][0];
    let cascade = &job["findings"][1];
    assert_eq!((&cascade["role"], &cascade["fix"]), (&"cascade".into(), &serde_json::json!([])));
    // Both ranks were at this line, and one of them is the root cause.
    let excerpt = &job["findings"][0]["excerpts"][0];
    assert_eq!((&excerpt["root"], &excerpt["ranks"]), (&true.into(), &"1".into()));
    let (dom, _) = opened(&browser, &page, "killed");
    let main = main_of(&dom);
    assert!(main.contains("<details class=\"brief is-critical\" id=\"finding-1\">"), "{main}");
    assert_eq!(main.matches(">Fix<").count(), 1);
    assert!(!main.contains("<p class=\"note\">—</p>"));
}

/// The policy of the page admits only its own script; the test also shows that the console is read.
#[test]
fn changed_script_is_refused_by_the_browser() {
    let Some(browser) = browser() else { return };
    let page = analyzed(&evidence(EIGHT), "html");
    let changed = page.replace("start();\n</script>", "start(); \n</script>");
    assert_ne!(page, changed);
    let (dom, console) = opened(&browser, &changed, "changed");
    assert_eq!(console.len(), 1, "{console:?}");
    assert!(!main_of(&dom).contains("<section"));
}
