//! Installs the doubles for test programs: a directory with `libcuda.so.1`, `libnccl.so.2`, the
//! launcher, and the programs that tests compile. Tests of several packages include this file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Options for every program in C.
const C: [&str; 8] = [
    "-std=gnu11",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pthread",
    "-O1",
    // A program that only uses `dlsym` must not be linked with the doubles.
    "-Wl,--as-needed",
];

/// The directory of the doubles.
pub(crate) struct Doubles {
    pub(crate) folder: PathBuf,
}

impl Doubles {
    /// The doubles. Returns `None`, and prints why, without a C compiler.
    pub(crate) fn get() -> Option<&'static Self> {
        static DOUBLES: OnceLock<Option<Doubles>> = OnceLock::new();
        DOUBLES.get_or_init(Self::build).as_ref()
    }

    fn build() -> Option<Self> {
        if Command::new("gcc").arg("--version").output().is_err() {
            eprintln!("skipped: there is no gcc");
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("doubles");
        fs::create_dir_all(&folder).unwrap();
        let test = std::env::current_exe().unwrap();
        let target = test.ancestors().nth(2).unwrap();
        for (library, name) in
            [("libcuda_double.so", "libcuda.so.1"), ("libnccl_double.so", "libnccl.so.2")]
        {
            let built = target.join(library);
            // Hard links or copies: `/proc/PID/maps` must show the names of the real libraries.
            in_one_go(&folder.join(name), |new| {
                let linked = fs::hard_link(&built, new);
                linked.or_else(|_| fs::copy(&built, new).map(drop)).unwrap();
            });
        }
        let doubles = Self { folder };
        doubles.compile(&sources().join("launch.c"), "launch", &[]);
        Some(doubles)
    }

    /// Compiles a program, linked with the doubles.
    pub(crate) fn compile(&self, source: &Path, name: &str, options: &[&str]) -> PathBuf {
        let program = self.folder.join(name);
        let rpath = format!("-Wl,-rpath,{}", self.folder.display());
        in_one_go(&program, |new| {
            let mut compiler;
            if source.extension().is_some_and(|it| it == "rs") {
                compiler = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
                compiler.args(["--edition=2024", "-Dwarnings"]).arg(format!("-Clink-arg={rpath}"));
            } else {
                compiler = Command::new("gcc");
                compiler.args(C).arg(rpath);
                compiler.arg("-I").arg(sources().join("include"));
            }
            compiler.args(options).arg(source).arg("-o").arg(new);
            compiler.arg("-L").arg(&self.folder);
            if source.extension().is_some_and(|it| it == "c") {
                compiler.args(["-l:libnccl.so.2", "-l:libcuda.so.1"]);
            }
            let compiled = compiler.output().unwrap();
            let said = String::from_utf8_lossy(&compiled.stderr);
            assert!(compiled.status.success(), "{said}");
        });
        program
    }

    /// The command that starts ranks of a program.
    pub(crate) fn launch(&self, ranks: u32, program: &Path) -> Vec<PathBuf> {
        let launcher = self.folder.join("launch");
        vec![launcher, ranks.to_string().into(), program.to_owned()]
    }
}

/// Directory of this file.
fn sources() -> &'static Path {
    const FROM: &str = env!("CARGO_MANIFEST_DIR");
    static SOURCES: OnceLock<PathBuf> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let above = Path::new(FROM).ancestors();
        let mut candidates = above.map(|it| it.join("tests/doubles"));
        candidates.find(|it| it.join("harness.rs").exists()).unwrap()
    })
}

/// Creates a file atomically, since other tests may create it at the same time.
fn in_one_go(path: &Path, make: impl FnOnce(&Path)) {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let mut new = path.as_os_str().to_owned();
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    new.push(format!(".{}-{number}", std::process::id()));
    let new = PathBuf::from(new);
    fs::remove_file(&new).ok();
    make(&new);
    fs::rename(&new, path).unwrap();
}
