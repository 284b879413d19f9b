//! Which module uses which: the dependencies within a crate go in one direction.
//!
//! A folder's `mod.rs` is the folder itself. What others use through a folder counts as that of the file that defines
//! it, so that the root of a crate is not exempt. A folder hands out what its files define, which is no use of them. If
//! it uses a file beyond that, and the file what its `mod.rs` defines, the two are a circle of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use ddp_doctor::diagnosis::findings;

use super::{files_below, root};

/// Number of modules that may use each other.
const MAX_IN_A_CIRCLE: usize = 3;

/// Number of files of a folder that use what its `mod.rs` defines, while it uses them. The list only shrinks.
const FILES_IN_CIRCLES: [(&str, usize); 24] = [
    ("src/attach/find", 1),
    ("src/cli", 1),
    ("src/diagnosis/delays/communication", 3),
    ("src/diagnosis/input/event", 1),
    ("src/diagnosis/model", 4),
    ("src/diagnosis/model/history", 1),
    ("src/diagnosis/model/process", 3),
    ("src/diagnosis/source/cause", 1),
    ("src/diagnosis/stacks", 2),
    ("src/diagnosis/waits", 1),
    ("src/host/files", 1),
    ("src/host/gpu", 1),
    ("src/ingest/flight_recorder/document", 2),
    ("src/ingest/flight_recorder/dump", 2),
    ("src/ingest/flight_recorder/dump_files", 1),
    ("src/ingest/flight_recorder/dumped_jobs", 4),
    ("src/ingest/flight_recorder/replay", 1),
    ("src/ingest/logs/events", 2),
    ("src/ingest/logs/facts", 3),
    ("src/ingest/logs/facts/dialects", 4),
    ("src/ingest/logs/job", 2),
    ("src/node/blocked", 2),
    ("src/node/source_reader/python", 1),
    ("src/report/text", 1),
];

/// A module's path within its crate: `["model", "join"]`.
type Module = Vec<String>;

/// The folders of `src` that are crates, from the ground up: each uses only those before it. The program, `cli`, is
/// above them.
const CRATES: [&str; 13] = [
    "diagnosis",
    "host",
    "transport",
    "evidence",
    "ingest",
    "report",
    "postmortem",
    "coordinator",
    "monitoring",
    "node",
    "check",
    "attach",
    "demo",
];

/// The modules of a crate, each with its code.
fn sources(folder: &str) -> BTreeMap<Module, String> {
    let below = CRATES.map(|it| root().join("src").join(it));
    files_below(folder, "rs")
        .into_iter()
        .filter(|file| folder != "src" || !below.iter().any(|it| file.starts_with(it)))
        .map(|file| {
            let path = file.strip_prefix(root().join(folder)).unwrap().with_extension("");
            let mut module: Module =
                path.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            module.retain(|part| !["mod", "lib", "main"].contains(&part.as_str()));
            (module, code(&fs::read_to_string(&file).unwrap()))
        })
        .filter(|(module, _)| {
            !module.iter().any(|part| part.ends_with("test") || part.ends_with("tests"))
        })
        .collect()
}

/// The modules of a crate, each with those that it uses.
fn modules(folder: &str) -> BTreeMap<Module, BTreeSet<Module>> {
    let files = sources(folder);
    let defined: BTreeMap<&Module, BTreeSet<&str>> =
        files.iter().map(|(module, text)| (module, definitions(text).collect())).collect();
    let uses = files.iter().map(|(module, text)| {
        let used = paths(text, module).filter_map(|path| {
            let mut used = path.clone();
            while !files.contains_key(&used) {
                used.pop()?;
            }
            // The file below that defines the name, if the module itself does not.
            let name = path.get(used.len()).filter(|name| !defined[&used].contains(name.as_str()));
            let mut below = files.keys().filter(|it| it.starts_with(&used));
            let definition =
                name.and_then(|name| below.find(|it| defined[it].contains(name.as_str())));
            // What the root does not define is of another crate.
            let is_here = !used.is_empty() || name.is_none();
            definition.cloned().or(is_here.then_some(used))
        });
        // The root uses all others, so that none may use it.
        let modules = files.keys().filter(|it| module.is_empty() && it.len() == 1).cloned();
        let is_own = |other: &Module| {
            other == module
                || !module.is_empty() && other.starts_with(module)
                || !other.is_empty() && module.starts_with(other)
        };
        (module.clone(), used.filter(|other| !is_own(other)).chain(modules).collect())
    });
    uses.collect()
}

/// The names of the items of a source.
fn definitions(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter(|line| line.starts_with(|c: char| c.is_alphabetic())).filter_map(|line| {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        while let Some(word) = words.next() {
            match word {
                "struct" | "enum" | "trait" | "type" | "static" | "fn" => return words.next(),
                "const" => return words.find(|word| !["fn", "unsafe"].contains(word)),
                "use" | "mod" | "impl" => return None,
                _ => {}
            }
        }
        None
    })
}

/// The source without comments and tests.
fn code(text: &str) -> String {
    let tests = ["mod ", "pub mod ", "pub(crate) mod ", "pub(super) mod "];
    let starts = tests.map(|it| text.find(&format!("#[cfg(test)]\n{it}")));
    let end = starts.into_iter().flatten().min().unwrap_or(text.len());
    let lines = text[..end].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths in a module's source that begin at the crate or a folder above, as paths from the crate.
fn paths<'a>(text: &'a str, module: &'a Module) -> impl Iterator<Item = Module> + 'a {
    let at_crate = text.match_indices("crate::").map(|(at, word)| (at + word.len(), 0));
    let above = text
        .match_indices("super::")
        .map(|(at, word)| (at + word.len(), module.len().saturating_sub(1)));
    at_crate.chain(above).flat_map(move |(at, kept)| {
        let mut found = Vec::new();
        tree(&text[at..], &module[..kept], &mut found);
        found
    })
}

/// Adds the paths of a tree of imports, such as `a::{b, c::D}`. Returns the text after it.
fn tree<'a>(text: &'a str, before: &[String], found: &mut Vec<Module>) -> &'a str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let mut path = before.to_vec();
    if !name.is_empty() && name != "self" && name != "super" {
        path.push(name.to_owned());
    }
    if let Some(rest) = rest.strip_prefix("::") {
        return tree(rest, &path, found);
    }
    let Some(mut rest) = rest.strip_prefix('{') else {
        found.push(path);
        return rest;
    };
    loop {
        rest = tree(rest.trim_start(), &path, found).trim_start();
        // An import may be renamed.
        let end = rest.find([',', '}']).unwrap_or(rest.len());
        let (separator, after) = rest[end..].split_at(1.min(rest.len() - end));
        rest = after;
        if separator != "," || rest.trim_start().starts_with('}') {
            return rest;
        }
    }
}

/// The modules that can be reached from one.
fn reached_from<'a>(
    uses: &'a BTreeMap<Module, BTreeSet<Module>>,
    from: &'a Module,
) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        open.extend(uses[module].iter().filter(|used| reached.insert(*used)));
    }
    reached
}

/// The folders of crates.
fn crates() -> Vec<String> {
    let others = [
        "src",
        "agent/src",
        "agent/nccl/src",
        "agent/python/native/src",
        "dashboard/src",
        "proto/src",
    ];
    let parts = CRATES.map(|it| format!("src/{it}"));
    parts.into_iter().chain(others.map(str::to_owned)).collect()
}

#[test]
fn modules_do_not_use_each_other() {
    for folder in &crates() {
        let uses = modules(folder);
        let reached: BTreeMap<&Module, _> =
            uses.keys().map(|it| (it, reached_from(&uses, it))).collect();
        assert!(reached.values().any(|it| !it.is_empty()), "{folder}: no imports found");
        for (module, others) in &reached {
            let circle: Vec<String> = others
                .iter()
                .filter(|other| reached[**other].contains(*module))
                .map(|other| other.join("::"))
                .collect();
            assert!(circle.len() <= MAX_IN_A_CIRCLE, "{folder}: {}", circle.join(", "));
        }
    }
}

/// Whether the code of a folder's `mod.rs` uses a file of the folder, beyond handing out what it defines.
fn uses_own_file(code: &str, name: &str) -> bool {
    let (mut handed_out, mut own) = (Vec::new(), String::new());
    for statement in code.split_inclusive(';') {
        let Some((before, export)) = statement.rsplit_once("pub") else {
            own.push_str(statement);
            continue;
        };
        let public = export.trim_start_matches(|c: char| c != ' ' && c != '(');
        let item =
            public.strip_prefix('(').map_or(public, |it| it.split_once(')').unwrap_or_default().1);
        let Some(path) = item.trim_start().strip_prefix("use ") else {
            own.push_str(statement);
            continue;
        };
        own.push_str(before);
        if let Some(names) = path.strip_prefix(name).and_then(|it| it.strip_prefix("::")) {
            tree(names, &[], &mut handed_out);
        }
    }
    let mut words = own.split(|c: char| !c.is_alphanumeric() && c != '_');
    let has_path = own
        .match_indices(&format!("{name}::"))
        .any(|(at, _)| !own[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':'));
    has_path || words.any(|word| handed_out.iter().any(|it| it.last().is_some_and(|it| it == word)))
}

/// The files of each folder that use what its `mod.rs` defines, and that it uses.
fn circles_with_folders() -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for folder in &crates() {
        let files = sources(folder);
        for (module, code) in files.iter().filter(|(module, _)| module.len() > 1) {
            let (name, above) = module.split_last().unwrap();
            let Some(parent) = files.get(above) else { continue };
            let defined: BTreeSet<&str> = definitions(parent).collect();
            let mut paths = paths(code, module);
            let uses_it = paths.any(|path| {
                path.strip_prefix(above)
                    .and_then(|it| it.first())
                    .is_some_and(|it| defined.contains(it.as_str()))
            });
            if uses_it && uses_own_file(parent, name) {
                found
                    .entry(format!("{folder}/{}", above.join("/")))
                    .or_default()
                    .push(name.clone());
            }
        }
    }
    found
}

#[test]
fn files_do_not_use_what_their_folder_builds_on_them() {
    let found = circles_with_folders();
    let counts: Vec<(&str, usize)> =
        found.iter().map(|(folder, files)| (folder.as_str(), files.len())).collect();
    assert_eq!(
        counts, FILES_IN_CIRCLES,
        "put what a folder and its files share into a file below both, and shorten the list: {found:#?}"
    );
}

#[test]
fn folders_of_the_engine_do_not_use_each_other() {
    let uses = modules("src/diagnosis");
    let folders: BTreeSet<&String> =
        uses.keys().filter(|it| it.len() > 1).map(|it| &it[0]).collect();
    let folder_of = |it: &Module| it.first().filter(|it| folders.contains(it)).cloned();
    let used: BTreeSet<(String, String)> = uses
        .iter()
        .flat_map(|(module, used)| used.iter().map(move |it| (module, it)))
        .filter_map(|(module, used)| Some((folder_of(module)?, folder_of(used)?)))
        .filter(|(one, other)| one != other)
        .collect();
    assert!(used.len() > folders.len(), "{used:?}");
    let both: Vec<_> =
        used.iter().filter(|(one, other)| used.contains(&(other.clone(), one.clone()))).collect();
    assert!(both.is_empty(), "{both:?}");
}

#[test]
fn no_finding_uses_another() {
    let table = fs::read_to_string(root().join("src/diagnosis/findings/mod.rs")).unwrap();
    let rows = table.lines().filter_map(|line| line.trim().strip_prefix("row(&catalogue::"));
    let detectors: BTreeSet<Module> = rows
        .map(|row| {
            // The function, or the sentences, are the last thing in a row: `Stalls(hang::missing_rank::draft)),`.
            let rule = row.rsplit([' ', '(', '&']).next().unwrap().trim_end_matches([')', ',']);
            let mut path: Module = rule.split("::").map(str::to_owned).collect();
            path.pop();
            path
        })
        .collect();
    assert!(detectors.len() > findings::ALL.len() / 2, "{detectors:?}");
    let uses = modules("src/diagnosis");
    let in_crate = |detector: &Module| [vec!["findings".to_owned()], detector.clone()].concat();
    let detectors: BTreeSet<Module> = detectors.iter().map(in_crate).collect();
    for detector in &detectors {
        let others: Vec<&Module> = uses[detector].intersection(&detectors).collect();
        assert!(others.is_empty(), "{} uses {others:?}", detector.join("::"));
    }
}

#[test]
fn crates_point_down() {
    let folders: BTreeSet<PathBuf> = fs::read_dir(root().join("src"))
        .unwrap()
        .map(|it| it.unwrap().path())
        .filter(|it| it.is_dir())
        .collect();
    let listed = CRATES.iter().chain(&["cli"]).map(|it| root().join("src").join(it));
    assert_eq!(folders, listed.collect(), "a folder of src is in no layer");
    for (at, name) in CRATES.iter().enumerate() {
        let manifest =
            fs::read_to_string(root().join("src").join(name).join("Cargo.toml")).unwrap();
        for above in &CRATES[at..] {
            let dependency = format!("\nddp-doctor-{above}");
            assert!(!manifest.contains(&dependency), "{name} depends on {above}");
        }
    }
}
