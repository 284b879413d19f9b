//! Gives the library the name by which programs ask for NCCL, and lists what it has to hand on.

use std::path::Path;
use std::{env, fs, io};

/// What becomes of every function of NCCL's.
const TABLE: &str = "../functions.txt";

fn main() -> io::Result<()> {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Whoever loads NCCL may unload it, while our threads are in it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={TABLE}");
    let table = fs::read_to_string(TABLE)?;
    let mut names = Vec::new();
    for line in table.lines().filter(|it| !it.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, _, what] = words[..] else { continue };
        // The hooks have its name already.
        if what != "hooked" {
            names.push(name.to_owned());
        }
        // What has no second name is called by nobody else.
        if what != "internal" {
            names.push(format!("p{name}"));
        }
    }
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    let list = format!("forward! {{\n    {}\n}}\n", names.join("\n    "));
    fs::write(Path::new(&out).join("forward.rs"), list)
}
